"""The first screen of a verdict, 24 lines of 80 columns: outcome, where, and a command to type as it stands."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from command_here import call_here

from trackwalker.cli.commands import COMMANDS, load
from trackwalker.lab.scoring.cases import SMOKE, build, make_suite

LINES, COLUMNS = 24, 80
OUTCOMES = ("INCIDENT", "EXPECTED", "HEALTHY", "INSUFFICIENT EVIDENCE")
QUICK = ("oom-gpu", "collective-hang")  # in the landing tier; the others are `long`


def parses(command: str) -> None:
    """Whether our own parser takes a command line; nothing is run."""
    program, name, *rest = shlex.split(command)
    assert program == "trackwalker"
    assert name in COMMANDS
    loaded = load(name)
    loaded.make_context(name, rest, resilient_parsing=False)


def look(family: str, place: Path) -> None:
    case = make_suite([family], 1)[0]
    job, _ = build(case, place / "case")
    env = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    done = call_here(env, "diagnose", str(job))
    assert done.returncode in (0, 3), done.stderr
    screen = done.stdout.splitlines()[:LINES]
    assert screen[0].startswith(OUTCOMES), screen[0]
    commands = [line.strip() for line in screen if line.startswith("     trackwalker ")]
    unbroken = ("     trackwalker ", "     scontrol ", "     kubectl ")  # commands to copy
    assert max(len(line) for line in screen if not line.startswith(unbroken)) <= COLUMNS
    assert screen[0].startswith("HEALTHY") or any(line.startswith("Where ") for line in screen), screen
    assert "DO NEXT" in screen
    assert commands, screen
    for command in commands:
        parses(command)


@pytest.mark.parametrize("family", QUICK)
def test_the_first_screen(family: str, tmp_path: Path) -> None:
    look(family, tmp_path)


@pytest.mark.long(reason="a simulated job and a diagnosis for each of the other ten families of the smoke suite")
@pytest.mark.parametrize("family", [name for name in SMOKE if name not in QUICK])
def test_the_first_screen_of_every_family(family: str, tmp_path: Path) -> None:
    look(family, tmp_path)
