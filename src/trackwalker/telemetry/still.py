"""Series of a foreign store that stayed where they were: their value is asked for once, not every sample of it.

Nearly all error counters, link states and limits of a fleet never move. The store looks for itself which of them did;
only those, and whatever has a gap or ended early, are read sample by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from trackwalker.telemetry.client import Floats, Labels
from trackwalker.telemetry.remote import RemoteStore

Row = tuple[Labels, Floats, Floats]
WORTH_ASKING = 400  # series of one metric: fewer are read sooner than asked about
_LOST = 2  # samples that a series may have less than the fullest one: edges of the span, one scrape that failed
_END = 2.5  # intervals before the end of the span in which it still has a sample


@dataclass(frozen=True)
class Still:
    """What did not move, as rows; `moved` are the hosts, by their label's value, that have something else."""

    rows: list[Row]
    moved: set[str]


def find_still(
    store: RemoteStore, selectors: Sequence[str], label: str, since: float, until: float, every: float, step: float
) -> Still | None:
    """What stayed where it was over a whole span, a sample each `step`; None where most of it moved."""
    times = np.arange(until, since, -step)[::-1].copy()
    rows: list[Row] = []
    moved: set[str] = set()
    first, *others = selectors
    begun = _ask(store, first, label, since, until, every)
    if len(begun[1]) > len(begun[0]):  # one piece of the fleet speaks for the others
        return None
    with ThreadPoolExecutor(store.at_once) as pool:
        parts = [begun, *pool.map(lambda each: _ask(store, each, label, since, until, every), others)]
    for stayed, went in parts:
        moved |= went
        rows += [(labels, times, np.full(len(times), value)) for labels, value in stayed]
    return Still([row for row in rows if row[0].get(label) not in moved], moved)


def _ask(
    store: RemoteStore, selector: str, label: str, since: float, until: float, every: float
) -> tuple[list[tuple[Labels, float]], set[str]]:
    """The series of a selector that did not move with their value, and the hosts of all others."""
    whole = f"{selector}[{round(1000 * (until - since))}ms]"
    last = f"last_over_time({selector}[{round(1000 * _END * every)}ms])"
    count = f"count_over_time({whole})"
    full = f"(changes({whole}) == 0 and {count} >= scalar(max({count})) - {_LOST})"
    stayed = store.instant(f"{last} and {full}", until)
    went = store.instant(f"group by ({label}) ({count} unless ({full} and {last}))", until)
    return stayed, {labels.get(label, "") for labels, _ in went}
