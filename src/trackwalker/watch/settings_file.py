"""The watcher's settings file as YAML; what is wrong with it in one line, without repeating its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from trackwalker.errors import UsageError
from trackwalker.job.strict_yaml import Strict
from trackwalker.job.trust import distrust_open

Model = TypeVar("Model", bound=BaseModel)


def read_settings(path: Path) -> Any:
    """What the file holds."""
    try:
        with path.open() as file:
            if why := distrust_open(file.fileno(), path):
                raise UsageError(f"the watcher's settings are not believed, others could have written them: {why}")
            return yaml.load(file, Loader=Strict)  # noqa: S506 - a safe one
    except OSError as e:
        raise UsageError(f"the watcher's settings {path} cannot be read: {e.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{where} is not YAML: {getattr(e, 'problem', None) or type(e).__name__}") from None


def validated(model: type[Model], raw: Any, path: Path, section: str = "") -> Model:
    """The settings, or of a section, as a model."""
    try:
        return model.model_validate(raw)
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in ([section] if section else []) + list(first["loc"]))
        more = f" (and {e.error_count() - 1} more)" if e.error_count() > 1 else ""
        raise UsageError(f"{path}: {place or 'the file'}: {first['msg'].removeprefix('Value error, ')}{more}") from None
