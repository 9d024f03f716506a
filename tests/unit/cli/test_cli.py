"""The command line: help with an example, one clear line for every mistake, exit codes that mean something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trackwalker.cli import app
from trackwalker.cli.commands import COMMANDS, load


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["trackwalker", *words])
    with pytest.raises(SystemExit) as end:
        app.main()
    return int(end.value.code or 0)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_an_example(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = [command, "--help"] if command else ["--help"]
    assert call(monkeypatch, *words) == 0
    assert f"Example: trackwalker {command}".rstrip() in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_one_line_of_the_list_and_says_more_by_itself(name: str) -> None:
    listed = COMMANDS[name].help
    assert len(listed) <= 62, "at 80 columns it would be two lines"
    assert listed.endswith(".")
    assert len(load(name).help or "") >= 10


@pytest.mark.starts_processes
def test_only_the_command_that_is_called_is_imported() -> None:
    code = """
import sys
from trackwalker.cli import app
try:
    app.main()
finally:
    print(*sorted({m.partition(".")[0] for m in sys.modules} & {"numpy", "httpx", "pydantic", "hyperscan", "jinja2"}))
    print(*sorted(m for m in sys.modules if m.startswith("trackwalker.") and m.count(".") == 1))
"""

    def imported(*words: str) -> tuple[str, str]:
        run = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        libraries, ours = run.stdout.splitlines()[-2:]
        return libraries, ours

    assert imported("--version") == imported("--help") == ("", "trackwalker.cli trackwalker.errors")
    assert imported("triage", "--help")[0] == "hyperscan numpy pydantic"


def job(workspace: Path, log: str | None, name: str = "77-JAX-x") -> Path:
    folder = workspace / name
    folder.mkdir(parents=True)
    if log is not None:
        (workspace / f"{name}.log").write_text(log)
        (folder / "log").symlink_to(f"../{name}.log")
    return folder


STEP = "0: completed step: 3, seconds: 1.000, TFLOP/s/device: 1.0, Tokens/s/device: 5.0, total_weights: 1, loss: 2.0\n"


@pytest.mark.parametrize(
    ("log", "target", "code", "complaint"),
    [
        (STEP, "78", 2, "no job '78'"),
        (None, "77", 2, "has no log"),
        ("", "77", 2, "is empty"),
        (STEP + "0: completed st", "77", 3, "ends in the middle of line 2"),
        (STEP, "no/such/place", 2, "no such file or directory"),
    ],
)
def test_bad_jobs_get_one_clear_line(
    log: str | None,
    target: str,
    code: int,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job(tmp_path, log)
    assert call(monkeypatch, "diagnose", target, "-w", str(tmp_path), "--json") == code
    out, err = capsys.readouterr()
    assert complaint in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    if code == 3:  # damaged evidence still gives a verdict, and nothing else on stdout
        assert json.loads(out)["schema"] == "trackwalker.verdict/1"
    else:
        assert out == ""


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "tinny"], "did you mean 'tiny'"),
        (["run", "tiny:a:b:c"], "too many ':'"),
        (["run", "tiny", "--", "steps"], "neither key=value"),
        (["run", "tiny", "-n", "0"], "between 1 and"),
        (["run", "tiny", "-n", "four"], "Invalid value for '-n'"),
        (["cancel"], "Missing argument 'JOB'"),
        (["fly"], "No such command"),
        (["demo", "--fault", "flood"], "unknown fault 'flood'"),
    ],
)
def test_usage_errors_are_exit_code_two(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *words) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []  # nothing was created


def test_a_defect_of_ours_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("trackwalker.cli.jobs.list.newest_of", broken)
    assert call(monkeypatch, "jobs", "-w", str(tmp_path)) == app.INTERNAL
    err = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: oops" in err
    assert len(err.strip().splitlines()) == 1


def test_jobs_lists_jobs_and_not_checkpoint_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job(tmp_path, STEP)
    (tmp_path / "llama2-70b" / "checkpoints").mkdir(parents=True)
    assert call(monkeypatch, "jobs", "-w", str(tmp_path), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "trackwalker.jobs/1"
    assert [j["id"] for j in answer["jobs"]] == ["77"]


def test_exit_code_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path, STEP)
    assert folder.is_dir()
    assert call(monkeypatch, "diagnose", "77", "-w", str(tmp_path), "--exit-code") == 0  # not an incident
    capsys.readouterr()
