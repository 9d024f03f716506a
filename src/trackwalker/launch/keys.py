"""Which keys a trainer knows, and the nearest one to a key that it does not."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from trackwalker.trainers.tiny.config import Config as TinyConfig


@cache
def known_keys(trainer: str) -> frozenset[str]:
    """Every key that the trainer accepts."""
    if trainer == "tiny":
        return frozenset(field.name for field in dataclasses.fields(TinyConfig))
    lines = (files("trackwalker.launch") / "maxtext_keys.txt").read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def unknown_keys(trainer: str, keys: Iterable[str], more: Iterable[str] = ()) -> list[str]:
    """One line for every key that the trainer does not know, with the nearest that it does."""
    known = known_keys(trainer) | set(more)
    return [_line(trainer, key, known) for key in keys if key not in known]


def _line(trainer: str, key: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    near = near or sorted(k for k in known if k.startswith(f"{key}_"))
    hint = f"did you mean '{near[0]}'?" if near else "list keys of your own branch under trackwalker.keys of the model"
    return f"unknown key '{key}' for {trainer}; {hint}"
