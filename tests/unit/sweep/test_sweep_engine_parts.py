"""The parts of the sweep engine: policy as data, results from logs, plan, report, and the commands around them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from sweep_line import Line, World, plan_of, run
from sweep_simulated import SimulatedCluster
from triage_logs import CANCEL, ending, header, steps

from trackwalker.cli import app
from trackwalker.cli.sweeps.main import Sweeps
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.sweep import strategies
from trackwalker.sweep.budget import at_most, spent
from trackwalker.sweep.executors.jobs import measure
from trackwalker.sweep.model import Plot, Result, Trial
from trackwalker.sweep.plan import Plan, Setup, find_folder, load_plan
from trackwalker.sweep.policy import may_be_chance, status_of
from trackwalker.sweep.report import report, save, svg
from trackwalker.sweep.report_text import _head
from trackwalker.sweep.state import Run, State

FOUR = Trial("t", "toy", ("node001", "node002", "node003", "node004"))


def measured(folder: Path, text: str, state: str = "failed", trial: Trial = FOUR) -> Result:
    path = folder / "77-JAX-toy.log"
    path.write_text(text)
    return measure(Job("77", path, None), trial, state, "failed with exit code 1")


@pytest.mark.parametrize(
    ("failure", "cause", "status"),
    [
        ("oom-gpu", "oom-gpu", "oom"),
        ("gpu-handle-failed", "oom-gpu", "node-fault"),  # the line knows more than its cause
        ("hang", "collective-hang", "hang"),  # a finding without a line
        ("xid-hardware", "gpu-hardware-fault", "node-fault"),
        ("coordination-lost", "peer-died", "hang"),
        ("xla-compile-fail", "xla-compile-fail", "failed"),  # one trial's doing: it must not end the sweep
        ("somebody-elses", "somebody-elses", "failed"),
    ],
)
def test_what_a_failure_counts_as_stands_with_its_cause_or_its_signature(failure: str, cause: str, status: str) -> None:
    assert status_of(failure, cause) == status


def test_what_may_be_chance() -> None:
    assert [f for f in ("connection-refused", "port-fail", "preempted", "nccl-error") if not may_be_chance(f)] == []
    assert [f for f in ("rendezvous-incomplete", "oom-gpu", "no-figure") if may_be_chance(f)] == []


def test_a_run_that_went_well_is_judged_by_its_steady_steps_only(tmp_path: Path) -> None:
    slow_start = steps(2, seconds=80.0)
    banner = "0: \tUsing (GB) 141.5 / 191.9 (73.7%) on gpu:0\n1: \tUsing (GB) 143.0 / 191.9 (74.5%) on gpu:0\n"
    text = header(steps=40) + banner + slow_start + steps(39, first=3) + ending(0)
    found = measured(tmp_path, text, "completed")
    assert (found.status, found.score, found.step_s, found.memory_gb) == ("ok", 4096.0, 10.0, 143.0)
    assert found.steps > 20
    assert found.low == found.high == 4096.0


def test_a_run_of_first_steps_only_has_no_figure(tmp_path: Path) -> None:
    found = measured(tmp_path, header(steps=3) + steps(2, seconds=80.0) + ending(0), "completed")
    assert (found.status, found.cause, found.score) == ("failed", "no-figure", None)
    assert "give more --steps" in found.why


OOM = "2: jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 85899345920 bytes.\n"
XID = "2: kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("text", "state", "status", "cause"),
    [
        (header() + OOM + ending(), "failed", "oom", "oom-gpu"),
        (header() + steps(20) + ending(), "oom", "oom", "oom-host"),
        (header() + steps(20) + ending(), "node-fail", "failed", "node-failure"),
        (header() + steps(20) + CANCEL, "cancelled", "cancelled", "cancelled"),
        (header() + steps(20) + CANCEL, "preempted", "cancelled", "preempted"),
        ("", "failed", "failed", "failed"),
    ],
    ids=["oom-gpu", "oom-by-slurm", "lost-node-that-nobody-names", "cancelled", "preempted", "no-log"],
)
def test_how_a_job_ended_is_told_by_class_and_scheduler(
    tmp_path: Path, text: str, state: str, status: str, cause: str
) -> None:
    found = measured(tmp_path, text, state)
    assert (found.status, found.cause) == (status, cause)
    assert found.score is None
    assert found.why


def test_a_hardware_error_names_its_node_and_one_of_all_nodes_is_not_a_nodes_fault(tmp_path: Path) -> None:
    found = measured(tmp_path, header() + steps(20) + XID + ending())
    assert (found.status, found.hosts, found.phase) == ("node-fault", ("node003",), "train")
    alone = Trial("t", "toy", ("node007",))
    found = measured(tmp_path, header(nodes=1) + steps(20, nodes=1) + ending(), "node-fail", alone)
    assert (found.status, found.hosts) == ("node-fault", ("node007",))
    everywhere = "".join(XID.replace("2: kernel", f"{rank}: kernel") for rank in range(4))
    found = measured(tmp_path, header() + steps(20) + everywhere + ending())
    assert (found.status, found.hosts) == ("failed", ())


def test_a_plan_comes_back_as_it_was_and_stars_secrets_where_people_read(tmp_path: Path) -> None:
    request = {"model": "tiny", "env": {"HF_TOKEN": "hf_x", "XLA_FLAGS": "--a=1"}, "config": {"steps": "30"}}
    plan = Plan("batch-1", "batch", request, Setup("local", str(tmp_path)), 5.0, 2.5, ["sweep"])
    plan.save()
    assert (plan.folder / "plan.json").stat().st_mode & 0o077 == 0
    assert load_plan(plan.folder) == plan
    shown = json.dumps(plan.shown())
    assert "hf_x" not in shown
    assert "--a=1" in shown
    with pytest.raises(UsageError, match="cannot write"):
        plan.save()  # never over another sweep


def test_a_sweep_is_found_by_its_beginning_or_end_or_as_the_last(tmp_path: Path) -> None:
    for name in ("batch-20260101-000000-abcd", "nodes-20260102-000000-ef01", "batch-20260103-000000-2345"):
        Plan(name, name[:5], {}, Setup("local", str(tmp_path)), 5.0).save()
    assert find_folder("nodes", tmp_path).name == "nodes-20260102-000000-ef01"
    assert find_folder("abcd", tmp_path).name == "batch-20260101-000000-abcd"
    assert find_folder("last", tmp_path).name == "batch-20260103-000000-2345"
    for name, complaint in (("batch", "could be 2 sweeps"), ("flags", "no sweep 'flags'"), ("a/b", "is not a sweep")):
        with pytest.raises(UsageError, match=complaint):
            find_folder(name, tmp_path)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean batch"):
        strategies.build("bach", {})


def test_the_most_a_sweep_can_cost_is_reckoned_from_its_largest_job() -> None:
    wave = [Trial("a", "m", ("n1", "n2"), minutes=30.0), Trial("b", "m", ("n3",), minutes=30.0)]
    assert at_most(Line(), wave).node_hours == 5.0
    assert at_most(Line(), wave).words() == "at most 5 jobs, 5 node-hours (a repeated job comes on top)"


def test_node_hours_are_never_negative(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    trial = Trial("x=1", "m", ("n1",), minutes=30.0)
    running = Run("x=1#1", trial, 1, plan.created, "h", job="7", started=plan.created + 600.0)
    state = State({running.tag: running})
    assert spent(state, plan.created) == 0.0  # another machine's clock
    assert " 0 node-hours" not in _head(plan, state, 5, "")  # it has run since: reckoned until now, not until the plan
    assert "-" not in _head(plan, state, 5, "").partition("at most 5), ")[2].split(" node-hours")[0]


def test_the_report_has_every_job_and_survives_what_logs_say(tmp_path: Path) -> None:
    evil = Result("x=2", "oom", why="<script>| [x](y) \x1b[31m\n# head", cause="oom-gpu", minutes=1.0)
    plan = plan_of(tmp_path)
    _, state = run(plan, Line(), SimulatedCluster(World({"x=2": [evil]})))
    said = report(plan, state, Line())
    assert (said["schema"], said["status"], said["jobs"]) == ("trackwalker.sweep/1", "finished", 5)
    assert [row["trial"]["key"] for row in said["results"]] == ["x=1", "x=2", "x=3", "x=4", "x=5"]
    page = save(plan, state, Line()).read_text()
    assert page.startswith("# x=3 is best\n")
    assert "![the line](plot-1.svg)" in page
    assert "| x=2 | 1002 | n3 |  |  | oom (oom-gpu) | 1 min |" in page
    assert json.loads((plan.folder / "report.json").read_text())["conclusion"]["headline"] == "x=3 is best"
    drawn = ElementTree.parse(plan.folder / "plot-1.svg").getroot()  # noqa: S314
    assert len(drawn.findall(".//{*}circle")) == 4


@pytest.mark.parametrize(
    "plot",
    [
        Plot("one <point>", "x & y", "z", (1.0,), (5.0,)),
        Plot(
            "names", "node", "z", tuple(f"n{i}" for i in range(100)), tuple(float(i) for i in range(100)), marked=(3,)
        ),
        Plot("nothing", "x", "z", (1.0, 2.0), (None, None)),
        Plot("wide", "x", "z", (1.0, 2.0), (1.0, float("nan")), (0.5, None), (1.5, None)),
    ],
    ids=["one-point", "many-names", "nothing-measured", "not-a-number"],
)
def test_every_plot_is_a_picture_that_parses(plot: Plot) -> None:
    assert ElementTree.fromstring(svg(plot)).tag.endswith("svg")  # noqa: S314


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    monkeypatch.setenv("JOB_WORKSPACE", str(tmp_path))
    monkeypatch.setitem(strategies.KINDS, "batch", "sweep_line:build")

    def called(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trackwalker", *words])
        with pytest.raises(SystemExit) as end:
            app.main()
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return called


def test_show_and_list_tell_of_finished_and_of_damaged_sweeps(call: Any, tmp_path: Path) -> None:
    assert call("sweep", "list") == (0, f"no sweep in {tmp_path}\n", "")
    plan = plan_of(tmp_path)
    run(plan, Line(), SimulatedCluster(World()))
    code, out, _ = call("sweep", "show", "last")
    assert (code, out.splitlines()[0]) == (0, "x=3 is best")
    assert "finished; 5 jobs (at most 5), 0.5 node-hours" in out
    code, out, _ = call("sweep", "show", "last", "--json")
    assert (code, json.loads(out)["status"]) == (0, "finished")
    code, out, _ = call("sweep", "show", "last", "--md")
    assert (code, out.startswith("# x=3 is best")) == (0, True)
    (plan.folder / "state.jsonl").write_text("half a re\n")
    code, out, err = call("sweep", "show", "last")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "state.jsonl is damaged: 1 lines cannot be read" in err
    code, out, _ = call("sweep", "list")
    assert (code, len(out.splitlines())) == (0, 1)
    assert "damaged" in out
    (plan.folder / "plan.json").write_text("{")
    code, out, err = call("sweep", "resume", "last")
    assert (code, len(err.splitlines()), "plan.json is damaged" in err) == (2, 1, True)
    rows = json.loads(call("sweep", "list", "--json")[1])["sweeps"]
    assert [(row["status"], row["jobs"]) for row in rows] == [("damaged", 0)]


def test_resume_of_a_finished_sweep_shows_it_and_runs_nothing(call: Any, tmp_path: Path) -> None:
    run(plan_of(tmp_path), Line(), SimulatedCluster(World()))
    code, out, err = call("sweep", "resume", "last")
    assert (code, "is finished already" in err, out.splitlines()[0]) == (0, True, "x=3 is best")
    code, _, err = call("sweep", "cancel", "last")
    assert (code, "is over: nothing to cancel" in err) == (2, True)


def test_a_sweep_asks_before_it_starts_and_shows_its_jobs_when_asked_to(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    here = (
        "sweep",
        "batch",
        "tiny",
        "--on",
        "local",
        "--workspace",
        str(tmp_path),
        "--param",
        "per_device_batch_size=1,8",
    )
    code, out, err = call(*here)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "node-hours" in err
    assert "add --yes to start it, or --dry-run to see its jobs" in err
    code, out, _ = call(*here, "--dry-run", "--json", "--", "_env_HF_TOKEN=hf_secret")
    said = json.loads(out)
    assert (code, said["schema"], said["dry_run"]) == (0, "trackwalker.sweep/1", True)
    assert said["first_wave"][0]["command"][:2] == ["trackwalker", "run"]
    assert "hf_secret" not in out
    code, out, _ = call(*here, "--dry-run")
    assert (code, "nothing is queued" in out) == (0, True)
    assert list(tmp_path.iterdir()) == []
    for words, complaint in (
        (("-N", "4"), "-N: the jobs of a sweep run on the nodes of --nodelist"),
        (("--nodelist", "n1"), "is for --on slurm"),
        (("--dry-run", "--", "stepps=3"), "stepps"),
    ):
        code, _, err = call(*here, *words)
        assert (code, len(err.splitlines())) == (2, 1), err
        assert complaint in err


@pytest.mark.parametrize("name", strategies.KINDS)
def test_every_kind_says_what_it_is_for_and_takes_the_same_options_for_the_same_things(name: str) -> None:
    command = Sweeps().get_command(None, name)
    assert (command.help or "").split("\n\n")[0].endswith(".")
    assert command.epilog == f"Example: trackwalker {command.epilog.partition('trackwalker ')[2]}"
    assert f"sweep {name} " in command.epilog
    options = {option for each in command.params for option in each.opts}
    assert {"--on", "--workspace", "--budget", "--yes", "--dry-run", "--json", "--steps", "--spares"} <= options
