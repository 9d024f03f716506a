"""The deviation table in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from trackwalker.diagnose.deviations.changed import MOST_ROWS, Changed
from trackwalker.diagnose.verdict import Deviation
from trackwalker.record.clock import utc
from trackwalker.report.text import clip, one_line

_LOG_ROWS = 10
_LONGEST = 240


def render_changed(found: Changed, console: Console) -> None:
    """Print what was compared and what deviates, strongest first."""
    for episode in found.episodes:
        windows = ", ".join(f"{utc(s.start)} to {utc(s.end)}" for s in episode.window)
        console.print(Text(f"{_phase(episode.name)}: {windows}"), soft_wrap=True)
    compared = f"Compared {found.metrics} metrics on every host and GPU with their own past and with the other hosts"
    shown = f"{_count(len(found.deviations), 'change')} shown, single GPUs and hosts first"
    console.print(Text(f"{compared} ({found.tests:,} comparisons): {shown}."), soft_wrap=True)
    _render_log(found, console)
    if not found.metrics:
        console.print(Text("No metric was recorded: only the log was compared."))
        return
    for line in found.unseen:
        console.print(Text(f"Not compared: {one_line(line)}."), soft_wrap=True)
    if found.says:
        console.print(Text(f"{found.says[0].upper()}{found.says[1:]}."), soft_wrap=True)
        return
    if not found.deviations:
        console.print(Text("No metric changed beyond its own noise and beyond what the other hosts did."))
        return
    console.print(
        Text("Values are means before and since that time; for `most hosts`, the median of the hosts' means."),
        soft_wrap=True,
    )
    for d in found.deviations:
        console.print(Text(deviation_line(d, beside=less_than_most(d, found.deviations))), soft_wrap=True)
    if len(found.deviations) >= MOST_ROWS:
        console.print(Text("There are more; --hosts or a shorter window shows them."))


def _render_log(found: Changed, console: Console) -> None:
    rows = found.log.rows
    for row in rows[:_LOG_ROWS]:
        told = (
            f"log line {row.line}, {row.kind}: {_count(row.inside, 'time')}, {row.expected:g} expected: {row.example}"
        )
        console.print(Text(clip(one_line(told), _LONGEST)), soft_wrap=True)
    if len(rows) > _LOG_ROWS:
        console.print(Text(f"{len(rows) - _LOG_ROWS} more kinds of log lines changed: --json has them"))
    if found.log.says:
        console.print(Text(f"log: {found.log.says}"))


def _phase(name: str) -> str:
    """An episode in words: `Slow phase 1`, `Second half`."""
    kind, _, number = name.rpartition("-")
    said = f"{kind} phase {number}" if number.isdigit() and kind == "slow" else name.replace("-", " ")
    return said[:1].upper() + said[1:]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def deviation_line(d: Deviation, *notes: str, beside: Sequence[str] = ()) -> str:
    """One deviation in a line: who, what, from and to, since when, how sure."""
    moved = f" from {number(d.from_)} to {number(d.to)} {d.unit}".rstrip() if d.to is not None else ""
    return one_line(
        f"{who(d)}: {what(d)}{moved} since {', '.join([d.since[11:19], *beside])}"
        f" ({', '.join([f'score {d.score:.1f}', *notes])})"
    )


def less_than_most(d: Deviation, among: Sequence[Deviation]) -> list[str]:
    """A word beside somebody who changed as most hosts did, only less: that is what is odd about it."""
    common = (m for m in among if m.host is None and (m.metric, m.labels, m.kind) == (d.metric, d.labels, d.kind))
    shares = [abs(m.to / m.from_ - 1) for m in (d, *common) if m.from_ and m.to is not None]
    return ["less than on most hosts"] if d.host is not None and len(shares) == 2 and shares[0] < shares[1] else []


def who(d: Deviation) -> str:
    """Whose deviation it is, in a cell."""
    if d.host is None:
        return "most hosts"
    part = f" gpu {d.gpu}" if d.gpu is not None else f" {d.device}" if d.device is not None else ""
    return f"{d.host}{part}" + (f" and {d.alike} more" if d.alike else "")


def what(d: Deviation) -> str:
    """The metric and what happened to it, in a cell."""
    aspect = ", ".join(d.labels.values())
    return f"{d.metric}{f' ({aspect})' if aspect else ''} {d.kind}"


def number(value: float | None) -> str:
    """A number as short as it may be."""
    return "-" if value is None else f"{value:.4g}"
