"""Each collective over all ranks and steps: how long the transfer takes, how long ranks wait, what is not hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trackwalker.perf.arrivals import Arrivals
from trackwalker.perf.collectives import bus_factor, kind_of
from trackwalker.perf.meetings import Meetings
from trackwalker.perf.model import PS_PER_S, Int64
from trackwalker.perf.rank_table import RankTable


@dataclass(frozen=True)
class CollectiveSum:
    """One collective instruction over all ranks and steps."""

    op: str
    kind: str
    count: float  # per step
    members: int
    bytes: int | None
    transfer_ps: int  # median: from the last arrival to the end
    wait_ps: int  # median over executions of the mean wait of a rank
    exposed_ps: int  # per step: what nothing hid, mean of the ranks
    total_ps: int  # per step: in the collective, mean of the ranks
    algbw_gb_s: float | None  # of the transfer alone
    busbw_gb_s: float | None
    path: str
    source: str


def collective_sums(
    ranks: Sequence[RankTable], meetings: Meetings, start: Int64, end: Int64, arrivals: Arrivals
) -> list[CollectiveSum]:
    """Each collective with its bandwidth: the transfer begins when the last has come."""
    steps = len(np.unique(meetings.step)) or 1  # of a trace with very many only the last ones are compared
    found = []
    for number, op in enumerate(meetings.ops):
        # Where only one of each group was traced nobody met: there is nothing to tell of waiting and transfer.
        columns = np.flatnonzero((meetings.op == number) & arrivals.present.any(axis=0))
        planned = next((r.planned[op] for r in ranks if op in r.planned), None)
        kind = planned.kind if planned else kind_of(op) or "collective"
        here = arrivals.present[:, columns]
        if not len(columns):
            continue
        length = np.where(here, end[:, columns] - start[:, columns], 0)
        transfer = np.where(here, end[:, columns] - arrivals.latest[:, columns], np.iinfo(np.int64).max).min(axis=0)
        typical = max(int(np.median(transfer)), 0)
        members = int(np.median(here.sum(axis=0)))
        if planned and planned.size:
            members = planned.size
        size = planned.bytes if planned else None
        algbw = size / (typical / PS_PER_S) / 1e9 if size and typical else None
        waits = np.where(here, arrivals.wait[:, columns], 0).sum(axis=0) / here.sum(axis=0)
        shown = np.where(here, meetings.exposed[:, columns], 0)
        found.append(
            CollectiveSum(
                op, kind, len(columns) / steps, members, size, typical, int(np.median(waits)),
                int(shown.sum() / len(ranks) / steps), int(length.sum() / len(ranks) / steps), algbw,
                algbw * bus_factor(kind, members) if algbw is not None else None,
                planned.path if planned else "", planned.source if planned else "",
            )
        )  # fmt: skip
    return sorted(found, key=lambda row: -row.exposed_ps)
