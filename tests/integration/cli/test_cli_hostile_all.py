"""Every field of every file of a job with every wrong value, in every command that reads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hostile_jobs import ID, make_job
from test_cli_hostile import EVERYTHING, ask, document_cases, field_cases, place

ALL_OF_THEM = ("jobs", "status", "nodes", "tunnel", "resubmit", "logs", "clean")


@pytest.mark.long(reason="some two thousand job directories in each of twenty-four commands: minutes")
@pytest.mark.parametrize("words", EVERYTHING, ids=lambda words: "-".join(w for w in words if w != ID).strip("-"))
def test_every_field(words: list[str], tmp_path: Path) -> None:
    folder = make_job(tmp_path)
    cases = [*field_cases(), *document_cases(folder)]
    most = len(cases) if words[0] in ALL_OF_THEM else 150
    for name, text in random.Random(words[0]).sample(cases, most):
        path = place(tmp_path, name)
        before = path.read_text()
        path.write_text(text)
        ask(tmp_path, words)
        path.write_text(before)
