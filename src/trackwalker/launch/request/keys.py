"""Which keys a trainer knows, and the nearest one to a key that it does not."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from trackwalker.launch.request.effective import MAXTEXT
from trackwalker.trainers.tiny.config import Config as TinyConfig
from trackwalker.trainers.tiny.config import ConfigError
from trackwalker.trainers.tiny.config import load as load_tiny


def bad_values(path: Path, words: Mapping[str, str]) -> list[str]:
    """What the small trainer would refuse of a model file and the user's settings, found before a job exists."""
    settings = [f"{key}={value}" for key, value in words.items()]
    together = _refusal([str(path), *settings])
    # Each setting by itself, so that every mistake is named; what only contradicts another is told of all together.
    alone = [_refusal([str(path), word]) for word in settings] if together else []
    return list(dict.fromkeys(said for said in alone if said)) or ([together] if together else [])


def _refusal(arguments: list[str]) -> str:
    try:
        load_tiny(arguments)
    except ConfigError as e:
        return str(e)
    return ""


@cache
def known_keys(trainer: str) -> frozenset[str]:
    """Every key that the trainer accepts."""
    if trainer == "tiny":
        return frozenset(field.name for field in dataclasses.fields(TinyConfig))
    return frozenset(MAXTEXT["keys"])


_PACKAGES = {
    "tiny": (("jax",), "JAX", "pip install 'trackwalker[tiny]'"),
    "maxtext": (("maxtext", "MaxText"), "MaxText", "pip install maxtext, or give --image"),
}


def missing_trainer(trainer: str) -> list[str]:
    """What a trainer needs and this Python lacks, with the remedy; empty when it is here."""
    names, called, remedy = _PACKAGES.get(trainer, ((), "", ""))
    if not names or any(find_spec(name) is not None for name in names):
        return []
    return [f"the trainer '{trainer}' needs {called}, which is not installed for {sys.executable}: {remedy}"]


def unknown_keys(trainer: str, keys: Iterable[str], more: Iterable[str] = ()) -> list[str]:
    """One line for every key that the trainer does not know, with the nearest that it does."""
    known = known_keys(trainer) | set(more)
    return [_line(trainer, key, known) for key in keys if key not in known]


def _line(trainer: str, key: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    near = near or sorted(k for k in known if k.startswith(f"{key}_"))
    hint = f"did you mean '{near[0]}'?" if near else "list keys of your own branch under trackwalker.keys of the model"
    return f"unknown key '{key}' for {trainer}; {hint}"
