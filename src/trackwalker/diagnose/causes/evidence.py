"""The evidence book: numbers every claim once, in the order it was found."""

from __future__ import annotations

from typing import Literal

from trackwalker.diagnose.verdict import Evidence

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
