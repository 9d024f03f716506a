"""The values a trainer would see: command line over model file over the trainer's own defaults, as numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from trackwalker.errors import UsageError

# MaxText's `defaults` of the keys that decide about mesh, memory and rules; what config.json of released weights calls
# its keys (`names`) and its `blocks`; what each policy of `remat` keeps on the GPU of every layer beside its input.
MAXTEXT: dict[str, Any] = json.loads((files("trackwalker.launch") / "maxtext.json").read_text(encoding="utf-8"))
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@cache
def tables() -> dict[str, Any]:
    """What tables.json holds."""
    found: dict[str, Any] = json.loads((files("trackwalker.launch") / "tables.json").read_text(encoding="utf-8"))
    return found


class Effective(Mapping[str, Any]):
    """A config with its defaults; words of the command line are read as the numbers they stand for."""

    def __init__(self, config: Mapping[str, Any], architecture: Mapping[str, Any] | None = None) -> None:
        self._values = {**MAXTEXT["defaults"], **(architecture or {}), **config}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def whole(self, key: str) -> int:
        """A whole number; anything else is one clear line."""
        number = self.number(key, "a whole number")
        if not number.is_integer():
            raise UsageError(f"{key}={self[key]}: a whole number is needed")
        return int(number)

    def number(self, key: str, kind: str = "a number") -> float:
        """A finite number; anything else is one clear line."""
        value = self[key]
        try:
            number = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not abs(number) < float("inf"):
            raise UsageError(f"{key}={value}: {kind} is needed")
        return number

    def flag(self, key: str) -> bool:
        """True or false, however it was written."""
        value = self[key]
        if isinstance(value, bool):
            return value
        try:
            return _FLAGS[str(value).strip().lower()]
        except KeyError:
            raise UsageError(f"{key}={value}: true or false is needed") from None

    def facts(self) -> dict[str, Any]:
        """Every value, words that are numbers or flags turned into them: what conditions are asked on."""
        return {k: _plain(v) for k, v in self._values.items()}


def _plain(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if number.is_integer() else number
