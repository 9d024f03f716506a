"""A triage in a terminal or as Markdown; every string of the log passes through here as plain text."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trackwalker.diagnose.triage import Triage
from trackwalker.job.causes import cause_label, cause_name
from trackwalker.logs.failures.findings import Finding
from trackwalker.logs.failures.signatures import load
from trackwalker.record.speeds import figure
from trackwalker.report import words
from trackwalker.report.text import clip, one_line, plain

_WIDEST = 100
_QUOTE = 300
_COLUMNS = ("id", "status", "failure", "rank", "steps", "speed", "next")
_ROLES = {"primary": "main failure", "contributing": "also"}
_GOOD = ("completed", "running", "initialising", "soft-success")


def render(triage: Triage, console: Console) -> None:
    """Print one triage."""
    style = "bold green" if triage.status in _GOOD else "bold red"
    width = min(console.width, _WIDEST)
    head = Text.assemble(
        (triage.status.upper(), style), f"  job {_safe(triage.job.id)}  ", (_safe(triage.phase), "dim")
    )
    console.print(head, width=width)
    console.print(Text(_safe(triage.summary), style="bold"), width=width)
    for finding in triage.roles.findings:
        if finding.role == "note":
            continue
        role = _ROLES.get(finding.role, finding.role)
        console.print(Text(f"\n{role}: {_label(finding)}{_who(finding)}"), width=width)
        if finding.text or finding.why:
            console.print(Text(f"  {_safe(finding.file)}:{finding.line}  {_quote(finding)}", style="dim"), width=width)
        if finding.proves_not and finding.role == "primary":
            console.print(Text(f"  does not prove: {finding.proves_not}"), width=width)
    rows = _rows(triage)
    if rows:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for name, value in rows:
            grid.add_row(Text(name, style="dim"), Text(_safe(value)))
        console.print()
        console.print(grid, width=width)
    for number, step in enumerate(triage.next, 1):
        console.print(Text(f"{chr(10) if number == 1 else ''}next {number}. {_safe(step)}"), width=width)


def markdown(triage: Triage) -> str:
    """The same as Markdown, in upstream's order: status, primary failure, stage, evidence, projection, next steps."""
    primary = triage.primary
    lines = [
        f"# Triage: {plain(str(triage.job.log))}",
        "",
        f"- **Status**: {triage.status}",
        f"- **Primary failure**: {cause_label(primary.cause) if primary else 'none'}",
        f"- **Stage**: {plain(triage.phase)}",
        "",
        plain(triage.summary),
        "",
        "## Evidence",
        "",
    ]
    for finding in triage.roles.findings:
        place, quote = f"{plain(finding.file)}:{finding.line}", _quote(finding).replace("`", "'")
        lines.append(f"- {finding.role}: {_label(finding)}{_who(finding)}, {place}: `{quote}`")
    lines += ["", "## Projection", "", "| quantity | value |", "|---|---|"]
    lines += [f"| {name} | {plain(value)} |" for name, value in _rows(triage)]
    lines += _budget_table(triage)
    lines += ["", "## Next steps", ""]
    lines += [f"{number}. {plain(step)}" for number, step in enumerate(triage.next, 1)]
    return "\n".join(lines) + "\n"


def table(rows: list[Triage | tuple[str, str]], console: Console) -> None:
    """One line a job, as `triage --all` shows them; a job that cannot be read says why."""
    lines = [_COLUMNS, *(_row(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)][:-1]
    room = max(console.width - sum(widths) - 2 * len(widths), 20)  # the last column takes what is left
    for *cells, last in lines:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        console.print(Text(f"{line}  {clip(last, room)}".rstrip()), soft_wrap=True)


def _row(row: Triage | tuple[str, str]) -> tuple[str, ...]:
    if isinstance(row, tuple):
        return (_safe(row[0]), "not readable", "", "", "", "", _safe(row[1]))
    primary, progress, first = row.primary, row.progress, row.roles.first_rank
    steps = "" if progress.last_step is None else f"{progress.last_step}/{progress.total_steps or '?'}"
    cause = cause_name(primary.cause) if primary else ""
    rank = "" if first is None else str(first)
    return (_safe(row.job.id), row.status, cause, rank, steps, row.pattern.name, _safe(row.next[0]) if row.next else "")


def _label(finding: Finding) -> str:
    """What a finding is called: a line that only tells of somebody's end names no cause where another one does."""
    known = load().by_id.get(finding.id)
    if finding.role == "consequence" and known is not None:
        if "end-of-process" in known.traits:
            return f"A process ended with an error ({finding.id})"
        if "exit-word" in known.traits:
            return f"A node's part of the job ended with an error ({finding.id})"
    return cause_label(finding.cause)


def _who(finding: Finding) -> str:
    if finding.rank is None:
        return f", {finding.count} times" if finding.count > 1 else ""
    host = f" ({_safe(finding.host)})" if finding.host else ""
    said = ", reported by" if finding.role == "consequence" else " on"
    several = f"{said} {len(finding.ranks)} ranks, first{said.lstrip(',').removeprefix(' reported')}"
    return f"{several if len(finding.ranks) > 1 else said} rank {finding.rank}{host}"


def _rows(triage: Triage) -> list[tuple[str, str]]:
    p, rows = triage.progress, []
    if triage.roles.first_rank is not None:
        host = f" ({triage.roles.first_host})" if triage.roles.first_host else ""
        rows.append(("first failing", f"rank {triage.roles.first_rank}{host}: {triage.roles.first_says}"))
    if p.last_step is not None:
        done = f", {100 * p.done:.1f} %" if p.done is not None else ""
        total, start = p.total_steps or "unknown", p.start or "start unknown"
        start = "fresh start" if start == "fresh" else start
        source = f", from {p.source}" if p.source not in (None, "log") else ""
        rows.append(("steps", f"{p.first_step}..{p.last_step} of {total}{done} ({start}{source})"))
    if p.disagreement:
        rows.append(("sources", p.disagreement))
    if p.attempts > 1:
        tries = (f"{a.first_step}..{a.last_step}" + (f" ({a.ended_by})" if a.ended_by else "") for a in triage.attempts)
        rows.append(("attempts", f"{p.attempts}: steps {', '.join(tries)}; {p.steps_repeated} steps done again"))
    if p.step_time_s is not None:
        rows.append(("step time", f"{p.step_time_s:g} s" + (f", {figure(p.tgs)} tokens/s/device" if p.tgs else "")))
    if p.gap_s is not None:
        rows.append(("time", f"wall {p.wall_s:g} s, steps {p.training_s:g} s, not accounted for {p.gap_s:g} s"))
    if triage.goodput.goodput is not None:
        rows.append(("goodput", _goodput_line(triage)))
    if p.last_checkpoint is not None:
        due = f" (step {p.due_checkpoint} was due, no line says it was saved)"
        missing = due if p.due_checkpoint is not None and p.due_checkpoint > p.last_checkpoint else ""
        after = f"; {p.steps_lost} steps after it" if p.steps_lost is not None else ""
        rows.append(("checkpoint", f"step {p.last_checkpoint}{after}{missing}"))
    if p.remaining_s:
        rows.append(("remaining", f"{p.remaining_s / 3600:.1f} h"))
    if p.expected_step is not None and p.last_step is not None and p.expected_step > p.last_step + 3:
        rows.append(("expected", f"step {p.expected_step} by now"))
    if p.recompiled:
        rows.append(("recompiled", f"{p.recompiled} steps after the first waited for a compilation"))
    if p.behind:
        rows.append(("behind", ", ".join(f"rank {r} at step {s}" for r, s in list(p.behind.items())[:6])))
    if triage.pattern.name != "too-short":
        rows.append(("throughput", triage.pattern.says))
    if triage.compared is not None and triage.pattern.name != "slow-from-start":
        rows.append(("reference", triage.compared.says))
    if triage.accounting.state != "unknown" or triage.status in ("cancelled", "indeterminate", "unknown-death"):
        rows.append(("scheduler", triage.accounting.says))
    return rows


def _goodput_line(triage: Triage) -> str:
    """Where the time went, the largest losses first."""
    spent = triage.goodput
    losses = sorted((p for p in spent.parts if p.what != "train" and p.share), key=lambda p: -p.seconds)
    held = f" of {spent.gpus} GPUs" if spent.gpus else ""
    hours = sum(p.gpu_hours or 0.0 for p in spent.parts)
    total = f" ({hours:.3g} GPU-hours)" if spent.gpus else ""
    rest = ", ".join(f"{p.what} {100 * (p.share or 0.0):.0f} %" for p in losses if (p.share or 0.0) >= 0.005)
    good = f"{100 * (spent.goodput or 0.0):.0f} % of {words.hours((spent.wall_s or 0.0) / 3600)}{held}{total}"
    return f"{good}; {rest}" if rest else good


def _budget_table(triage: Triage) -> list[str]:
    parts = triage.goodput.parts
    if not parts:
        return []
    lines = ["", "## Where the time went", "", "| part | seconds | share | GPU-hours |", "|---|---:|---:|---:|"]
    for part in parts:
        share = "" if part.share is None else f"{100 * part.share:.1f} %"
        hours = "" if part.gpu_hours is None else f"{part.gpu_hours:g}"
        lines.append(f"| {part.what} | {part.seconds:g} | {share} | {hours} |")
    return lines


def _quote(finding: Finding) -> str:
    return clip(one_line(finding.text or finding.why), _QUOTE)  # no line tells of a stall or a slowdown


def _safe(text: str | None) -> str:
    return one_line(text or "")
