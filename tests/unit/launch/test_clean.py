"""Which snapshots may go, and a recorded run once more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.job.run import RunRecord, load_run
from trackwalker.launch.code import snapshot_cleanup as gc
from trackwalker.launch.code.snapshot import Snapshot, take_snapshot
from trackwalker.launch.code.snapshot_cleanup import Stock, sweep, take_stock
from trackwalker.launch.resubmit import again, environment, knobs

pytestmark = pytest.mark.starts_processes

OVER = time.time() - 3 * 24 * 3600


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


def frozen(workspace: Path, text: str, old: bool = True) -> Snapshot:
    """A snapshot of two files, one of them in every snapshot."""
    code = workspace.parent / f"code-{text}"
    code.mkdir(exist_ok=True)
    (code / "own.py").write_text(text)
    (code / "shared.py").write_text("shared")
    taken = take_snapshot(code, workspace)
    if old:
        for path in (taken.path, *taken.added):
            os.utime(path, (OVER, OVER))
    return taken


def never(job_id: str) -> bool:
    return False


def ended(job_id: str) -> bool:
    return True


def states(stock: Stock) -> dict[str, str]:
    return {item.path.name: item.state for item in stock.items}


def submission(workspace: Path, token: str, text: str, file: str = "order.json") -> Path:
    folder = workspace / ".submissions" / token
    folder.mkdir(parents=True)
    (folder / file).write_text(text)
    return folder


def test_only_what_nobody_needs_goes(workspace: Path) -> None:
    kept, lost = frozen(workspace, "kept"), frozen(workspace, "lost")
    (workspace / "12-JAX-a").mkdir()
    (workspace / "12-JAX-a" / "artifact").symlink_to(f"../.artifacts/{kept.hash}")
    stock = take_stock(workspace, never)
    assert states(stock) == {kept.hash: "referenced", lost.hash: "orphan"}
    assert stock.items[[i.path for i in stock.items].index(kept.path)].holders == ("12-JAX-a",)
    assert [blob.read_text() for blob in stock.blobs] == ["lost"]
    assert lost.path.is_dir()  # looking changes nothing
    removed = sweep(workspace, never)
    assert [item.path for item in removed.items] == [lost.path]
    assert removed.blob_bytes == len("lost")
    assert sorted(os.listdir(workspace / ".artifacts")) == sorted([kept.hash, "blobs"])
    assert sorted(p.read_text() for p in kept.path.iterdir()) == ["kept", "shared"]
    assert len(list((workspace / ".artifacts" / "blobs").glob("*/*"))) == 2


@pytest.mark.parametrize("file", ["order.json", "run.json", "manifest.json", "job.sh"])
def test_r12_what_a_pending_job_or_a_manifest_needs_stays(workspace: Path, file: str) -> None:
    taken = frozen(workspace, "queued")
    # No trace of a job: it may wait in a queue, or somebody is to apply the manifest by hand.
    submission(workspace, "20261115_a", f'{{"workdir": "/mnt/x/.artifacts/{taken.hash}"}}', file)
    assert states(take_stock(workspace, ended)) == {taken.hash: "referenced"}
    assert sweep(workspace, ended).items == ()
    assert (taken.path / "own.py").read_text() == "queued"


def test_r12_a_snapshot_just_made_stays(workspace: Path) -> None:
    taken = frozen(workspace, "new", old=False)
    assert states(take_stock(workspace, never)) == {taken.hash: "fresh"}
    assert sweep(workspace, never).items == ()
    assert len(list(taken.path.iterdir())) == 2


def test_r12_an_old_snapshot_that_was_just_taken_again_stays(workspace: Path) -> None:
    taken = frozen(workspace, "twice")
    assert states(take_stock(workspace, never)) == {taken.hash: "orphan"}
    frozen(workspace, "twice", old=False)
    assert states(take_stock(workspace, never)) == {taken.hash: "fresh"}


def test_r12_a_job_that_is_submitted_while_we_clean_keeps_its_code(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = frozen(workspace, "late")
    real = gc.take_stock

    def then_somebody_submits(place: Path, over: gc.Ended, grace_s: float) -> Stock:
        stock = real(place, over, grace_s)
        submission(workspace, "20261115_b", taken.hash)
        return stock

    monkeypatch.setattr(gc, "take_stock", then_somebody_submits)
    assert sweep(workspace, never).items == ()
    assert len(list(taken.path.iterdir())) == 2


def test_r12_a_job_whose_directory_was_deleted_counts_until_it_is_over(workspace: Path) -> None:
    taken = frozen(workspace, "deleted")
    folder = submission(workspace, "20261115_c", taken.hash)
    (folder / "job").symlink_to("../../77-JAX-a")
    os.utime(folder, (OVER, OVER))
    asked: list[str] = []

    def running(job_id: str) -> bool:
        asked.append(job_id)
        return False

    assert states(take_stock(workspace, running)) == {taken.hash: "referenced"}
    assert asked == ["77"]
    assert states(take_stock(workspace, ended)) == {taken.hash: "orphan", "20261115_c": "orphan"}
    sweep(workspace, ended)
    assert not folder.exists()  # its order held the secrets
    assert not taken.path.exists()
    assert list((workspace / ".artifacts" / "blobs").glob("*/*")) == []


def test_a_submission_with_its_job_directory_is_left_alone(workspace: Path) -> None:
    folder = submission(workspace, "20261115_d", "{}")
    (workspace / "78-JAX-a").mkdir()
    (folder / "job").symlink_to("../../78-JAX-a")
    assert take_stock(workspace, ended).items == ()
    (workspace / "78-JAX-a").rename(workspace / "78-JAX-a-TGS_812")  # as upstream's tagger does with finished jobs
    (workspace / "78-JAX-a-TGS_812" / "run.json").touch()
    assert take_stock(workspace, ended).items == ()


def test_upstreams_artifacts_are_known_too(workspace: Path) -> None:
    store = workspace / ".artifacts"
    for name in ("artifact_20260101_120000_ab12", "artifact_20260102_120000_ab12", "artifact_20260103-120000_ab12"):
        (store / name / "sub").mkdir(parents=True)
        os.utime(store / name, (OVER, OVER))
    (workspace / "5-JAX-a").mkdir()
    (workspace / "5-JAX-a" / "artifact").symlink_to(store / "artifact_20260101_120000_ab12" / "sub")
    submission(workspace, "x", "cd /ws/.artifacts/artifact_20260103-120000_ab12 && true", "manifest.yaml")
    assert list(states(take_stock(workspace, never)).values()) == ["referenced", "orphan", "referenced"]


def test_what_a_killed_submitter_left_goes_after_a_day(workspace: Path) -> None:
    store = workspace / ".artifacts"
    (store / ".tmp-tree").mkdir(parents=True)
    (store / ".tmp-file").write_text("half")
    (store / ".tmp-now").write_text("half")
    for name in (".tmp-tree", ".tmp-file"):
        os.utime(store / name, (OVER, OVER))
    sweep(workspace, never)
    assert os.listdir(store) == [".tmp-now"]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "trackwalker", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_is_dry_by_default(workspace: Path) -> None:
    lost = frozen(workspace, "lost")
    done = command("clean", "--workspace", str(workspace))
    assert done.stdout.splitlines()[0] == f"ORPHAN      .artifacts/{lost.hash}"
    assert "--yes" in done.stdout
    assert lost.path.is_dir()
    done = command("clean", "--workspace", str(workspace), "--yes", "--json")
    assert json.loads(done.stdout)["removed"] == [str(lost.path)]
    assert not lost.path.exists()
    gone = command("clean", "--workspace", str(workspace / "nowhere"))
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)


def record(workspace: Path, *argv: str, **more: object) -> RunRecord:
    given = {"id": "12", "name": "JAX-a", "model": "a", "scheduler": "slurm", "trainer": "maxtext", "created": 1.0}
    return RunRecord.model_validate({**given, "argv": list(argv), "command": [], "workspace": str(workspace), **more})


def test_the_same_words_again_with_an_absolute_workspace(workspace: Path) -> None:
    place = ["--workspace", str(workspace)]
    run = record(workspace, "run", "tiny", "-n", "4", "-w", "out", "--observe", "--", "steps=3", "-w")
    assert again(run) == ["run", "tiny", "-n", "4", "--observe", *place, "--", "steps=3", "-w"]
    for words in (["--workspace=out"], ["--workspace", "out"]):
        assert again(record(workspace, "submit", "70b", *words)) == ["submit", "70b", *place]
    # sbatch's own -w names nodes.
    assert again(record(workspace, "submit", "70b", "-w", "n[1-2]")) == ["submit", "70b", "-w", "n[1-2]", *place]
    with pytest.raises(UsageError, match="does not say how"):
        again(record(workspace))


def test_the_code_is_the_snapshot(workspace: Path) -> None:
    taken = frozen(workspace, "first")
    asked = record(workspace, "submit", "70b", "--code", ".", "--", "a=1", snapshot=taken.hash)
    words = again(asked)
    assert words == ["submit", "70b", "--workspace", str(workspace), "--code", str(taken.path), "--", "a=1"]
    # Freezing that folder again gives the very same tree.
    same = take_snapshot(taken.path, workspace)
    assert (same.hash, same.created, same.files) == (taken.hash, False, 2)
    with pytest.raises(UsageError, match="is gone"):
        again(record(workspace, "submit", "70b", snapshot="f" * 64))


def test_secrets_have_to_be_given_again(workspace: Path) -> None:
    asked = record(workspace, "submit", "70b", "--", "hf_access_token=***", "_env_HF_TOKEN=***", "steps=2")
    with pytest.raises(UsageError, match="hf_access_token=… _env_HF_TOKEN=…") as caught:
        again(asked)
    assert "\n" not in str(caught.value)
    words = again(asked, ["_env_HF_TOKEN=a=b", "hf_access_token=c d"])
    assert words[-3:] == ["hf_access_token=c d", "_env_HF_TOKEN=a=b", "steps=2"]
    with pytest.raises(UsageError, match="'steps' is no secret"):
        again(asked, ["_env_HF_TOKEN=a", "hf_access_token=c", "steps=3"])


def test_knobs_of_then_not_of_now(workspace: Path) -> None:
    then = knobs({"DOCKER_IMAGE": "a:1", "MAXTEXT_PATCH_BRANCH": "", "HOME": "/h", "RAY": "\udcff"})
    assert then == {"DOCKER_IMAGE": "a:1", "MAXTEXT_PATCH_BRANCH": "", "RAY": "\\xff"}
    asked = record(workspace, "submit", "70b", knobs=then)
    now = environment(asked, {"PATH": "/bin", "STAGE_TIMEOUTS": "train:1", "DOCKER_IMAGE": "b:2"})
    assert now == {"PATH": "/bin", **then}


def test_resubmit_prints_and_hides(workspace: Path) -> None:
    job = workspace / "12-JAX-a"
    job.mkdir()
    (workspace / "12-JAX-a.log").write_text("x\n")
    (job / "log").symlink_to("../12-JAX-a.log")
    asked = record(workspace, "submit", "70b", "--", "_env_HF_TOKEN=***", "x=a b", knobs={"DOCKER_IMAGE": "a b"})
    asked.save(job / "run.json")
    assert load_run(job / "run.json") == asked
    words = ["resubmit", "12", "--workspace", str(workspace), "--dry-run"]
    assert command(*words).returncode == 2
    done = command(*words, "--", "_env_HF_TOKEN=hunter2")
    place = f"--workspace {workspace}"
    assert done.stdout == f"DOCKER_IMAGE='a b' trackwalker submit 70b {place} -- '_env_HF_TOKEN=***' 'x=a b'\n"
    assert "takes the code as it is now" in done.stderr
    assert "hunter2" not in done.stderr
