"""`trackwalker lab false-alarms`: how often the watcher would wake somebody for nothing."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from trackwalker.cli.common.options import AsJson
from trackwalker.lab.scoring.false_alarms import false_alarms as replay_suite

SCHEMA = "trackwalker.false-alarms/1"
TARGET = 0.5  # for each job-day
TOO_MANY = 1


def false_alarms(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Jobs of each family.")] = 1,
    first: Annotated[int, typer.Option("--first-seed", min=1, help="Others than those the limits were set on.")] = 1,
    as_json: AsJson = False,
) -> int:
    """Replay the lab's healthy jobs through the watcher's detectors and count what it calls: every call is false.

    Exit codes: 0 fewer than 0.5 false alarms per job-day, 1 more.
    """
    found = replay_suite(seeds, (lambda text: None) if as_json else _say, first)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "target": TARGET, **found.to_dict()}, indent=1))
    else:
        for family in found.families:
            for alarm in family.alarms:
                print(f"{family.name}, {alarm}")
        print(
            f"{found.count} false alarms in {found.days:.1f} job-days: {found.rate:.2f} per job-day "
            f"(at most {found.at_most:.2f} with 95 % confidence; target below {TARGET:g})"
        )
    return TOO_MANY if found.rate >= TARGET else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
