"""Whether what an evidence item says agrees with the values beside it: no sentence may contradict its own numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NUMBER = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
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
