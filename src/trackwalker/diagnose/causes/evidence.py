"""The evidence book: numbers every claim once, in the order it was found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from trackwalker.diagnose.causes.playbook import Test
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.diagnose.verdict import Evidence
from trackwalker.stats.detectors import Finding, Values

_LONGEST = 400  # a log line is quoted, not reprinted


class EvidenceBook:
    """Collects evidence items; the same source and statement is one item."""

    def __init__(self) -> None:
        self.items: list[Evidence] = []
        self._known: dict[tuple[str, str], str] = {}

    def add(
        self,
        kind: Literal["metric", "log", "event", "progress"],
        source: str,
        says: str,
        values: dict[str, float] | None = None,
    ) -> str:
        """Note an item and return its id."""
        says = says if len(says) <= _LONGEST else says[: _LONGEST - 1] + "…"
        if (source, says) not in self._known:
            number = f"e{len(self.items) + 1}"
            rounded = {k: round(v, 3) for k, v in sorted((values or {}).items())}
            self.items.append(Evidence(id=number, kind=kind, source=source, says=says, values=rounded))
            self._known[(source, says)] = number
        return self._known[(source, says)]


_MOST_VALUES = 64


def told(values: Values, finding: Finding) -> dict[str, float]:
    """The numbers worth keeping beside a statement: all of a few, else the accused and the most extreme others."""
    if len(values) <= _MOST_VALUES:
        return dict(values)
    order = sorted(values, key=lambda h: (h not in finding.hosts, -values[h], h))
    return {h: values[h] for h in [*order[: _MOST_VALUES - 4], *order[-4:]]}


def statement(test: Test, finding: Finding, words: dict[str, str]) -> str:
    """The test's sentence, filled in."""
    template = test.says if finding.fired or not test.clean else test.clean
    numbers = _Numbers({k: _short(v) for k, v in finding.numbers.items()})
    named = {"hosts": ", ".join(finding.hosts)} if finding.hosts else {}  # else their number, where it is told
    return template.format_map(_Numbers({**numbers, **words, **named}))


class _Numbers(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def _short(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3g}"


def span_words(span: Span) -> str:
    """A stretch of time in words."""
    return f"{span.seconds:.0f} s" if span.seconds < 180 else f"{span.seconds / 60:.0f} min"


_NUMBER = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?!\.?\d)"  # whole: its first digits alone are another one
_MOVED = re.compile(rf"\b(rose|fell) from {_NUMBER} to {_NUMBER}")
# The largest or smallest of those the sentence does not name.
_MOST = re.compile(rf"\b(?:highest(?: other host| share)?|(?:the )?others at most|at most) {_NUMBER}\b(?! of)")
_LEAST = re.compile(rf"\b(?:lowest|(?:the )?others at least) {_NUMBER}\b")
_OTHER_WINDOW = re.compile(r"/(?:fast|before)$")
_BEFORE = re.compile(r"^\S* (?:before|at full speed)\b")  # said of the other window
_ROUNDING = 0.011  # a sentence gives two or three digits


def contradictions(says: str, values: Mapping[str, float]) -> list[str]:
    """The parts of a sentence that its values, or its own other parts, belie."""
    out = []
    for word, before, after in _MOVED.findall(says):
        if (float(after) > float(before)) != (word == "rose"):
            out.append(f"'{word} from {before} to {after}'")
    unnamed = {k: v for k, v in values.items() if _unnamed(k, says) and v == v}
    for told, belied in ((_MOST, max), (_LEAST, min)):
        for match in told.finditer(says):
            limit, before = match[1], bool(_BEFORE.search(says[match.end() :]))
            rest = [v for k, v in unnamed.items() if bool(_OTHER_WINDOW.search(k)) == before]
            if not rest:
                continue
            found, bound = belied(rest), float(limit)
            slack = _ROUNDING * max(abs(bound), abs(found)) + 0.0005
            if (found > bound + slack) if told is _MOST else (found < bound - slack):
                out.append(f"'{limit}', though the values hold {found:.4g}")
    return out


def _unnamed(key: str, says: str) -> bool:
    return not re.search(rf"(?<![\w-]){re.escape(key.partition('/')[0])}(?![\w-])", says)
