"""Every way in which a job ends on a real Slurm with a real slurmdbd: all commands give one answer, and it is true.

With our agent around the trainer (`submit`), and for a user's own batch script with a plain Python trainer (`own`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import slurm_accounting
from command_here import call_here
from endings import CASES, CONF, PARTITIONS, PROLOG, Case, Started, let_in, play
from slurm_cluster import SlurmCluster, need_slurm, no_memory_limits

from trackwalker.launch.ledger import suspects

CORE = [case for case in CASES if case.name in ("fail", "scancel")]
# How the status of a run reads that ended so.
STATUS = {
    "completed": "completed", "failed": "failed", "oom": "failed", "node-fail": "failed",
    "cancelled": "cancelled", "timeout": "cancelled", "preempted": "cancelled",
}  # fmt: skip
pytestmark = [
    pytest.mark.disturbed_by_load(reason="Slurm misses a node and a time limit after real seconds"),
    pytest.mark.timeout(600),
]


@dataclass
class Told:
    """The jobs of one matrix, and what every command said of each."""

    jobs: dict[str, Started]
    rows: dict[str, dict[str, Any]]
    said: dict[tuple[str, str], Any] = field(default_factory=dict)
    watched: str = ""
    suspects: set[str] = field(default_factory=set)


def ask_all(cluster: SlurmCluster, workspace: Path, jobs: dict[str, Started]) -> Told:
    where = ("-w", str(workspace))
    watched = call_here(cluster.env, "watch", "--all", "--once", *where).stdout
    rows = json.loads(call_here(cluster.env, "jobs", "--json", *where).stdout)["jobs"]
    told = Told(jobs, {row["id"]: row for row in rows})
    for name, it in jobs.items():
        for command in ("status", "triage", "diagnose"):
            done = call_here(cluster.env, command, it.id, "--json", *where)
            told.said[name, command] = json.loads(done.stdout) if done.returncode == 0 else done.stderr
        told.said[name, "wait"] = call_here(cluster.env, "wait", it.id, "--timeout", "0", *where).returncode
    call_here(cluster.env, "nodes", *where)
    told.suspects = {suspect.host for suspect in suspects(workspace)}
    told.watched = watched
    return told


def begin_watch(cluster: SlurmCluster, workspace: Path) -> None:
    """Somebody watches from now on: what ends later is news."""
    assert call_here(cluster.env, "watch", "--all", "--once", "-w", str(workspace)).returncode == 0


def check(told: Told, case: Case) -> None:
    it = told.jobs[case.name]
    status = told.said[case.name, "status"]
    assert (status["state"], status["exit"]) == (case.state, case.exit), status
    assert told.rows[it.id]["state"] == case.state
    bad = None if case.bad is None else it.nodes[case.bad]
    check_watch(told, case, it)
    if case.state not in STATUS or not it.log.exists():
        assert status["meaning"] in told.said[case.name, "triage"] + " "
        assert status["meaning"] in told.said[case.name, "diagnose"] + " "
        assert told.said[case.name, "wait"] == 1  # it waits for a person, or failed
        return
    assert told.said[case.name, "wait"] == case.exit
    triage, verdict = told.said[case.name, "triage"], told.said[case.name, "diagnose"]
    assert (triage["status"], verdict["status"]) == (STATUS[case.state],) * 2, triage["summary"]
    roots = [cause for cause in verdict["causes"] if cause["role"] == "root"]
    if case.cause:
        assert triage["primary"]["cause"] in case.cause, f"{triage['summary']}\n{it.text[-3000:]}"
        assert roots[0]["cause"] in case.cause, verdict["summary"]
    else:
        assert triage["primary"] is None
        assert roots == []
    if bad is not None:
        assert (bad in status["meaning"], triage["primary"]["hosts"], roots[0]["hosts"]) == (True, [bad], [bad])
        assert bad in told.suspects
    healthy = {node for node in it.nodes if node != bad}
    if case.state == "node-fail":
        assert not healthy & told.suspects, "a survivor is blamed"
    last = re.findall(r"^  Status: \w+ \(exit (\d+)\)", it.text, re.MULTILINE)
    if it.mode == "submit" and last:
        assert int(last[-1]) == case.exit, it.text[-600:]
    if case.by:
        assert f"by {case.by} " in status["meaning"]
        assert triage["accounting"]["by"]


def check_watch(told: Told, case: Case, it: Started) -> None:
    """The watcher tells the end (or what the job waits for) in the same words, and a first failure once."""
    said = told.watched
    meaning = re.escape(told.said[case.name, "status"]["meaning"])
    if case.state in ("pending", "launch-failed"):
        assert re.search(rf"job {it.id} \([^)\n]*\): it {meaning}\n", said), said
        assert not re.search(rf"job {it.id} \([^)\n]*\): it [^\n]*\n    state:", said)
        return
    ends = re.findall(rf"job {it.id} \([^)\n]*\): it ([^\n]*)\n(?:    [^\n]*\n)*?    state: (\S+)", said)
    assert [state for _, state in ends] == [case.state], said
    assert re.fullmatch(meaning, ends[0][0]), ends
    assert len(re.findall(rf"job {it.id} \([^)\n]*\): rank [^\n]* failed first", said)) <= 1


def matrix(tmp_path: Path, mode: str) -> Iterator[Told]:
    need_slurm()
    if why := slurm_accounting.missing() or no_memory_limits():
        pytest.skip(why)
    cases = [case for case in CASES if mode in case.modes]
    workspace, mark = tmp_path / "outputs", tmp_path / "bad"
    workspace.mkdir()
    with SlurmCluster(
        1 + sum(case.nodes for case in cases), accounting=True, conf=CONF, partitions=PARTITIONS,
        prolog=PROLOG.format(mark=mark), slurmd_timeout=5, memory_mb=1500,
    ) as cluster:  # fmt: skip
        let_in(cluster)
        begin_watch(cluster, workspace)
        jobs = play(cases, cluster, workspace, mode, mark)
        time.sleep(6.0)  # the wait is the subject: Slurm tells its accounting, and ends steps, some seconds later
        yield ask_all(cluster, workspace, jobs)


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    yield from matrix(tmp_path_factory.mktemp("submit"), "submit")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    yield from matrix(tmp_path_factory.mktemp("own"), "own")


@pytest.mark.long(reason="twenty jobs that end on Slurm's own clocks, with a slurmdbd and its database")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_end_of_a_submitted_job(case: Case, submitted: Told) -> None:
    check(submitted, case)


@pytest.mark.long(reason="sixteen jobs that end on Slurm's own clocks, with a slurmdbd and its database")
@pytest.mark.parametrize("case", [c for c in CASES if "own" in c.modes], ids=lambda case: case.name)
def test_every_end_of_a_users_own_script(case: Case, own: Told) -> None:
    check(own, case)


@pytest.mark.parametrize("mode", ["submit", "own"])
def test_the_ends_that_everybody_meets(mode: str, slurm: SlurmCluster, tmp_path: Path) -> None:
    """Without slurmdbd: the controller alone is asked."""
    workspace = tmp_path / "outputs"
    workspace.mkdir()
    begin_watch(slurm, workspace)
    jobs = play(CORE, slurm, workspace, mode, tmp_path / "bad")
    told = ask_all(slurm, workspace, jobs)
    for case in CORE:
        check(told, case)


def test_a_controller_that_does_not_answer_ends_no_job(tmp_path: Path, slurm: SlurmCluster) -> None:
    workspace = tmp_path / "outputs"
    workspace.mkdir()
    (workspace / "71-own.log").write_text("completed step: 1, seconds: 0.1, loss: 2.0\n")
    env = {**slurm.env, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    conf = re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", slurm.conf.read_text())
    conf = re.sub(r"MessageTimeout=\d+", "MessageTimeout=2", conf)  # so long a client of Slurm tries again
    (tmp_path / "slurm.conf").write_text(conf)
    done = call_here(env, "status", "71", "--json", "-w", str(workspace))
    assert (done.returncode, json.loads(done.stdout)["state"], json.loads(done.stdout)["ended"]) == (
        69,
        "indeterminate",
        False,
    )
    rows = json.loads(call_here(env, "jobs", "--json", "-w", str(workspace)).stdout)["jobs"]
    assert [row["state"] for row in rows] == ["indeterminate"]
