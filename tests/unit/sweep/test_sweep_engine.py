"""The engine of sweeps on a simulated cluster: every trial once, whatever dies when; the failure policy; the budget."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweep_line import Line, World, plan_of, run
from sweep_simulated import SimulatedCluster, play

from trackwalker.errors import EvidenceError, RefusedError
from trackwalker.sweep.engine import Engine
from trackwalker.sweep.model import Result, Trial
from trackwalker.sweep.plan import Plan
from trackwalker.sweep.progress import Teller
from trackwalker.sweep.state import Book, State, load_state, order_cancel


class Killed(BaseException):
    """The process is gone at this very moment."""


def table(state: State) -> list[tuple[str, str, float | None]]:
    return sorted((key, result.status, result.score) for key, result in state.done.items())


def ended(key: str, status: Any, **more: Any) -> Result:
    return Result(key, status, minutes=3.0, **more)


def test_every_trial_runs_once_and_disjoint_nodes_run_at_the_same_time(tmp_path: Path) -> None:
    cluster, out = SimulatedCluster(World()), io.StringIO()
    outcome, state = run(plan_of(tmp_path), Line(), cluster, out)
    assert outcome.end == "finished"
    assert table(state) == [(f"x={v}", "ok", 100.0 - (v - 3) ** 2) for v in range(1, 6)]
    assert len(cluster.jobs) == 5
    begun = [job.began for job in cluster.jobs.values()]
    assert begun[0] == begun[1] == begun[2] < begun[3]
    told = out.getvalue()
    assert "[1/5] x=1: 96 tokens/s/device (95 to 97), 1 s a step on n2, job 1001, 6 min" in told
    assert len([line for line in told.splitlines() if line.startswith("[")]) == 5


class Dying:
    """Ends the process at its n-th dangerous moment: before and after every record and every submission."""

    def __init__(self, at: int) -> None:
        self.at, self.moments = at, 0

    def moment(self) -> None:
        self.moments += 1
        if self.moments == self.at:
            raise Killed

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            self.moment()
            found = work(*args, **more)
            self.moment()
            return found

        return wrapped


def run_dying(plan: Plan, cluster: SimulatedCluster, dying: Dying, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        patch.setattr(Book, "write", dying.around(Book.write))
        patch.setattr(SimulatedCluster, "submit", dying.around(SimulatedCluster.submit))
        patch.setattr(SimulatedCluster, "cancel", dying.around(SimulatedCluster.cancel))
        try:
            run(plan, Line(), cluster)
        except Killed:
            return True
    return False


HANG = ended("x=2", "hang", phase="train", why="no step")


def test_killed_at_any_moment_and_resumed_it_ends_in_the_same_table_and_no_job_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a hundred sweeps, and this machine stays on
    world = World({"x=2": [HANG]})
    cluster = SimulatedCluster(world)
    _, whole = run(plan_of(tmp_path / "whole"), Line(), cluster)
    expected, jobs = table(whole), Counter(job.trial.key for job in cluster.jobs.values())
    assert jobs == Counter({"x=1": 1, "x=2": 2, "x=3": 1, "x=4": 1, "x=5": 1})
    moments = 0
    while True:
        moments += 1
        plan, cluster = plan_of(tmp_path / str(moments)), SimulatedCluster(world)
        if not run_dying(plan, cluster, Dying(moments), monkeypatch):
            break
        _, state = run(plan, Line(), cluster)
        assert table(state) == expected, moments
        assert Counter(job.trial.key for job in cluster.jobs.values()) == jobs, moments
    assert moments > 40


def test_a_lost_answer_is_looked_for_and_the_job_adopted(tmp_path: Path) -> None:
    cluster, out = SimulatedCluster(World(), loses_answer={2}), io.StringIO()
    _, state = run(plan_of(tmp_path), Line(), cluster, out)
    assert len(cluster.jobs) == 5 == len(state.done)
    assert "is there already, adopted" in out.getvalue()


def test_a_controller_that_does_not_answer_is_waited_for_and_nothing_is_submitted_twice(tmp_path: Path) -> None:
    begin = 1e9
    cluster, out = SimulatedCluster(World(), down=[(begin, begin + 50), (begin + 100, begin + 900)]), io.StringIO()
    outcome, state = run(plan_of(tmp_path), Line(), cluster, out)
    assert (outcome.end, len(cluster.jobs), len(state.done)) == ("finished", 5, 5)
    assert out.getvalue().count("waiting:") == out.getvalue().count("answers again") == 2


def test_a_hang_is_ended_and_repeated_once_and_fails_the_second_time(tmp_path: Path) -> None:
    cluster = SimulatedCluster(World({"x=2": [HANG, HANG]}))
    _, state = run(plan_of(tmp_path), Line(), cluster)
    assert [job.cancelled for job in cluster.jobs.values() if job.trial.key == "x=2"] == [True, True]
    assert (state.done["x=2"].status, state.done["x=2"].attempt) == ("hang", 2)
    assert len(cluster.jobs) == 6


def test_a_hang_of_the_compiler_counts_as_out_of_memory_and_is_not_repeated(tmp_path: Path) -> None:
    hang = ended("x=2", "hang", phase="compile", why="compile has taken an hour")
    cluster = SimulatedCluster(World({"x=2": [hang]}))
    _, state = run(plan_of(tmp_path), Line(), cluster)
    assert (state.done["x=2"].status, state.done["x=2"].phase, len(cluster.jobs)) == ("oom", "compile", 5)


@pytest.mark.parametrize("status", ["oom", "config-error", "failed", "cancelled"])
def test_other_ends_are_not_repeated(tmp_path: Path, status: str) -> None:
    cluster = SimulatedCluster(World({"x=2": [ended("x=2", status, cause="c", why="w")]}))
    outcome, state = run(plan_of(tmp_path), Line(first=(1, 3), then=(2, 4)), cluster)
    assert (state.done["x=2"].status, len(cluster.jobs), outcome.end) == (status, 4, "finished")


def test_a_preempted_job_is_repeated(tmp_path: Path) -> None:
    cluster = SimulatedCluster(World({"x=2": [ended("x=2", "cancelled", cause="preempted")]}))
    _, state = run(plan_of(tmp_path), Line(), cluster)
    assert (state.done["x=2"].status, len(cluster.jobs)) == ("ok", 6)


FAULT = ended("x=2", "node-fault", cause="xid-hardware", why="Xid 79", hosts=("n3",))


def test_a_faulty_node_makes_room_for_a_spare_for_the_rest_of_the_sweep(tmp_path: Path) -> None:
    cluster = SimulatedCluster(World({"x=2": [FAULT]}))
    outcome, state = run(plan_of(tmp_path, spares=("s1",)), Line(), cluster)
    assert (outcome.end, state.done["x=2"].status, state.replaced) == ("finished", "ok", {"n3": "s1"})
    assert [job.trial.nodes for job in cluster.jobs.values() if job.trial.key in ("x=2", "x=5")] == [
        ("n3",),
        ("s1",),
        ("s1",),
    ]


def test_without_a_spare_a_faulty_node_ends_the_sweep(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    outcome, _ = run(plan, Line(), SimulatedCluster(World({"x=2": [FAULT]})))
    assert outcome.end == "stopped"
    assert "n3 failed (Xid 79) and there is no spare node: give --spares" in outcome.why
    assert load_state(plan.folder).stop == outcome.why


def test_where_the_nodes_are_the_question_a_faulty_one_is_the_answer(tmp_path: Path) -> None:
    cluster = SimulatedCluster(World({"x=2": [FAULT]}))
    outcome, state = run(plan_of(tmp_path, kind="nodes"), Line(), cluster)
    assert (outcome.end, state.done["x=2"].status, len(cluster.jobs)) == ("finished", "node-fault", 5)


def test_a_third_faulty_node_means_that_the_cluster_is_unwell(tmp_path: Path) -> None:
    ends = {
        f"x={v}": [ended(f"x={v}", "node-fault", cause="c", why="Xid", hosts=(f"n{v % 3 + 1}",))] for v in (1, 2, 3)
    }
    outcome, _ = run(plan_of(tmp_path, spares=("s1", "s2", "s3", "s4")), Line(), SimulatedCluster(World(ends)))
    assert (outcome.end, "the cluster is unwell" in outcome.why) == ("stopped", True)


def test_a_configuration_error_before_anything_ran_ends_the_sweep_and_its_own_jobs(tmp_path: Path) -> None:
    cluster = SimulatedCluster(World({"x=2": [ended("x=2", "config-error", why="no such key 'x'")]}))
    outcome, state = run(plan_of(tmp_path), Line(), cluster)
    assert outcome.why == "the configuration is refused: no such key 'x'"
    assert {key: job.cancelled for key, job in zip("123", cluster.jobs.values(), strict=True)} == {
        "1": True,
        "2": False,
        "3": True,
    }
    assert set(state.done) == {"x=2"}  # what we ended ourselves says nothing


def test_three_jobs_that_fail_alike_end_the_sweep_but_not_a_model_sweep(tmp_path: Path) -> None:
    ends = {f"x={v}": [ended(f"x={v}", "failed", cause="nccl-nic-fail")] for v in range(1, 6)}
    outcome, _ = run(plan_of(tmp_path / "a"), Line(), SimulatedCluster(World(ends)))
    assert "3 jobs failed alike (nccl-nic-fail)" in outcome.why
    outcome, state = run(plan_of(tmp_path / "b", kind="models"), Line(), SimulatedCluster(World(ends)))
    assert (outcome.end, len(state.done)) == ("finished", 5)


def test_the_strategy_may_end_it_early(tmp_path: Path) -> None:
    cluster = SimulatedCluster(World())
    outcome, _ = run(plan_of(tmp_path), Line(stops_at=1), cluster)
    assert (outcome.end, outcome.why, len(cluster.jobs)) == ("stopped", "x=1 is good enough", 3)


def test_the_budget_ends_it_and_more_budget_continues_it(tmp_path: Path) -> None:
    plan, cluster = plan_of(tmp_path, budget=0.35), SimulatedCluster(World())
    outcome, state = run(plan, Line(), cluster)
    assert (outcome.end, len(cluster.jobs)) == ("stopped", 3)
    assert outcome.why == "the budget of 0.35 node-hours does not allow another job"
    with Book(plan.folder) as book:
        book.write("budget", 0.0, node_hours=1.0)
    outcome, state = run(plan, Line(), cluster)
    assert (outcome.end, len(cluster.jobs), len(state.done)) == ("finished", 5, 5)


def test_a_cancelled_sweep_ends_its_jobs_and_resume_runs_them_again(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)

    class Ordered(SimulatedCluster):
        def sleep(self, seconds: float) -> None:
            order_cancel(plan.folder)
            super().sleep(seconds)

    first = Ordered(World())
    outcome, state = run(plan, Line(), first)
    assert (outcome.end, len(first.jobs), state.done) == ("cancelled", 3, {})
    assert all(job.cancelled for job in first.jobs.values())
    second = SimulatedCluster(World(), time=first.time)
    outcome, state = run(plan, Line(), second)
    assert (outcome.end, len(state.done), len(second.jobs)) == ("finished", 5, 5)


def test_a_job_that_the_scheduler_refuses_is_a_result_and_leaves_no_job(tmp_path: Path) -> None:
    from trackwalker.errors import UsageError

    class Picky(SimulatedCluster):
        def submit(self, trial: Trial, tag: str) -> str:
            if trial.key == "x=4":
                raise UsageError("sbatch: no such partition")
            return super().submit(trial, tag)

    cluster = Picky(World())
    outcome, state = run(plan_of(tmp_path), Line(), cluster)
    assert (state.done["x=4"].status, state.done["x=4"].why) == ("config-error", "sbatch: no such partition")
    assert (outcome.end, len(cluster.jobs)) == ("finished", 4)


def test_one_engine_at_a_time(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    with Book(plan.folder), pytest.raises(RefusedError, match="is being run already"), Book(plan.folder):
        pass
    with Book(plan.folder):
        pass


def test_an_unfinished_last_line_is_dropped_and_any_other_damage_is_one_clear_error(tmp_path: Path) -> None:
    plan, cluster = plan_of(tmp_path), SimulatedCluster(World())
    _, before = run(plan, Line(), cluster)
    path = plan.folder / "state.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"v":1,"kind":"int')
    assert table(load_state(plan.folder)) == table(before)
    with Book(plan.folder) as book:
        assert table(book.state) == table(before)
    assert path.read_bytes() == whole
    for broken in (
        b"\x00garbage\n" + whole,
        whole + b'{"v":1,"kind":"dance","tag":"no"}\n',
        whole.replace(b'"key"', b'"k"'),
    ):
        path.write_bytes(broken)
        with pytest.raises(EvidenceError, match="is damaged") as error:
            load_state(plan.folder)
        assert "\n" not in str(error.value)


def test_a_strategy_alone_is_played_in_any_order_of_arrival() -> None:
    played = [play(Line(), World(), seed) for seed in range(20)]
    assert {p.conclusion.headline for p in played} == {"x=3 is best"}
    assert {len(p.jobs) for p in played} == {5}
    assert len({tuple(t.key for t in p.jobs) for p in played}) > 1


def test_a_job_that_ends_itself_while_it_is_being_ended_keeps_its_figure(tmp_path: Path) -> None:
    class Recovers(SimulatedCluster):
        def cancel(self, trial: Trial, job: str, tag: str) -> None:
            found = self.jobs[job]
            found.ends, found.result = self.time, World()(trial, 9)  # it moved on before the signal came

    cluster = Recovers(World({"x=2": [HANG]}))
    _, state = run(plan_of(tmp_path), Line(), cluster)
    assert (state.done["x=2"].status, len(cluster.jobs)) == ("ok", 5)


def test_cancelling_from_outside_finds_jobs_whose_submission_was_never_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, cluster = plan_of(tmp_path), SimulatedCluster(World())
    assert run_dying(plan, cluster, Dying(4), monkeypatch)  # right after the first submission
    assert len(cluster.jobs) == 1
    with Book(plan.folder) as book:
        assert [run.job for run in book.state.open_runs] == [""]
        outcome = Engine(plan, Line(), cluster, book, Teller(5, io.StringIO())).cancel()
    assert (outcome.end, [job.cancelled for job in cluster.jobs.values()]) == ("cancelled", [True])
