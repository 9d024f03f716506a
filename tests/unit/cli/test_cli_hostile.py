"""Every command that reads, on job directories in which one file is not what it should be: one line at most, no hang.

All file-level cases run here, and a sample of the fields; `test_cli_hostile_all.py` (long) runs all in every command.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from types import FrameType

import pytest
from command_here import call_here
from hostile_jobs import (
    DOCUMENTS,
    ID,
    JOURNALS,
    WORKSPACE_FILES,
    WRONG,
    Spoil,
    events,
    incident,
    make_job,
    paths_in,
    spoil_file,
    spoilt,
)

LONGEST_S = 20
JOBS, STATUS, TRIAGE = ["jobs"], ["status", ID], ["triage", ID]
READERS = {
    "events.jsonl": (JOBS, STATUS, TRIAGE, ["tunnel", ID]),
    "progress.jsonl": (JOBS, TRIAGE),
    "run.json": (JOBS, STATUS, TRIAGE, ["logs", ID, "-n", "2"], ["resubmit", ID, "--dry-run"]),
    "agent/state.json": (JOBS, STATUS, TRIAGE, ["tunnel", ID]),
    WORKSPACE_FILES[0]: (["nodes"],),
}
OTHERS = (["tunnel", ID], JOBS, ["tsdb", "list"], ["clean"])
EVERYTHING = (JOBS, ["jobs", "--json"], STATUS, ["nodes"], ["logs", ID, "-n", "2"], ["tunnel", ID], ["clean"],
              ["resubmit", ID, "--dry-run"], ["tsdb", "list"], TRIAGE, ["triage", "--all"], ["diagnose", ID],
              ["resume", ID], ["perf", ID], ["ask", f"why did {ID} fail"], ["shell", ID, "--dry-run"],
              ["watch", "--all", "--once"], ["rank-tails", ID], ["files", ID], ["changed", ID], ["metrics", ID],
              ["compare", ID, ID], ["wait", ID, "--timeout", "0.1"], ["rm", ID])  # fmt: skip
FILES = (*JOURNALS, *DOCUMENTS, *WORKSPACE_FILES)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """A command that waits for ever fails its test instead of stopping the suite."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the command does not end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ask(workspace: Path, words: list[str]) -> CompletedProcess[str]:
    """The command in that workspace; fails where it ends in an error of ours or does not end."""
    env = {**os.environ, "TRACKWALKER_DEBUG": "1", "COLUMNS": "100", "HOME": str(workspace)}
    with limited(LONGEST_S):
        done = call_here(env, *words, "-w", str(workspace))
    # `wait` hands on the code of the job, or says that it still runs (75); a defect of ours would be raised here.
    assert words[0] == "wait" or done.returncode in (0, 1, 2, 3, 69), (words, done)
    errors = [line for line in done.stderr.splitlines() if "damaged evidence" not in line]
    assert len(errors) <= 2, (words, done.stderr)
    return done


def place(workspace: Path, name: str) -> Path:
    return workspace / name if name in WORKSPACE_FILES else workspace / f"{ID}-JAX-tiny" / name


def field_cases() -> Iterator[tuple[str, str]]:
    """File and content, one field of it spoilt."""
    for name in JOURNALS:
        lines = events() if name == "events.jsonl" else [{"v": 1, "t": 1.0, "rank": 0, "phase": "train", "step": 3,
                                                          "seconds": 1.0, "loss": 2.0}]  # fmt: skip
        for at, record in enumerate(lines):
            for path in paths_in(record):
                for value in WRONG:
                    whole = [json.dumps(other) for other in lines]
                    whole[at] = spoilt(record, path, value)
                    yield name, "\n".join(whole) + "\n"
    for path in paths_in({"v": 1, **incident()}):
        for value in WRONG:
            yield WORKSPACE_FILES[0], spoilt({"v": 1, **incident()}, path, value) + "\n"


def document_cases(folder: Path) -> Iterator[tuple[str, str]]:
    for name in DOCUMENTS:
        document = json.loads((folder / name).read_text())
        for path in paths_in(document):
            for value in WRONG:
                yield name, spoilt(document, path, value)


@pytest.mark.parametrize("how", [pytest.param(spoil, id=name) for name, spoil in spoil_file()])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_file(name: str, how: Spoil, tmp_path: Path) -> None:
    make_job(tmp_path)
    how(place(tmp_path, name))
    for words in READERS.get(name, OTHERS):
        ask(tmp_path, words)


def test_fields_of_the_wrong_kind(tmp_path: Path) -> None:
    folder = make_job(tmp_path)
    cases = [*field_cases(), *document_cases(folder)]
    for name, text in random.Random(29).sample(cases, 40):
        path = place(tmp_path, name)
        before = path.read_text()
        path.write_text(text)
        for words in READERS.get(name, OTHERS[:1]):
            ask(tmp_path, words)
        path.write_text(before)


def test_the_job_itself_is_read(tmp_path: Path) -> None:
    make_job(tmp_path)
    assert "failed" in ask(tmp_path, ["jobs"]).stdout
    assert "failed with exit code 1" in ask(tmp_path, ["status", ID]).stdout
    assert "n1" in ask(tmp_path, ["nodes"]).stdout
    assert "step 29" in ask(tmp_path, ["triage", ID]).stdout
