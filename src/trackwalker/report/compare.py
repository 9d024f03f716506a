"""A comparison for people: the verdict, then what differs in settings and in what was measured."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trackwalker.diagnose.compare.compare import Comparison
from trackwalker.diagnose.compare.config_diff import Change
from trackwalker.diagnose.compare.deltas import Delta, quantity
from trackwalker.report import words
from trackwalker.report.markdown import markdown
from trackwalker.report.terminal import render
from trackwalker.report.text import clip, one_line

_WIDEST = 100
_MOST_CHANGES = 20


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Print the verdict about B against A and the two tables behind it."""
    verdict = comparison.verdict
    console.print(Text(f"B is {one_line(verdict.job.dir)}\nA is {one_line(verdict.baseline.dir)}", style="dim"))
    render(verdict, console)
    for title, header, rows in tables(comparison):
        console.print()
        console.print(Text(title.upper(), style="bold"))
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in header:
            grid.add_column(Text(name, style="dim"), overflow="fold")
        for row in rows:
            grid.add_row(*[Text(one_line(cell)) for cell in row])
        console.print(grid, width=min(console.width, _WIDEST))


def comparison_markdown(comparison: Comparison) -> str:
    """The same as Markdown, for a ticket."""
    base = comparison.verdict.baseline
    parts = [markdown(comparison.verdict), "", f"Compared with job {_cell(base.id)} (A, {_cell(base.dir)})."]
    for title, header, rows in tables(comparison):
        parts += ["", f"## {title}", "", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        parts += [f"| {' | '.join(_cell(c) for c in row)} |" for row in rows]
    return "\n".join(parts)


def tables(comparison: Comparison) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, header and rows of what differs; what does not exist is left out."""
    out = []
    if comparison.changes:
        shown = comparison.changes[:_MOST_CHANGES]
        more = len(comparison.changes) - len(shown)
        title = "Settings that differ" + (f" ({more} more are not shown)" if more else "")
        out.append((title, ["setting", "A", "B", "effect"], [_setting(c) for c in shown]))
    if comparison.deltas:
        header = ["measured, mean of hosts", "A", "B", "difference (95 % interval)", "hosts"]
        out.append(("Measured over the compared steps", header, [_measured(d) for d in comparison.deltas]))
    return out


def _setting(change: Change) -> list[str]:
    values = [clip("not stated" if v is None else v, 60) for v in (change.a, change.b)]
    return [change.name, *values, words.EFFECTS[change.effect]]


def _measured(delta: Delta) -> list[str]:
    unit = delta.family.unit
    shown = _signed(delta.difference, unit)
    if delta.low is not None and delta.high is not None:
        shown += f" ({_signed(delta.low, unit)} to {_signed(delta.high, unit)})"
    hosts = ", ".join([f"{h} in B" for h in delta.worse_b[:3]] + [f"{h} in A" for h in delta.worse_a[:3]]) or (
        "all alike" if delta.uniform and delta.matters else ""
    )
    return [delta.family.name, quantity(delta.mean_a, unit), quantity(delta.mean_b, unit), shown, hosts]


def _signed(value: float, unit: str) -> str:
    return f"{'+' if value >= 0 else ''}{quantity(value, unit)}"


def _cell(text: str) -> str:
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("`", "'")
