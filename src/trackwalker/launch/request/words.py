"""The words of a run request: upstream's grammar, checked before anything is created."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trackwalker.errors import UsageError

_SPEC_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_MODEL_FILE = (".yml", ".yaml")  # a model may be given as a file of one's own
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NAME = 200  # a file name may have 255 bytes; the id, the suffix and a later throughput tag need room


@dataclass(frozen=True)
class ModelSpec:
    """`model[[:alias]:tag]`: the tag lengthens the job name, the alias names the shared checkpoint directory."""

    model: str
    alias: str | None = None
    tag: str | None = None


@dataclass(frozen=True)
class Passthrough:
    """What stood behind `--`: trainer settings and environment variables."""

    config: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def parse_model_spec(text: str) -> ModelSpec:
    """Read right to left as upstream does: one colon gives a tag, two give alias and tag."""
    parts = text.split(":")
    if len(parts) > 3:
        raise UsageError(f"model spec '{text}' has too many ':'; the form is model[[:alias]:tag]")
    model = parts[0]
    alias = parts[1] if len(parts) == 3 else None
    tag = parts[-1] if len(parts) > 1 else None
    for word in (alias, tag) if model.endswith(_MODEL_FILE) else (model, alias, tag):
        if word and not _SPEC_WORD.fullmatch(word):
            raise UsageError(f"'{word}' in model spec '{text}': use letters, digits, '.', '_', '+' and '-' only")
    if not model:
        raise UsageError(f"model spec '{text}' names no model")
    return ModelSpec(model, alias or None, tag or None)


def parse_passthrough(words: list[str]) -> Passthrough:
    """`key=value` goes to the trainer, `_env_NAME=VALUE` to its environment; values are kept byte for byte."""
    config: dict[str, str] = {}
    env: dict[str, str] = {}
    for word in words:
        if word in ("", "--"):
            continue
        key, eq, value = word.partition("=")
        if not eq or not key.removeprefix("--"):
            raise UsageError(f"'{word}' behind '--' is neither key=value nor _env_NAME=VALUE")
        if "\0" in word:
            raise UsageError(f"the value of {key!r} holds a NUL byte, which neither words nor environment can carry")
        if key.startswith("_env_"):
            name = key[len("_env_") :]
            if not _ENV_NAME.fullmatch(name):
                raise UsageError(f"'{key}' does not name an environment variable")
            env[name] = value
        else:
            config[key.removeprefix("--")] = value
    return Passthrough(config, env)


@dataclass(frozen=True)
class Watching:
    """What runs beside training: the recorder, and a Ray cluster; `note` is for the user."""

    observe: bool = False
    ray: bool = False
    note: str = ""


def parse_watching(observe: bool, ray: bool, env: Mapping[str, str], missing: str | None) -> Watching:
    """`--ray` needs Ray; RAY=1, upstream's way to ask for metrics, takes Ray where it is and records anyway."""
    remedy = "pip install 'trackwalker[ray]'"
    if ray and missing:
        raise UsageError(f"--ray needs Ray, and the package '{missing}' is not installed: {remedy}")
    asked = env.get("RAY", "").lower() in ("1", "true")
    if asked and missing and not ray:
        return Watching(observe=True, note=f"RAY=1: Ray is not installed, recording without it ({remedy} brings it)")
    ray = ray or asked
    return Watching(observe=observe or ray, ray=ray)


def job_name(spec: ModelSpec) -> str:
    """`JAX-<model>[-tag]`. Settings stay out of the name: they can be long or secret, and run.json has them."""
    name = f"JAX-{spec.model}" + (f"-{spec.tag}" if spec.tag else "")
    if len(name.encode()) > _LONGEST_NAME:
        raise UsageError(f"the job name would have {len(name)} characters, more than {_LONGEST_NAME}; shorten the tag")
    return name
