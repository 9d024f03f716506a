"""The code as it was at submit."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.launch.code import store as store_module
from trackwalker.launch.code.snapshot import Snapshot, discard, take_snapshot
from trackwalker.launch.code.sources import is_secret_file
from trackwalker.launch.code.store import Store, remove_tree

pytestmark = pytest.mark.starts_processes


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "train.py").write_text("print('one')\n")
    (root / "pkg" / "copy.py").write_text("print('one')\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "here").symlink_to("pkg/train.py")
    (root / ".gitignore").write_text("*.o\nbuild/\n")
    (root / "pkg" / "junk.o").write_text("x")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "outputs"


def names(tree: Path) -> set[str]:
    return {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_symlink() or p.is_file()}


def everything(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())


def test_what_git_knows_and_does_not_ignore_is_copied(code: Path, workspace: Path) -> None:
    (code / "new.py").write_text("untracked\n")
    (code / "pkg" / "copy.py").unlink()  # still tracked
    odd = os.fsencode(code) + b"/odd \xff\n$name"
    with open(odd, "wb"):
        pass
    taken = take_snapshot(code, workspace)
    assert taken.path == workspace / ".artifacts" / taken.hash
    assert names(taken.path) == {
        ".gitignore",
        "here",
        "new.py",
        os.fsdecode(b"odd \xff\n$name"),
        "pkg/train.py",
        "run.sh",
    }
    assert taken.files == 6
    assert os.readlink(taken.path / "here") == "pkg/train.py"


def test_the_tree_is_read_only_and_keeps_what_can_be_executed(code: Path, workspace: Path) -> None:
    tree = take_snapshot(code, workspace).path
    modes = {str(p.relative_to(tree)): stat.S_IMODE(p.lstat().st_mode) for p in tree.rglob("*") if not p.is_symlink()}
    assert modes == {".gitignore": 0o444, "pkg": 0o555, "pkg/copy.py": 0o444, "pkg/train.py": 0o444, "run.sh": 0o555}
    assert stat.S_IMODE(tree.stat().st_mode) == 0o555


def test_r10_an_edit_after_submit_does_not_reach_a_queued_job(code: Path, workspace: Path) -> None:
    first = take_snapshot(code, workspace)
    with (code / "pkg" / "train.py").open("a") as f:  # the same inode, as many editors write
        f.write("print('two')\n")
    (code / "run.sh").unlink()
    assert (first.path / "pkg" / "train.py").read_text() == "print('one')\n"
    assert (first.path / "run.sh").exists()
    second = take_snapshot(code, workspace)
    assert second.hash != first.hash
    assert len(second.added) == 1  # one changed file costs one file


def test_the_same_code_is_stored_once(code: Path, workspace: Path) -> None:
    first = take_snapshot(code, workspace)
    assert first.created
    assert len(first.added) == 3  # two of the four files are equal
    before = {p: p.lstat().st_ino for p in everything(workspace)}
    again = take_snapshot(code, workspace)
    assert (again.hash, again.created, again.added, again.added_bytes) == (first.hash, False, (), 0)
    assert {p: p.lstat().st_ino for p in everything(workspace)} == before
    assert (first.path / "pkg/train.py").stat().st_ino == (first.path / "pkg/copy.py").stat().st_ino


def test_mode_name_and_link_are_part_of_the_hash(code: Path, workspace: Path) -> None:
    hashes = {take_snapshot(code, workspace).hash}
    (code / "run.sh").chmod(0o644)
    hashes.add(take_snapshot(code, workspace).hash)
    (code / "run.sh").rename(code / "walk.sh")
    hashes.add(take_snapshot(code, workspace).hash)
    (code / "here").unlink()
    (code / "here").symlink_to("walk.sh")
    hashes.add(take_snapshot(code, workspace).hash)
    assert len(hashes) == 4


def test_secrets_are_left_out_and_named(code: Path, workspace: Path) -> None:
    (code / ".env").write_text("HF_TOKEN=hf_abcdef")
    (code / "container_env.local.sh").write_text("DOCKER_TOKEN=x")
    (code / "pkg" / "ID_RSA").write_text("key")
    git(code, "add", "-f", ".")  # even where somebody committed them
    taken = take_snapshot(code, workspace)
    assert set(taken.left_out) == {".env", "container_env.local.sh", "pkg/ID_RSA"}
    assert not set(taken.left_out) & names(taken.path)


@pytest.mark.parametrize("name", ["a/.env.prod", "x.pem", "id_ed25519", ".netrc", "kubeconfig", "a/credentials.json"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_file(name)


@pytest.mark.parametrize("name", [".env.example", "id_rsa.pub", "tokenizer.py", "environment.yml", "keys.py", "env.sh"])
def test_names_that_are_no_secrets(name: str) -> None:
    assert not is_secret_file(name)


def test_links_that_leave_the_tree_are_named(code: Path, workspace: Path) -> None:
    (code / "data").symlink_to("/datasets")
    (code / "pkg" / "up").symlink_to("../../elsewhere")
    (code / "pkg" / "back").symlink_to("../run.sh")
    assert take_snapshot(code, workspace).outside == ("data", "pkg/up")


def test_a_workspace_inside_the_code_is_no_code(code: Path) -> None:
    workspace = code / "outputs"
    first = take_snapshot(code, workspace)
    (workspace / "1-JAX-a.log").write_text("log")
    assert take_snapshot(code, workspace).hash == first.hash
    with pytest.raises(UsageError, match="workspace is the code folder"):
        take_snapshot(code, code)


def test_a_folder_without_git(tmp_path: Path, workspace: Path) -> None:
    root = tmp_path / "plain"
    for name in ("a.py", "sub/b.py", ".venv/c.py", "__pycache__/d.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "dir").symlink_to("sub")
    os.mkfifo(root / "pipe")
    assert names(take_snapshot(root, workspace).path) == {"a.py", "sub/b.py", "dir"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no code"):
        take_snapshot(tmp_path / "empty", workspace)


def test_repositories_inside_the_repository_come_along(code: Path, workspace: Path) -> None:
    inner = code / "vendor"
    inner.mkdir()
    (inner / "lib.py").write_text("lib")
    (inner / "skip.tmp").write_text("x")
    (inner / ".gitignore").write_text("*.tmp\n")
    git(inner, "init", "-q")
    taken = names(take_snapshot(code, workspace).path)
    assert {"vendor/lib.py", "vendor/.gitignore"} <= taken
    assert "vendor/skip.tmp" not in taken


def test_a_damaged_repository_is_refused_rather_than_copied_whole(code: Path, workspace: Path) -> None:
    (code / ".git" / "HEAD").write_text("nonsense")
    with pytest.raises(UsageError, match="git cannot list"):
        take_snapshot(code, workspace)
    assert everything(workspace) == []


def test_r11_a_failed_snapshot_leaves_nothing(code: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.link, []

    def full_disk(source: Path, to: bytes) -> None:
        calls.append(to)
        if len(calls) == 5:  # the blobs are written, the tree is half made
            raise OSError(28, "No space left on device", os.fsdecode(to))
        real(source, to)

    monkeypatch.setattr(store_module.os, "link", full_disk)
    with pytest.raises(UsageError, match="No space left on device"):
        take_snapshot(code, workspace)
    assert len(calls) == 5
    assert everything(workspace) == []


def test_r11_a_failed_snapshot_leaves_earlier_ones_whole(
    code: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_snapshot(code, workspace)
    before = everything(workspace)
    (code / "more.py").write_text("more")
    monkeypatch.setattr(os, "rename", lambda a, b: (_ for _ in ()).throw(OSError(5, "Input/output error", str(b))))
    with pytest.raises(UsageError, match="Input/output error"):
        take_snapshot(code, workspace)
    assert everything(workspace) == before


def test_r11_a_snapshot_whose_job_was_refused_can_be_taken_back(code: Path, workspace: Path) -> None:
    discard(take_snapshot(code, workspace))
    assert everything(workspace) == []
    kept = take_snapshot(code, workspace)
    discard(take_snapshot(code, workspace))  # was there before
    assert kept.path.is_dir()
    os.utime(kept.path, (1, 1))  # somebody else has taken it since
    discard(kept)
    assert names(kept.path)


def test_submitters_at_the_same_time_share_one_tree(code: Path, workspace: Path) -> None:
    for n in range(40):
        (code / f"f{n}.py").write_text(f"{n}")
    found: list[Snapshot] = []
    threads = [threading.Thread(target=lambda: found.append(take_snapshot(code, workspace))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({s.hash for s in found}) == 1
    assert sum(s.created for s in found) == 1
    assert len(found) == 6
    assert names(found[0].path) == {*(f"f{n}.py" for n in range(40)), ".gitignore", "here", "run.sh"} | {
        "pkg/train.py",
        "pkg/copy.py",
    }
    left = [p.name for p in (workspace / ".artifacts").iterdir()]
    assert sorted(left) == sorted([found[0].hash, "blobs"])


def test_a_blob_that_vanishes_meanwhile_is_copied_again(
    code: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = take_snapshot(code, workspace)
    remove_tree(first.path)
    real = Store.link

    def cleaned_just_now(self: Store, digest: str, executable: bool, to: bytes, source: bytes) -> None:
        monkeypatch.setattr(Store, "link", real)
        self.blob(digest, executable).unlink()
        real(self, digest, executable, to, source)

    monkeypatch.setattr(Store, "link", cleaned_just_now)
    assert take_snapshot(code, workspace).hash == first.hash
    assert names(first.path)


def test_without_hard_links_files_are_copied(code: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, to: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(store_module.os, "link", refuse)
    tree = take_snapshot(code, workspace).path
    assert (tree / "pkg" / "train.py").read_text() == "print('one')\n"
    assert stat.S_IMODE((tree / "run.sh").stat().st_mode) == 0o555
    assert [p.name for p in (workspace / ".artifacts").iterdir() if p.name.startswith(".tmp")] == []
