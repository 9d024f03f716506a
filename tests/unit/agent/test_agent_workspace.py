"""The workspace as an agent sees it: jobs by name, and no way out by path or by link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import make_job, step_line

from trackwalker.agent.texts import logs, stacks
from trackwalker.agent.tools import list_jobs
from trackwalker.agent.workspace import Workspace
from trackwalker.errors import JobNotFoundError, RefusedError, UsageError

SECRET = "the-content-of-a-foreign-file"  # noqa: S105


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    for name in ("8308-JAX-a", "8310-JAX-b"):
        _, log = make_job(tmp_path / "outputs", name)
        log.write_text("".join(f"0: {step_line(step)}\n" for step in range(5)))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text(SECRET)
    return Workspace(tmp_path / "outputs")


def test_a_job_is_named_by_its_id_or_its_beginning(ws: Workspace) -> None:
    assert ws.job("8308").id == ws.job("8308-JAX-a").id == ws.job("8308-J").id == "8308"
    with pytest.raises(JobNotFoundError, match="could be 2 jobs"):
        ws.job("83")
    with pytest.raises(JobNotFoundError, match="did you mean 83"):
        ws.job("8307")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../outside",
        "../../etc/passwd",
        "/etc/passwd",
        "8308-JAX-a/../../outside",
        "~root",
        "..\\x",
        "x" * 300,
    ],
)
def test_a_path_is_no_name(ws: Workspace, name: str) -> None:
    with pytest.raises(RefusedError, match="is a path"):
        ws.job(name)


def test_a_file_of_the_current_folder_is_no_job(ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "outside")
    with pytest.raises(JobNotFoundError):
        ws.job("file")


def test_a_workspace_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no workspace"):
        Workspace(tmp_path / "none")


def _job_folder(outputs: Path, outside: Path) -> None:
    (outputs / "9000-JAX-x").symlink_to(outside)
    (outside / "log").write_text("0: x\n")


def _log(outputs: Path, outside: Path) -> None:
    (outputs / "8308-JAX-a.log").unlink()
    (outputs / "8308-JAX-a.log").symlink_to(outside / "file")


def _log_as_text(outputs: Path, outside: Path) -> None:
    (outputs / "8308-JAX-a" / "log").unlink()
    (outputs / "8308-JAX-a" / "log").write_text("../../outside/file")


def _artifact_as_text(outputs: Path, outside: Path) -> None:
    (outputs / "8308-JAX-a" / "artifact").write_text("../../outside")


def _inside(name: str) -> Callable[[Path, Path], None]:
    def make(outputs: Path, outside: Path) -> None:
        link = outputs / "8308-JAX-a" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside / "file" if "." in name else outside)

    return make


@pytest.mark.parametrize(
    ("make", "job"),
    [
        (_job_folder, "9000"),
        (_log, "8308"),
        (_log_as_text, "8308"),
        (_artifact_as_text, "8308"),
        (_inside("run.json"), "8308"),
        (_inside("prometheus"), "8308"),
        (_inside("ranks/0.log"), "8308"),
        (_inside("rank-1.log"), "8308"),
        (_inside("ray_logs/n1/session_1/logs/worker-1.out"), "8308"),
        (_inside("stacks/i1"), "8308"),
    ],
)
def test_a_link_out_of_the_workspace_is_not_followed(
    ws: Workspace, make: Callable[[Path, Path], None], job: str
) -> None:
    make(ws.root, ws.root.parent / "outside")
    with pytest.raises((RefusedError, JobNotFoundError)):
        logs(ws, job, rank=0)
    assert SECRET not in list_jobs(ws).model_dump_json()


def test_links_inside_the_workspace_and_to_nowhere_are_fine(ws: Workspace) -> None:
    folder = ws.root / "8308-JAX-a"
    (folder / "artifact").symlink_to("/container/outputs/.artifacts/gone")
    (folder / "checkpoints").symlink_to(ws.root.parent / "outside")  # nothing of ours reads it
    assert logs(ws, "8308").lines


@pytest.mark.parametrize("name", ["../log", "/etc/passwd", "i1/../../log", "i1/link", "~/x", "a\0b"])
def test_a_captured_file_is_read_from_its_folder_only(ws: Workspace, name: str) -> None:
    folder = ws.root / "8308-JAX-a" / "stacks" / "i1"
    folder.mkdir(parents=True)
    (folder / "n1.txt").write_text("Thread 1 (idle)\n")
    (folder / "link").symlink_to(ws.root / "8310-JAX-b.log")  # inside the workspace, but not of these stacks
    with pytest.raises(RefusedError):
        stacks(ws, "8308", file=name)
    assert [f.file for f in stacks(ws, "8308").files] == ["i1/n1.txt"]
    assert stacks(ws, "8308", file="i1/n1.txt").lines[0].quote == "“Thread 1 (idle)”"


def test_a_foreign_job_can_be_read_but_not_acted_on(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ws.own_job("8308").id == "8308"
    with pytest.raises(RefusedError, match="not the whole id"):
        ws.own_job("8308-J")
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert logs(ws, "8308").lines
    assert [row.yours for row in list_jobs(ws).jobs] == [False, False]
    with pytest.raises(RefusedError, match="not yours"):
        ws.own_job("8308")
