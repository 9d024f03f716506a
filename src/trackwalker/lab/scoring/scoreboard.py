"""A scoreboard from results: Markdown for the repository, HTML for a browser, lines for a terminal."""

from __future__ import annotations

import html
from collections.abc import Iterable

from trackwalker.lab.scoring.calibration import reliability, stated
from trackwalker.lab.scoring.groups import ORDER
from trackwalker.lab.scoring.measures import MEASURES, PASSED, families_right, seconds
from trackwalker.lab.scoring.results import CaseResult, Results
from trackwalker.lab.scoring.table import Table


def tables(all_results: list[Results]) -> list[Table]:
    """Totals by split, groups and families, each tool in its own column; then what went wrong."""
    cases = [c for r in all_results for c in r.cases]
    tools = list(dict.fromkeys(c.tool for c in cases))
    plain = [c for c in cases if not c.variant]
    out = []
    for split in sorted({c.split for c in plain}):  # never added up: the engine was tuned on one of them
        mine = [c for c in plain if c.split == split]
        out.append(_totals(f"Totals: {split} families", tools, mine))
        out.append(
            _by(
                f"Groups: {split} families", "group", tools, mine, [g for g in ORDER if any(c.group == g for c in mine)]
            )
        )
    out.append(_by("Families", "family", tools, plain, sorted({c.family for c in plain})))
    for split in sorted({c.split for c in cases if c.variant}):
        changed = [c for c in cases if c.variant and c.split == split]
        title = f"Other conditions: {split} families"
        out.append(_by(title, "variant", tools, changed, sorted({c.variant for c in changed})))
    for split in sorted({c.split for c in cases}):  # other conditions count here: sure of what is hard to see?
        claims = stated(c for c in cases if c.split == split and c.tool == tools[0])
        if claims:
            out.append(reliability(f"How sure, how right: {tools[0]}, {split} families", claims))
    wrong = [c for c in cases if not c.passed and c.tool == tools[0]]
    if wrong:
        out.append(_wrong(tools[0], wrong))
    return out


def _totals(title: str, tools: list[str], cases: list[CaseResult]) -> Table:
    mine = {tool: [c for c in cases if c.tool == tool] for tool in tools}
    rows = []
    for measure in MEASURES:
        shares = [measure.of(mine[tool]) for tool in tools]
        if any(s.of for s in shares):
            name = f"{measure.name} (want 0)" if measure.fewer_is_better else measure.name
            rows.append([name, *map(str, shares)])
    rows.append(["families right in every case", *(str(families_right(mine[t])) for t in tools)])
    rows.append(["seconds: median, slowest", *("{:.1f}, {:.1f}".format(*seconds(mine[t])) for t in tools)])
    notes = ["In parentheses: 95 % Wilson intervals over cases; seeds of one family resemble each other."]
    return Table(title, ["", *tools], rows, notes)


def _by(title: str, attribute: str, tools: list[str], cases: list[CaseResult], names: Iterable[str]) -> Table:
    rows = []
    for name in names:
        chosen = [c for c in cases if getattr(c, attribute) == name]
        split = sorted({c.split for c in chosen})
        shares = [PASSED.of([c for c in chosen if c.tool == tool]) for tool in tools]
        rows.append([name, "/".join(split), *map(str, shares)])
    return Table(title, [attribute, "split", *tools], rows, ["Right in everything, of all cases."])


def _wrong(tool: str, cases: list[CaseResult]) -> Table:
    rows = []
    for c in cases:
        wanted = "; ".join(f"{r.cause}({','.join(r.hosts)})" for r in c.truth.roots)
        faults = [*(f"must not: {f}" for f in c.grade.forbidden), *c.grade.ungrounded, c.error]
        where = f"{c.family}-{c.seed}" + (f" {c.variant}" if c.variant else "") + (f" x{c.nodes}" if c.nodes else "")
        said = c.grade.said + "".join(f" [{f}]" for f in faults if f)
        rows.append([where, f"{c.truth.outcome}: {wanted or '-'}", said])
    return Table(f"Where {tool} is wrong", ["case", "truth", "said"], rows)


def to_markdown(all_results: list[Results]) -> str:
    """A page for the repository."""
    parts = ["# Scoreboard", _about(all_results)]
    for table in tables(all_results):
        head = [" | ".join(map(_cell, row)) for row in (table.head, ["---"] * len(table.head), *table.rows)]
        parts.append(f"## {table.title}\n\n" + "\n".join(f"| {line} |" for line in head))
        parts += table.notes
    return "\n\n".join(parts) + "\n"


def to_html(all_results: list[Results]) -> str:
    """A page that needs nothing else."""
    body = [f"<h1>Scoreboard</h1><p>{html.escape(_about(all_results))}</p>"]
    for table in tables(all_results):
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in table.rows)
        head = "".join(f"<th>{html.escape(c)}</th>" for c in table.head)
        notes = "".join(f"<p>{html.escape(n)}</p>" for n in table.notes)
        body.append(f"<h2>{html.escape(table.title)}</h2><table><tr>{head}</tr>{rows}</table>{notes}")
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}"
        "table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.25rem .6rem;text-align:left}"
        "p{color:#555}@media(prefers-color-scheme:dark){body{background:#14161a;color:#ddd}p{color:#aaa}}"
    )
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Scoreboard</title>"
        f"<style>{style}</style>{''.join(body)}</html>\n"
    )


def _about(all_results: list[Results]) -> str:
    suites = ", ".join(dict.fromkeys(name for r in all_results for name in r.suite))
    versions = ", ".join(dict.fromkeys(r.version for r in all_results))
    cases = {(c.family, c.seed, c.variant, c.nodes) for r in all_results for c in r.cases}
    families = {c.family for r in all_results for c in r.cases}
    return f"Suite {suites}, version {versions}: {len(cases)} cases of {len(families)} families."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
