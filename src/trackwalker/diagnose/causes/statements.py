"""What a test says of its numbers, in words: every number of a sentence is one of those beside it."""

from __future__ import annotations

from trackwalker.diagnose.causes.playbook import Test
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.stats.detectors import Finding, Values

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
