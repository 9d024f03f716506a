"""The commits of a model sweep: their frozen code, and what the command refuses before anybody is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trackwalker.cli import app
from trackwalker.errors import UsageError
from trackwalker.sweep.models.history import ALIKE
from trackwalker.sweep.models.request import Asked, find_commits, freeze, request_of

pytestmark = pytest.mark.starts_processes


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    for words in ("one", "two"):
        (place / "code.py").write_text(f"words = '{words}'\n")
        git(place, "add", "-A")
        git(place, "commit", "-q", "-m", f"say {words}")
    return place


def git(place: Path, *words: str) -> str:
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(place), *who, *words], check=True, capture_output=True, text=True).stdout


def test_a_frozen_commit_has_its_own_files_whatever_the_working_tree_holds(repository: Path, tmp_path: Path) -> None:
    (repository / "code.py").write_text("words = 'edited'\n")
    (repository / "new.py").touch()
    first, second = find_commits(repository, ["main~1", "main"])
    assert first.subject == "say one"
    folders = [freeze(repository, commit, tmp_path / "sweeps") for commit in (first, second, first)]
    assert [(folder / "code.py").read_text() for folder in folders[:2]] == ["words = 'one'\n", "words = 'two'\n"]
    assert folders[0] == folders[2]
    assert not (folders[1] / "new.py").exists()
    assert sorted(p.name for p in (tmp_path / "sweeps" / "code").iterdir()) == sorted([first.sha, second.sha])


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (["main", "no-such"], "'no-such' is no commit"),
        (["main", "HEAD"], "the same commit"),
        (["--output=x"], "is no commit"),
    ],
)
def test_an_unknown_commit_is_refused(repository: Path, names: list[str], wrong: str, tmp_path: Path) -> None:
    asked = Asked(tmp_path / "ws", "n1", ["tiny:1"], names, repository, setup=dict.fromkeys(ALIKE))
    with pytest.raises(UsageError, match=wrong):
        request_of(asked)
    assert not (tmp_path / "ws").exists()


def test_a_folder_without_git_has_no_commits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no commit of .*: not a git repository"):
        find_commits(tmp_path, ["main"])


def test_a_commit_with_submodules_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / ".gitmodules").write_text('[submodule "x"]\n')
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "more")
    with pytest.raises(UsageError, match="has submodules"):
        freeze(repository, find_commits(repository, ["main"])[0], tmp_path)
    assert not list((tmp_path / "code").iterdir())


def test_a_dry_run_writes_no_code(repository: Path, tmp_path: Path) -> None:
    asked = Asked(tmp_path / "ws", "n1", ["tiny:1"], ["main"], repository, setup=dict.fromkeys(ALIKE))
    made = request_of(asked, dry_run=True)
    assert not (tmp_path / "ws").exists()
    request_of(asked)
    assert (Path(made["codes"][0]["code"]) / "code.py").is_file()


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["n[1-2]/n2", "--models", "tiny:1", "tiny-moe:1"], "the node sets overlap: n2"),
        (["n1", "--models", "tiny:1", "tiny-moe:2"], "too few nodes for tiny-moe/2N"),
        (["n1", "--models", "tiny:1", "--commits", "main~1", "nothing"], "'nothing' is no commit"),
        (["n1", "--models=tiny:1", "--", "enable_checkpointing=true"], "there is no checkpoint directory"),
        (["--models", "tiny:1"], "which nodes?"),
        (["n1", "--nodelist", "n1"], "given twice"),
        (["--on", "local"], "this machine is one node"),
    ],
    ids=lambda words: None if isinstance(words, str) else words[-1],
)
def test_the_command_refuses_before_it_asks_the_scheduler(
    words: list[str], wrong: str, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("trackwalker.launch.slurm.client.Slurm._call", None)  # nobody may be asked
    before = sorted(repository.iterdir())
    monkeypatch.setattr(sys, "argv", ["trackwalker", "sweep", "models", *words])
    with pytest.raises(SystemExit) as end:
        app.main()
    assert end.value.code == 2
    assert wrong in capsys.readouterr().err
    assert sorted(repository.iterdir()) == before
