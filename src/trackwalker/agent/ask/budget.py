"""How much a model may spend on one question, and how an endless loop is noticed."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SAME_CALL = 3  # the same question for the third time: it goes in circles
_CALLS_A_TURN = 4


class OutOfBudget(Exception):
    """The model may not go on; the message says what ran out."""


@dataclass(frozen=True)
class Budget:
    """The most turns (requests to the model), tokens and seconds of one question."""

    turns: int = 12
    tokens: int = 200_000
    seconds: float = 120.0

    @property
    def calls(self) -> int:
        """Calls of tools: several may be in one turn."""
        return _CALLS_A_TURN * self.turns


@dataclass
class Spending:
    """What was spent so far; every call of a tool passes here."""

    budget: Budget
    began: float = field(default_factory=time.monotonic)
    calls: int = 0
    _seen: Counter[str] = field(default_factory=Counter)

    def call(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Allow one more call; returns whether the same one was made before. Raises OutOfBudget."""
        if self.left_s <= 0:
            raise OutOfBudget(f"{self.budget.seconds:g} seconds are over")
        self.calls += 1
        if self.calls > self.budget.calls:
            raise OutOfBudget(f"it called tools {self.budget.calls} times")
        key = f"{tool} {json.dumps({k: v for k, v in args.items() if v is not None}, sort_keys=True, default=str)}"
        self._seen[key] += 1
        if self._seen[key] >= _SAME_CALL:
            raise OutOfBudget(f"it went in circles: {tool} with the same arguments for the {_SAME_CALL}rd time")
        return self._seen[key] > 1

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.began + self.budget.seconds - time.monotonic()
