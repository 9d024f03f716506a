"""Recorded jobs and query answers as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trackwalker.report.text import clip, one_line
from trackwalker.telemetry.catalogue import Entry
from trackwalker.telemetry.query import Answer, iso, number
from trackwalker.telemetry.recorded import Metric

_DAMAGE = 80
_NAMED_HOSTS = 3


def render_list(entries: Sequence[Entry], console: Console) -> None:
    """One row for each recorded job."""
    table = _table(("id", "name", "first (UTC)", "last (UTC)", "lasts", "hosts", "gaps", "size", "integrity"))
    for e in entries:
        says = f"{e.integrity}: {clip(one_line(e.damage[0]), _DAMAGE)}" if e.damage else e.integrity
        seen = "?" if e.hosts_seen is None else str(e.hosts_seen)
        hosts = f"{seen}/{'?' if e.hosts_expected is None else e.hosts_expected}"
        name = f"{e.name} (running)" if e.running else e.name
        more = "+" if e.open_end and e.last is not None else ""
        span = (_when(e.first), _when(e.last) + more, _lasts(e.seconds) + more)
        cells = (e.id, name, *span, hosts, _gaps(e), size(e.bytes), says)
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    console.print(table)


def render_answer(answer: Answer, console: Console) -> None:
    """Values at one time; of a range, what each series did over it."""
    if not answer.series:
        console.print(f"no series at {_span(answer)}", markup=False)
        return
    labels = answer.columns()
    over = answer.step is not None
    figures = ("points", "first", "min", "mean", "max", "last") if over else ("value",)
    table = _table([*("metric" if name == "__name__" else name for name in labels), *figures])
    for series in answer.series:
        values = [v for _, v in series.points]
        cells = [_short(values[0])] if values else [""]
        if over and values:
            mean = sum(values) / len(values)
            cells = [str(len(values)), *(_short(v) for v in (values[0], min(values), mean, max(values), values[-1]))]
        table.add_row(*(Text(one_line(text)) for text in [*(series.labels.get(n, "") for n in labels), *cells]))
    console.print(f"at {_span(answer)}", markup=False)
    console.print(table)


def render_metrics(metrics: Sequence[Metric], console: Console) -> None:
    """One row for each recorded metric."""
    table = _table(("metric", "kind", "unit", "hosts", "series", "first (UTC)", "last (UTC)"))
    for at in (0, -2, -1):  # a name is there to be copied, and a time to be compared with the others
        table.columns[at].no_wrap = True
    for m in metrics:
        hosts = ", ".join(m.hosts) if len(m.hosts) <= _NAMED_HOSTS else str(len(m.hosts))
        cells = (m.name, m.kind, m.unit, hosts, str(m.series), _minute(m.first), _minute(m.last))
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    console.print(table)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(Text(one_line(column)), overflow="fold")
    return table


def _span(answer: Answer) -> str:
    if answer.step is None:
        ends = answer.recording_end
        if ends is None:
            return iso(answer.end)
        later = f"; the recording ends at {iso(ends)}" if ends - answer.end >= 1 else ""
        return f"{iso(answer.end)} ({f'the last moment with data{later}' if answer.series else 'the end of the data'})"
    return f"{iso(answer.start)} to {iso(answer.end)} every {answer.step:g} s (--csv and --json have every point)"


def _short(value: float) -> str:
    exact = number(value)
    return exact if len(exact) <= 10 else f"{value:.6g}"


def _when(time: float | None) -> str:
    return "?" if time is None else iso(time).replace("T", " ").rstrip("Z")


def _minute(time: float | None) -> str:
    """Month, day and minute, as `jobs` writes them; --json has the second."""
    return _when(time)[5:16] if time is not None else "?"


def _lasts(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    whole = round(seconds)
    return f"{whole // 3600}h{whole // 60 % 60:02d}m{whole % 60:02d}s" if whole >= 60 else f"{seconds:.0f}s"


def _gaps(entry: Entry) -> str:
    if entry.gaps is None:
        return "?"
    if not entry.gaps:
        return "none"
    return f"{len(entry.gaps)} ({_lasts(sum(end - begin for begin, end in entry.gaps))})"
