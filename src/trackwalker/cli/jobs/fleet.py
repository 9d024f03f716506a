"""`trackwalker fleet`: which hosts, racks, models and causes cost most, over all jobs of a workspace."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.common.say import say
from trackwalker.cli.common.waiting import since
from trackwalker.cli.common.workspace import there
from trackwalker.errors import MissingToolError
from trackwalker.fleet import questions
from trackwalker.fleet.index import JobIndex
from trackwalker.fleet.source import Plain
from trackwalker.fleet.store import Store
from trackwalker.job.causes import cause_name
from trackwalker.report.words import amount, utc

SCHEMA = "trackwalker.fleet/1"
_SHOWN = 8
_EVERY_S = 2.0


def fleet(
    newer: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Jobs that began since: 7d, 30d, 2026-11-01.")
    ] = "30d",
    price: Annotated[float | None, typer.Option("--price", min=0.0, help="Of one GPU-hour.")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read every job again.")] = False,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """Say what the jobs of a workspace lost, to which causes, on which hosts; no job is changed.

    What was read is kept in your cache folder, so that only what changed is read the next time.
    """
    moment = since(newer)
    index = JobIndex(Plain(there(workspace)))
    if index.store is None:
        raise MissingToolError("questions about many jobs need duckdb: pip install 'trackwalker[fleet]'")
    if rebuild:
        index.store.clear()
    began = time.monotonic()
    read = index.refresh(_Progress())
    took = time.monotonic() - began
    store = index.store
    if as_json:
        print(json.dumps({"schema": SCHEMA, "workspace": str(workspace), **_document(store, moment)}, indent=1))
        return
    _print(store, moment, newer, price)
    say(f"{read:,} jobs were read for this in {took:.1f} s; the others were known")


class _Progress:
    """A line on the terminal while many logs are read."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        if time.monotonic() - self._told > _EVERY_S:
            self._told = time.monotonic()
            print(f"{done:,} of {of:,} jobs read", file=sys.stderr, flush=True)


def _document(store: Store, moment: float) -> dict[str, Any]:
    return {
        "since": moment,
        "fleet": asdict(questions.whole(store, moment)),
        "causes": [asdict(each) for each in questions.by_cause(store, moment)],
        "hosts": [asdict(each) for each in questions.by_host(store, moment)],
        "racks": [asdict(each) for each in questions.by_rack(store, moment)],
        "models": [asdict(each) for each in questions.by_model(store, moment)],
        "flaky": [{**asdict(each), "stands_out": each.stands_out} for each in questions.flaky(store, moment)],
        "days": [asdict(each) for each in questions.days(store, moment)],
    }


def _print(store: Store, moment: float, newer: str, price: float | None) -> None:
    all_ = questions.whole(store, moment)
    say(f"since {utc(moment)} UTC ({newer}): {all_.jobs:,} jobs on {all_.hosts:,} hosts, {all_.troubled:,} in trouble")
    say(f"held {_hours(all_.gpu_hours)}, lost {_hours(all_.lost_gpu_hours)}{_money(all_.lost_gpu_hours, price)}")
    if all_.silent:
        say(f"{all_.silent:,} jobs do not say how many GPUs they held and are not in these hours")
    if all_.unknown:
        say(
            f"what {all_.unknown:,} troubled jobs lost is not known: their GPUs or what they had saved are not recorded"
        )
    for title, found in (
        ("causes", questions.by_cause(store, moment, _SHOWN)),
        ("hosts", questions.by_host(store, moment, _SHOWN)),
        ("racks, by the hosts' names", questions.by_rack(store, moment, _SHOWN)),
        ("models", questions.by_model(store, moment, _SHOWN)),
    ):
        if found:
            say(f"\n{title} that cost most:")
        for each in found:
            name = (cause_name(each.name) if title == "causes" else each.name) or "not known"
            lost = f"lost {_hours(each.lost_gpu_hours)}{_money(each.lost_gpu_hours, price)}"
            say(f"  {name}: {lost}, in trouble in {each.troubled:,} of {each.jobs:,} jobs")
    flaky = [each for each in questions.flaky(store, moment, 100) if each.stands_out]
    if flaky:
        say("\nhosts that are named more often than chance explains:")
    for host in flaky[:_SHOWN]:
        interval = f"95 % interval {host.low:.0%} to {host.high:.0%}, the other hosts {host.usual:.1%}"
        causes = ", ".join(cause_name(cause) for cause in host.causes[:3])
        say(f"  {host.host}: in {host.named} of its {host.ran} jobs ({interval}): {causes}")


def _hours(value: float | None) -> str:
    return "an unknown number of GPU-hours" if value is None else f"{amount(value)} GPU-hours"


def _money(hours: float | None, price: float | None) -> str:
    return "" if hours is None or price is None else f" ({amount(hours * price)} at {price:g} an hour)"
