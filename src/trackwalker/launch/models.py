"""Model configs that ship with Trackwalker, and how a name finds one."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from trackwalker.errors import UsageError


def shipped_models() -> dict[str, Path]:
    """Name to config file of every shipped model."""
    folder = Path(str(files("trackwalker.models")))
    return {p.stem: p for p in sorted(folder.glob("*.yml"))}


def find_model(name: str) -> Path:
    """The config of a model; an unknown name is answered with the nearest one."""
    models = shipped_models()
    if name in models:
        return models[name]
    near = difflib.get_close_matches(name, models, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UsageError(f"unknown model '{name}'; {hint}models: {', '.join(models)}")
