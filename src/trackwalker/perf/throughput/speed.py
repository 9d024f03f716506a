"""How fast a run trains: the longest of the record's phases of one speed; upstream's figure beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trackwalker.logs.facts import LogFacts
from trackwalker.perf.analysis.result import Agreement, Drift, Level, Positional, RankRow, Series, Spread, Throughput
from trackwalker.record.masks import REASONS, Masks
from trackwalker.record.phases import Phase
from trackwalker.record.projection import Progress
from trackwalker.record.steps import LOG, Floats, Ints, StepTable
from trackwalker.stats.paired import mean_interval, unpaired

_FEWEST = 5  # plain steps: with fewer the labelled ones have to speak, too
_MOST_POINTS = 4000  # of the series that a report carries
_POSITIONS = slice(5, 15)
_RANKS_LISTED = 64
_TELLING = 0.01  # relative: smaller differences of tokens per step are rounding


def measure(
    table: StepTable,
    slow: Masks,
    facts: LogFacts,
    tokens: float | None,
    progress: Progress,
    phases: Sequence[Phase] = (),
) -> Throughput | None:
    """The throughput of a run; None when no step was timed. `slow` marks the steps of the lead rank, each once."""
    lead, notes = table.lead().once(), list(table.notes)
    seconds, tgs, label = lead.seconds, lead.tgs, np.where(slow.any, slow.label, "")
    if table.source == LOG and len(table.ranks) < len(facts.steps.last_by_rank):
        notes.append(f"only rank {table.ranks[0]} is read: the log has too many step lines to compare ranks by it")
    rows = _rows(seconds, slow, notes)
    if not len(rows):
        return None
    levels = _levels(phases, lead.step[rows], seconds[rows])
    steady = next(level for level in levels if level.steady)
    chosen = rows[(lead.step[rows] >= steady.first_step) & (lead.step[rows] <= steady.last_step)]
    if len(chosen) < _FEWEST:
        notes.append(f"only {len(chosen)} steps are left to judge the speed by")
    rates = _rates(tgs, seconds, tokens)
    if tokens is not None and not np.isfinite(tgs).any():
        notes.append("the run did not log tokens/s: computed from batch size, sequence length and seconds")
    known = chosen[np.isfinite(rates[chosen])]
    ranks = _by_rank(table, lead.step[chosen], facts)
    slowest = max(ranks, key=lambda r: r.seconds, default=None)
    waits = lead.column("data_wait_s")[chosen] / seconds[chosen]
    return Throughput(
        source=table.source or "",
        sources=table.counts,
        steps=len(lead),
        repeated=table.repeated,
        step_s=progress.step_time_s or round(float(np.median(seconds[rows])), 3),
        step_s_of=progress.step_time_of or len(rows),
        left_out=progress.left_out,
        seconds=spread(seconds[chosen]),
        tgs=spread(rates[known]) if len(known) else None,
        tokens_per_step=tokens,
        labels={name: at for name in REASONS if (at := lead.step[label == name].tolist())},
        label_cost_s=_costs(seconds, label, float(np.median(seconds[chosen]))),
        levels=levels,
        drift=_drift(seconds[chosen]),
        positional=_positional(table, rates, lead),
        ranks=ranks[:_RANKS_LISTED],
        slowest=slowest if len(ranks) > 1 else None,
        rank_spread=_over(ranks),
        data_wait_share=round(float(np.nanmedian(waits)), 4) if np.isfinite(waits).any() else None,
        agreement=_agreement(seconds, tgs, tokens),
        notes=notes,
        series=_series(lead, label, rates),
    )


def spread(values: Floats) -> Spread:
    """Mean, median, width and interval of a sample."""
    low, high = mean_interval(values)
    middle = float(np.median(values))
    p5, p95 = np.quantile(values, [0.05, 0.95])
    return Spread(
        n=len(values), mean=float(np.mean(values)), median=middle, p5=float(p5), p95=float(p95),
        mad=float(np.median(np.abs(values - middle))), low=low, high=high,
    )  # fmt: skip


def _rows(seconds: Floats, slow: Masks, notes: list[str]) -> Ints:
    """The steps to judge by: the plain ones, or with too few of them those labelled ones that were not slow."""
    timed = np.isfinite(seconds) & (seconds > 0)
    plain = np.flatnonzero(timed & ~slow.any)
    if len(plain) >= _FEWEST:
        return plain
    usual = float(np.median(seconds[timed])) if timed.any() else 0.0
    rows = np.flatnonzero(timed & (seconds <= 1.1 * usual))
    if len(rows):
        notes.append(
            f"nearly every step is labelled (first steps, saves, traces): judged by the {len(rows)} that were not slow"
        )
    return rows


def _levels(phases: Sequence[Phase], steps: Ints, seconds: Floats) -> list[Level]:
    """The phases that steps of ours lie in; a run too short for phases is one. The longest, of equals the later, is
    the steady one."""
    found = [(p, int(np.count_nonzero((steps >= p.first_step) & (steps <= p.last_step)))) for p in phases]
    levels = [
        Level(first_step=p.first_step, last_step=p.last_step, steps=n, seconds=p.seconds, slow=p.slow)
        for p, n in found
        if n
    ]
    if not levels:
        first, last = int(steps[0]), int(steps[-1])
        levels = [Level(first_step=first, last_step=last, steps=len(steps), seconds=float(np.median(seconds)))]
    longest = max(levels, key=lambda level: (level.steps, level.first_step))
    longest.steady = True
    return levels


def _rates(tgs: Floats, seconds: Floats, tokens: float | None) -> Floats:
    if tokens is None:
        return tgs
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.isfinite(tgs), tgs, tokens / seconds)


def _costs(seconds: Floats, label: NDArray[np.str_], usual: float) -> dict[str, float]:
    known = np.nan_to_num(seconds, nan=0.0)
    over = {name: float(np.maximum(known[label == name] - usual, 0.0).sum()) for name in REASONS}
    return {name: round(cost, 3) for name, cost in over.items() if cost > 0}


def _drift(seconds: Floats) -> Drift | None:
    third = len(seconds) // 3
    found = unpaired(1.0 / seconds[:third], 1.0 / seconds[-third:]) if third else None
    if found is None:
        return None
    low, high = found.interval()
    return Drift(change=found.change, low=low, high=high, certain=found.differs())


def _positional(table: StepTable, rates: Floats, lead: StepTable) -> Positional | None:
    """As upstream has it: every rank's logged value of the steps at positions 5 to 14."""
    numbers = np.unique(lead.step)[_POSITIONS]
    values = table.column("tgs")[np.isin(table.step, numbers)]
    values = values[np.isfinite(values)]
    if not len(values):
        own = rates[np.isin(lead.step, numbers)]
        values = own[np.isfinite(own)]
    if not len(values):
        return None
    seconds = lead.column("seconds")[np.isin(lead.step, numbers)]
    return Positional(
        tgs=float(values.mean()), std=float(values.std()), n=len(numbers), seconds=float(np.nanmean(seconds))
    )


def _by_rank(table: StepTable, steps: Ints, facts: LogFacts) -> list[RankRow]:
    rows = []
    table = table.once()
    inside = np.isin(table.step, steps)
    for rank in table.ranks:
        mine = inside & (table.rank == rank) & np.isfinite(table.column("seconds"))
        if not mine.any():
            continue
        rows.append(
            RankRow(
                rank=rank,
                host=facts.host_of(rank),
                seconds=float(np.median(table.column("seconds")[mine])),
                tgs=_median(table.column("tgs")[mine]),
                data_wait_s=_median(table.column("data_wait_s")[mine]),
                steps=int(mine.sum()),
            )
        )
    return rows


def _over(ranks: list[RankRow]) -> float | None:
    if len(ranks) < 2:
        return None
    each = [r.seconds for r in ranks]
    return max(each) / min(each) - 1.0 if min(each) > 0 else None


def _agreement(seconds: Floats, tgs: Floats, tokens: float | None) -> Agreement | None:
    """Tokens/s times seconds must be the tokens of a step; seconds are printed with three digits only."""
    if tokens is None:
        return None
    known = np.isfinite(tgs) & np.isfinite(seconds) & (seconds > 0)
    if not known.any():
        return None
    logged = float(np.median(tgs[known] * seconds[known]))
    rounding = 0.0006 / float(np.median(seconds[known]))
    apart = abs(logged / tokens - 1.0)
    agrees = apart <= max(_TELLING, rounding)
    says = f"tokens/s times seconds is {logged:.0f} a step, batch x sequence x accumulation is {tokens:.0f}"
    return Agreement(tokens_per_step=tokens, logged=logged, agrees=agrees, says=says)


def _series(lead: StepTable, label: NDArray[np.str_], rates: Floats) -> Series:
    every = -(-len(lead) // _MOST_POINTS) or 1
    rows: NDArray[np.int64] = np.arange(0, len(lead), every)
    return Series(
        step=lead.step[rows].tolist(),
        seconds=_finite(lead.column("seconds")[rows]),
        tgs=_finite(rates[rows]),
        label=label[rows].tolist(),
        every=every,
    )


def _finite(values: Floats) -> list[float | None]:
    return [round(float(v), 6) if np.isfinite(v) else None for v in values]


def _median(values: Floats) -> float | None:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else None
