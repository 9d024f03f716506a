"""The lines of the log: upstream's form, which triage already knows."""

from __future__ import annotations

from collections.abc import Iterable

from trackwalker.node.checks.result import FAIL, PASS, SKIP, Result

_ONE_LINE = str.maketrans("\n\r", "  ")


def lines(results: Iterable[Result], host: str = "") -> list[str]:
    """One line for each result: `FATAL: n1 | [CHECK_IPV6_RULES] 7 (expected 8)`, `n1 | [CHECK_DCQCN] OK (8)`."""
    return [_line(result, result.host or host) for result in results]


def _line(result: Result, host: str) -> str:
    name = f"{host} | [CHECK_{result.id.upper()}]"
    text = result.text.translate(_ONE_LINE)  # a file name or an error may hold a newline
    if result.status == PASS:
        return f"{name} OK ({text})"
    if result.status == SKIP:
        return f"{name} skipped ({text})"
    word = "FATAL" if result.status == FAIL else "WARNING"
    return f"{word}: {name} {text}{f'; {result.remedy}' if result.remedy else ''}"
