"""Ends of Kubernetes jobs, from answers in the API's documented form: status, wait and the watcher agree."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from command_here import call_here

from trackwalker.job.run import RunRecord
from trackwalker.launch.job_state import Standing, of_pods
from trackwalker.launch.kubernetes.client import Answer, observe

DATA = Path(__file__).parents[2] / "data" / "kubernetes"
ID = "k8s-20261116-120000-ab12"

# state, exit code, reason, node, whether it waits for a person
ENDS: dict[str, tuple[str, int | None, str, str, bool]] = {
    "running": ("running", None, "", "", False),
    "complete": ("completed", 0, "", "", False),
    "exit-code": ("failed", 3, "exit-code", "n2", False),
    "out-of-memory": ("oom", 137, "out-of-memory", "n2", False),
    "deadline": ("timeout", 124, "time-limit", "", False),
    "preempted": ("preempted", 143, "preempted", "n2", False),
    "node-lost": ("node-fail", 1, "node-lost", "n2", False),
    "node-lost-pods-gone": ("node-fail", 1, "node-lost", "", False),
    "evicted": ("failed", 1, "evicted", "n2", False),
    "image": ("pending", None, "image", "n2", True),
    "refused": ("pending", None, "refused", "", True),
    "unschedulable": ("pending", None, "unschedulable", "", False),
    "volume": ("pending", None, "volume", "", False),
    "jobset-complete": ("completed", 0, "", "", False),
    "jobset-failed": ("failed", 3, "exit-code", "n2", False),
    "jobset-failed-jobs-gone": ("failed", 1, "failed-jobs", "", False),
    "jobset-suspended": ("pending", None, "suspended", "", False),
}
WORDS = {
    "deadline": "reached its time limit: Job was active longer than specified deadline",
    "node-lost": "lost n2: Taint manager: deleting due to NoExecute taint",
    "out-of-memory": "ran out of memory on n2: index 1 on n2: OOMKilled, exit code 137",
    "volume": "pending: FailedMount: MountVolume.SetUp failed for volume",
    "refused": "pending: FailedCreate: Error creating: pods",
    "jobset-failed-jobs-gone": "failed: jobset failed due to one or more job failures (first failed job: ",
}


class Recorded:
    """kubectl with these answers; whoever may not read events is told so."""

    def __init__(self, case: str, events: bool = True) -> None:
        self.said, self.events = json.loads((DATA / f"{case}.json").read_text()), events
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], text: str) -> Answer:
        self.asked.append(argv)
        if "events" in argv:
            return (
                Answer(0, json.dumps(self.said["events"]), "") if self.events else Answer(1, "", "events is forbidden")
            )
        return Answer(0, json.dumps(self.said["get"]), "")


def standing(case: str, events: bool = True) -> Standing:
    return of_pods(observe("ml", ID, case.startswith("jobset"), Recorded(case, events)))


def test_every_recorded_answer_has_its_end() -> None:
    assert {path.stem for path in DATA.glob("*.json")} == set(ENDS)


@pytest.mark.parametrize("case", ENDS)
def test_how_a_job_stands(case: str) -> None:
    state, code, reason, node, stuck = ENDS[case]
    seen = standing(case)
    assert (seen.state, seen.exit, seen.reason, seen.nodes, seen.stuck) == (state, code, reason, node, stuck)
    assert seen.ended == (state not in ("running", "pending"))
    assert seen.meaning.startswith(WORDS.get(case, ""))
    assert seen.hosts == (("n2",) if case == "node-lost" else ())


def test_events_are_asked_for_only_where_the_objects_leave_it_open_and_may_be_forbidden() -> None:
    for case in ENDS:
        kubectl = Recorded(case)
        observe("ml", ID, case.startswith("jobset"), kubectl)
        assert (len(kubectl.asked) == 2) == ("events" in kubectl.said), case
        assert ("jobsets" in kubectl.asked[0][2]) == case.startswith("jobset")
    assert standing("refused", events=False).reason == "starting"
    assert standing("node-lost-pods-gone", events=False).state == "failed"


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "case", ["complete", "out-of-memory", "deadline", "node-lost", "preempted", "jobset-failed", "image"]
)
def test_status_wait_and_the_watcher_tell_the_same(case: str, tmp_path: Path) -> None:
    """The commands themselves, with a kubectl on the PATH that gives the recorded answers."""
    workspace, kubectl = tmp_path / "ws", tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(
        f"#!{sys.executable}\nimport json, sys\nsaid = json.load(open({str(DATA / f'{case}.json')!r}))\n"
        "print(json.dumps(said['events' if 'events' in sys.argv else 'get']))\n"
    )
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    env = {**os.environ, "PATH": f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}"}
    workspace.mkdir()
    where = ("-w", str(workspace))
    assert call_here(env, "watch", "--all", "--once", *where).returncode == 0
    folder = workspace / f"{ID}-JAX-llama"
    folder.mkdir()
    RunRecord(
        id=ID, name="JAX-llama", model="llama2-70b", scheduler="k8s", trainer="maxtext", created=0, argv=[], command=[],
        workspace=".", kubernetes={"namespace": "ml", "kind": "JobSet" if "jobset" in case else "Job", "name": "x"},
    ).save(folder / "run.json")  # fmt: skip
    state, code, _, _, stuck = ENDS[case]
    status = json.loads(call_here(env, "status", ID, "--json", *where).stdout)
    assert (status["state"], status["exit"]) == (state, code)
    waited = call_here(env, "wait", ID, "--timeout", "0", *where)
    assert waited.returncode == (1 if stuck else code)
    told = call_here(env, "watch", "--all", "--once", *where).stdout
    assert f"job {ID} (JAX-llama): it {status['meaning']}" in told
    assert (f"    state: {state}\n" in told) == status["ended"]
