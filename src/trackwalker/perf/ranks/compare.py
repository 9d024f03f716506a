"""Ranks against each other: one clock, who comes last again and again, and what the job would gain without that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trackwalker.perf.formats.model import NONE, PS_PER_S, PS_PER_US, Flags, Gap, Int64
from trackwalker.perf.hlo.collectives import bus_factor, kind_of
from trackwalker.perf.ranks.clocks import Alignment, align
from trackwalker.perf.ranks.collective_matches import Meetings, match
from trackwalker.perf.ranks.gather import RankTable
from trackwalker.perf.ranks.replay import Floats, Replay, median_of

_SUSPECTS = 4  # ranks whose absence is played
_LEAST_SHARE = 0.01  # of the job's time: less is not worth a name
_LEAST_LAST = 0.3  # of the executions in which somebody was clearly last
_FEWEST_LAST = 3  # executions: once or twice is chance
_STEADILY = 0.5  # of its lateness against the middle rank must be left when earliness is taken off
_MOST_EARLY = 0.2  # of the executions left before the last had come: these ranks did not meet, and nobody is late
_MORE = 1.1  # compute time over what slower kernels explain: then it is not only their speed
_OF_EXCESS = 0.6  # of a rank's excess: then that is the cause


# Who came late to which collective, and by how much.
class Arrivals:
    """Who came late: after the middle one of its group, and by how much."""

    def __init__(self, meetings: Meetings, start: Int64, blur: int) -> None:
        shape = start.shape
        self.latest = np.full(shape, NONE, np.int64)  # when the last of the rank's group came
        self.behind = np.zeros(shape, np.int64)  # how long after the middle one of its group a rank came
        self.decided = np.zeros(shape, bool)  # somebody of its group came clearly later than the middle one
        self.last = np.zeros(shape, bool)  # ... and this rank came no earlier than that
        clear = max(3 * blur, PS_PER_US)
        for number in np.unique(meetings.partition):
            columns = np.flatnonzero(meetings.partition == number)
            for rows in meetings.members(int(number)):
                place = np.ix_(rows, columns)
                came = start[place]
                absent = came == NONE
                order = np.sort(np.where(absent, np.iinfo(np.int64).max, came), axis=0)
                count = (~absent).sum(axis=0)
                middle = np.take_along_axis(order, np.maximum((count - 1) // 2, 0)[None], axis=0)[0]
                latest = came.max(axis=0)
                met = count > 1
                self.latest[place] = np.where(met & ~absent, latest, NONE)
                self.behind[place] = np.where(met & ~absent, np.maximum(came - middle, 0), 0)
                decided = met & (latest - middle > clear) & ~absent
                self.decided[place] = decided
                self.last[place] = decided & (latest - came <= clear) & (came - middle > clear)
        self.present: Flags = (start != NONE) & (self.latest != NONE)
        self.wait = np.where(self.present, self.latest - start, 0)

    def late(self, meetings: Meetings) -> tuple[Int64, Int64]:
        """The steps, and rank x step: how long after the middle rank this one came, over all its collectives."""
        steps, index = np.unique(meetings.step, return_inverse=True)
        rows = [np.bincount(index, behind, len(steps)).astype(np.int64) for behind in self.behind]
        return steps, np.array(rows, np.int64).reshape(len(self.behind), len(steps))


# Each collective over all ranks and steps: how long the transfer takes, how long ranks wait, what is not hidden.
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


@dataclass(frozen=True)
class Straggler:
    """A rank the others wait for."""

    rank: int
    label: str
    last: int
    of: int
    gain_ps: int  # what the played part of the job would save if it were like the others
    share: float  # of the played part
    step_ps: int  # the same for one step
    cause: str  # "compute", "host" or "" when neither explains it
    slower: float | None  # one run of its kernels against the other ranks', 1.3 is 30 % slower
    work: float | None  # compute time of its steps against the other ranks'
    together: list[int] = field(default_factory=list)  # ranks that must be mended with it before anything is gained
    says: str = ""


@dataclass
class Across:
    """What the comparison of ranks found."""

    arrivals: Arrivals
    alignment: Alignment
    meetings: Meetings
    start: Int64  # rank x execution, on the common clock
    end: Int64
    stragglers: list[Straggler]
    collectives: list[CollectiveSum]
    played_ps: int  # the job as played
    even_ps: int  # the same with all ranks alike
    steps: Int64  # numbers, the columns of `late`
    late: Int64  # rank x step: how long after the middle rank it came, over all collectives
    gaps: list[Gap]


def compare(ranks: Sequence[RankTable]) -> Across:
    """All of it; with one rank there is only its own collectives to tell of."""
    meetings = match(ranks)
    names: dict[str, int] = {}
    files = np.array([names.setdefault(r.path, len(names)) for r in ranks], np.int64)
    alignment = align(meetings, files)
    start = alignment.moved(meetings.start, meetings.base)
    end = alignment.moved(meetings.end, meetings.base)
    arrivals = Arrivals(meetings, start, (alignment.residual_ps or 0) if len(names) > 1 else 0)
    replay = Replay(meetings, start, end)
    gaps = [*meetings.gaps, *_clock_gaps(alignment)]
    steps, late = arrivals.late(meetings)
    stragglers, played, even = _stragglers(ranks, meetings, arrivals, replay)
    if alignment.early > _MOST_EARLY:
        stragglers = []
    return Across(
        arrivals=arrivals,
        alignment=alignment,
        meetings=meetings,
        start=start,
        end=end,
        stragglers=stragglers,
        collectives=collective_sums(ranks, meetings, start, end, arrivals),
        played_ps=played,
        even_ps=even,
        steps=steps,
        late=late,
        gaps=gaps,
    )


def _stragglers(
    ranks: Sequence[RankTable], meetings: Meetings, arrivals: Arrivals, replay: Replay
) -> tuple[list[Straggler], int, int]:
    """The ranks whose lateness costs the job, by playing it without: each alone, and all, for two hide each other."""
    if not replay.executions or len(ranks) < 2:
        return [], 0, 0
    suspects = _suspects(arrivals, replay)
    typical = {r: replay.typical(r) for r in suspects}

    def mended(chosen: Sequence[int]) -> Floats:
        changed = replay.segments.copy()
        for r in chosen:
            changed[r] = np.minimum(changed[r], typical[r])
        return changed

    everybody = np.minimum(replay.segments, replay.middle())
    played, even, together, *alone = replay.play(
        [replay.segments, everybody, mended(suspects), *(mended([r]) for r in suspects)]
    )
    joint = max(played - together, 0.0)
    found = []
    for r, length in zip(suspects, alone, strict=True):
        gain, others = max(played - length, 0.0), []
        if gain < _LEAST_SHARE * played:
            if joint < _LEAST_SHARE * played or len(suspects) < 2:
                continue
            gain, others = joint, [s for s in suspects if s != r]
        made = Straggler(
            rank=r,
            label=ranks[r].label,
            last=int(arrivals.last[r].sum()),
            of=int(arrivals.decided[r].sum()),
            gain_ps=int(gain),
            share=gain / played,
            step_ps=int(gain / replay.steps),
            cause=_cause(meetings, r, replay.segments[r] - typical[r], suspects),
            slower=_slower(ranks, r, suspects),
            work=_work(ranks, r, suspects),
            together=others,
        )
        found.append(replace(made, says=_sentence(made)))
    found.sort(key=lambda s: -s.gain_ps)
    return found, int(played), int(even)


def _suspects(arrivals: Arrivals, replay: Replay) -> list[int]:
    """Ranks that need longer again and again, not now and then: chance falls to both sides alike."""
    excess = replay.segments - replay.middle()
    net, gross = np.nansum(excess, axis=1), np.nansum(np.abs(excess), axis=1)
    last, decided = arrivals.last.sum(axis=1), arrivals.decided.sum(axis=1)
    steadily = (net > _STEADILY * gross) & (last >= np.maximum(_LEAST_LAST * decided, _FEWEST_LAST))
    return [int(r) for r in np.argsort(-net) if steadily[r]][:_SUSPECTS]


def _sentence(made: Straggler) -> str:
    why = {"compute": "its kernels take longer", "host": "its host launches late"}.get(made.cause)
    if made.cause == "compute" and made.slower and made.work:
        why = f"its kernels take {made.slower:.2f} times as long as on the other ranks"
        if made.work > _MORE * made.slower:
            why = f"it has more work, and computes {made.work:.2f} times as long as the other ranks"
    others = ", ".join(map(str, made.together))
    gain = f"without its delay the job would need {made.share:.1%} less time"
    if others:
        gain = f"with rank {others} fixed as well the job would need {made.share:.1%} less time"
    return (
        f"{made.label} (rank {made.rank}) is among the last to enter {made.last} of {made.of} collectives: "
        f"{why or 'neither its kernels nor its launches explain it'}; {gain}"
    )


def _cause(meetings: Meetings, rank: int, excess: Floats, late: list[int]) -> str:
    """What a rank does longer than the others before it comes: compute, or wait for its host."""
    count = len(excess)
    total = float(np.nansum(excess))
    if total <= 0:
        return ""
    for cause, table in (("compute", meetings.work), ("host", meetings.host)):
        own = np.where(table[:, :count] == NONE, np.nan, table[:, :count].astype(float))
        others = [i for i in range(len(own)) if i not in late] or [i for i in range(len(own)) if i != rank]
        if float(np.nansum(own[rank] - median_of(own[others], own[rank]))) >= _OF_EXCESS * total:
            return cause
    return ""


def _slower(ranks: Sequence[RankTable], rank: int, late: list[int]) -> float | None:
    """A rank's kernels against the median of the others: the typical ratio."""
    others: dict[str, list[float]] = {}
    for i, table in enumerate(ranks):
        if i != rank and (i not in late or len(late) == len(ranks)):
            for row in table.kernels:
                others.setdefault(row.name, []).append(row.ps / row.count)
    ratios, weights = [], []
    for row in ranks[rank].kernels:
        if row.name in others and not kind_of(row.name) and row.kind != "collective":
            typical = float(np.median(others[row.name]))
            if typical > 0:
                ratios.append(row.ps / row.count / typical)
                weights.append(row.ps)
    if not ratios:
        return None
    order = np.argsort(ratios)
    half = np.searchsorted(np.cumsum(np.array(weights)[order]), sum(weights) / 2)
    return ratios[int(order[half])]


def _work(ranks: Sequence[RankTable], rank: int, late: list[int]) -> float | None:
    """Compute time of a rank's steps against the median of those that are not late."""
    own = [b.compute for b in ranks[rank].buckets]
    rest = [r for i, r in enumerate(ranks) if i != rank and (i not in late or len(late) == len(ranks))]
    others = [float(np.median([b.compute for b in r.buckets])) for r in rest if r.buckets]
    return float(np.median(own) / np.median(others)) if own and others and np.median(others) > 0 else None


def _clock_gaps(alignment: Alignment) -> list[Gap]:
    if alignment.early > 0.05:
        why = f"in {alignment.early:.0%} of the collectives a rank seems to leave before the last has come"
        why += ", so no rank is called late" if alignment.early > _MOST_EARLY else ""
        return [Gap("the order of arrivals", why, "check that all files are of the same run and steps")]
    return []
