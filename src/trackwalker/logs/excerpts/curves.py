"""The loss as a text shows it, in lines or in the columns of a table: that it left its course, or is no number."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from math import isfinite
from statistics import median

from trackwalker.logs.excerpts.machines import Shown
from trackwalker.logs.excerpts.tables import Table

LOSS = re.compile(
    r"(?i)(?<!val )(?<!val_)(?<!eval_)\b(?:(?:total|train|training|lm|avg|mean|batch)[_/])?(?:loss|nll)\b['\"]?\s?[:=]?\s?(-?\d+\.\d+(?:e[+-]?\d+)?)"  # noqa: E501
)
_NOT_FINITE = re.compile(
    r"(?i)(?<!best )\b(?:(?:total|train|training|lm|avg|mean|batch)[_/])?(?:loss|nll|ppl|rmse)\b['\"]?\s{0,4}[:=|]?\s{0,6}['\"]?[-+]?(?:nan|inf)\b"  # noqa: E501
)
_FINITE = re.compile(r"(?i)\b(?:loss|nll|ppl|rmse)\b['\"]?\s{0,4}[:=|]?\s{0,6}['\"]?\d")
_DIGITS = re.compile(r"\s*\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NO_NUMBER = re.compile(r"^\s*\d+[\s,|]+nan\s*$")  # a step and its loss
_LOSS_NAMED = re.compile(r"(?i)\bloss\b")
_COLUMN = re.compile(
    r"(?i)(?:^|[^a-z])(?:loss|rmse|mse|mae|nll|ppl|perplexity|(?:cross[_ ]?)?entropy|err|error|cost)(?:$|[^a-z])"
)
_HELD_OUT = re.compile(r"(?i)(?:^|[^a-z])(?:val|valid|validation|eval|test|dev)(?:$|[^a-z])")
_FEWEST = 3  # before and after
_SLOWER, _GROWN = 1.5, 2.0  # times what it was, of three and of two lines before
_JUMPED, _BLOW, _PART = 8, 4.0, 0.1  # moves; times the usual one; of what it was
Series = list[tuple[int, float]]


def diverged(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    """A loss that goes up by far at one place and does not come back, or is no number any more."""
    lost = [at for at, line in enumerate(lines) if _NO_NUMBER.match(line)]
    named = any(_LOSS_NAMED.search(line) for line in lines)
    if not lost:
        lost = [at for at, line in enumerate(lines) if _NOT_FINITE.search(line, 0, 600)]
        told = [at for at, line in enumerate(lines) if _FINITE.search(line, 0, 600)] if lost else []
        named = any(at < lost[0] for at in told) and not any(at > lost[0] for at in {*told} - {*lost})
    if len(lost) >= _FEWEST and named:
        yield "loss-divergence", lost[0], lines[lost[0]].strip()
        return
    columns = list(_columns(found))
    at = next((first for _, told in columns if (first := _lost_in(told)) is not None), None)
    trained = [told for name, told in columns if not _HELD_OUT.search(name)]
    at = at if at is not None else next(filter(None, map(_left, chain(measured(lines, LOSS).values(), trained))), None)
    if at is not None:
        yield "loss-divergence", at, lines[at].strip()


def measured(lines: Sequence[str], form: re.Pattern[str]) -> dict[str, Series]:
    """What lines tell, by the words before it."""
    series: dict[str, Series] = defaultdict(list)
    for at, line in enumerate(lines):
        if match := form.search(line, 0, 600):
            series[_DIGITS.sub("#", line[: match.start()])].append((at, float(match[1])))
    return series


def jumps_in(values: Sequence[float]) -> list[int]:
    """Where a loss rises at one blow by far more than it usually moves, again and again."""
    moves = [b - a for a, b in pairwise(values)]
    usual = median(map(abs, moves)) if len(moves) >= _JUMPED else 0.0
    far = [i + 1 for i, move in enumerate(moves) if move >= _BLOW * usual > 0 and move >= _PART * abs(values[i])]
    return far if len(far) > 1 else []


def _columns(found: Sequence[Table]) -> Iterator[tuple[str, Series]]:
    """The columns that hold a loss by their name, where a row for each step counts on."""
    for table in found:
        steps = [_number(row.cells[table.columns[0]]) for row in table.rows]
        if any(b is None or a is None or b <= a for a, b in pairwise(steps)):
            continue
        for name in table.columns[1:]:
            cells = [(row.line, _number(row.cells[name])) for row in table.rows] if _COLUMN.search(name) else []
            if cells and all(value is not None for _, value in cells):
                yield name, [(line, value) for line, value in cells if value is not None]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _lost_in(told: Series) -> int | None:
    """From where on none of several is a number, after some that were."""
    first = next((n for n, (_, value) in enumerate(told) if not isfinite(value)), 0)
    gone = first and not any(isfinite(value) for _, value in told[first:])
    return told[first][0] if gone and len(told) - first >= _FEWEST else None


def _left(told: Series) -> int | None:
    """From where on all are far above those before."""
    values = [much for _, much in told]
    for cut in range(_FEWEST - 1, len(values) - _FEWEST + 1):
        least = _SLOWER if cut >= _FEWEST else _GROWN
        if min(values[cut:]) >= least * max(values[max(0, cut - _FEWEST) : cut]) > 0:
            return told[cut][0]
    return None
