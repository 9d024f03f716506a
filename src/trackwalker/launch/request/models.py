"""Model configs: what a file says about itself, where files are looked for, and how a name finds one."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trackwalker.errors import UsageError
from trackwalker.job.yaml_files import read_yaml
from trackwalker.launch.request.effective import MAXTEXT
from trackwalker.launch.request.rules import Rule

METADATA = "trackwalker"  # the one top-level key that is ours; everything else is the trainer's
PATH_VARIABLE = "TRACKWALKER_MODELS"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SUFFIXES = (".gpu.yml", ".yml", ".yaml")  # the first is upstream's


class About(BaseModel):
    """The metadata block of a model file; it never reaches the trainer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    aliases: list[str] = []
    trainer: Literal["maxtext", "tiny"] = "maxtext"
    nodes: list[int] = Field(default=[1], min_length=1)  # node counts that are documented and tested
    gpus_per_node: int = Field(default=8, ge=1)
    gpu: str | None = None  # the profile that batch size and node counts were chosen for
    parameters: float | None = None  # as published
    source: str = ""  # where the numbers of the architecture come from
    architecture: dict[str, Any] = {}  # what MaxText fills in for model_name
    keys: list[str] = []  # keys that this model's trainer knows beyond MaxText's own
    env: dict[str, str] = {}
    xla_flags: dict[str, str] = {}
    rules: list[Rule] = []


@dataclass(frozen=True)
class Model:
    """One model config: its name, its file, what it says about itself, and what the trainer is told."""

    name: str
    path: Path
    about: About
    config: dict[str, Any]

    def trainer_yaml(self) -> str:
        """The file as the trainer may read it: without our block, everything else as it was written."""
        kept, ours = [], False
        for line in self.path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line[0] not in " \t\r\n#":
                ours = line.startswith(f"{METADATA}:")
            if not ours:
                kept.append(line)
        return "".join(kept)


def model_folders(env: Mapping[str, str] = os.environ) -> list[Path]:
    """Where models are looked for: the user's folders in order, then the shipped ones."""
    own = [Path(p).expanduser() for p in env.get(PATH_VARIABLE, "").split(os.pathsep) if p]
    return [*own, Path(str(files("trackwalker.models")))]


def model_files(env: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Name to config file; the first folder that has a name wins."""
    found: dict[str, Path] = {}
    for folder in model_folders(env):
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if name := _stem(path):
                found.setdefault(name, path)
    return dict(sorted(found.items()))


def find_model(name: str, env: Mapping[str, str] = os.environ) -> Path:
    """The config file that a name means: exact name, declared alias, then the only name that contains it."""
    if "/" in name or _stem(Path(name)):
        path = Path(name).expanduser()
        if path.is_file():
            return path
        raise UsageError(f"no model file '{name}'")
    known = model_files(env)
    if name in known:
        return known[name]
    aliases = _aliases(known)
    if name in aliases:
        return known[aliases[name]]
    # In the middle only from the beginning of a word on: a misspelt name is a part of another by accident.
    inside = re.compile(rf"[-_.+]{re.escape(name)}")
    for near in ([n for n in known if n.startswith(name)], [n for n in known if inside.search(n)]):
        if len(near) == 1:
            return known[near[0]]
        if near:
            raise UsageError(f"model name '{name}' is not clear: it could be {_either(near)}; give one of them")
    ranked = difflib.get_close_matches(name.lower(), [*known, *aliases], n=6, cutoff=0.5)
    near = list(dict.fromkeys(aliases.get(n, n) for n in ranked))[:3]
    hint = f"did you mean {_either(near)}? " if near else ""
    raise UsageError(f"unknown model '{name}'; {hint}models: {', '.join(known)}")


def load_model(name: str, env: Mapping[str, str] = os.environ) -> Model:
    """The model that a name means, read and checked."""
    return read_model(find_model(name, env))


def read_model(path: Path) -> Model:
    """A model file; what is wrong with it is one line."""
    loaded = _read(path)
    try:
        about = About.model_validate(loaded.get(METADATA) or {})
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise UsageError(f"{path}: {METADATA}.{where}: {first['msg']}") from e
    name = _stem(path) or path.name
    if not _NAME.fullmatch(name):
        raise UsageError(f"model file '{path}': its name may have letters, digits, '.', '_', '+' and '-' only")
    return Model(name, path, about, {k: v for k, v in loaded.items() if k != METADATA})


def _read(path: Path) -> dict[str, Any]:
    try:
        loaded = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"cannot read model file '{path}': {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise UsageError(f"model file '{path}' is not valid YAML: {' '.join(str(e).split())}") from e
    if not isinstance(loaded, dict):
        raise UsageError(f"model file '{path}' must hold key: value pairs")
    return {str(k): v for k, v in loaded.items()}


def _aliases(known: Mapping[str, Path]) -> dict[str, str]:
    declared: dict[str, str] = {}
    for name, path in known.items():
        for alias in read_model(path).about.aliases:
            if declared.setdefault(alias, name) != name:
                raise UsageError(f"alias '{alias}' is declared by {declared[alias]} and by {name}; remove one")
    return declared


def _stem(path: Path) -> str | None:
    return next((path.name[: -len(s)] for s in _SUFFIXES if path.name.endswith(s) and path.name != s), None)


def _either(names: list[str]) -> str:
    quoted = [f"'{n}'" for n in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


_NAMES: dict[str, str] = MAXTEXT["names"]
_BLOCKS: dict[str, str] = MAXTEXT["blocks"]
_NEEDED = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "intermediate_size")


def architecture_of(path: Path) -> dict[str, Any]:
    """The architecture keys of a config.json as it comes with released weights."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"cannot read '{path}': {e.strerror}") from e
    except ValueError as e:
        raise UsageError(f"'{path}' is not JSON: {e}") from e
    missing = [k for k in _NEEDED if not isinstance(given, dict) or k not in given]
    if missing:
        raise UsageError(f"'{path}' is not the config.json of a language model: it has no {', '.join(missing)}")
    block = _BLOCKS.get(str(given.get("model_type")))
    if block is None:
        known = ", ".join(sorted(_BLOCKS))
        raise UsageError(f"'{path}': model_type '{given.get('model_type')}' has no block in MaxText; known: {known}")
    found: dict[str, Any] = {"decoder_block": block}
    found |= {ours: given[theirs] for theirs, ours in _NAMES.items() if given.get(theirs) is not None}
    found.setdefault("base_num_kv_heads", found["base_num_query_heads"])
    if block == "deepseek":
        found |= {"attention_type": "mla", "routed_bias": True}
        found.pop("head_dim", None)
    else:
        found.setdefault("head_dim", found["base_emb_dim"] // found["base_num_query_heads"])
    if found.get("num_experts", 1) > 1 and "base_moe_mlp_dim" not in found:
        found["base_moe_mlp_dim"] = found["base_mlp_dim"]
    if block in ("qwen3", "qwen3_moe"):
        found["use_qk_norm"] = True
    if block == "qwen3_moe":
        found["base_mlp_dim"] = found["base_moe_mlp_dim"]  # MaxText wants them equal where every layer has experts
    return found


def new_model(like: Model, words: Mapping[str, str], architecture: Mapping[str, Any] | None = None) -> str:
    """The text of a model file: another model's, with an architecture of its own and the given settings."""
    config = dict(like.config)
    about: dict[str, Any] = {"aliases": [], "trainer": like.about.trainer, "nodes": like.about.nodes}
    about |= {"gpus_per_node": like.about.gpus_per_node, "source": ""}
    about |= {"gpu": like.about.gpu} if like.about.gpu else {}
    if architecture:
        for key in (*like.about.architecture, "model_name"):
            config.pop(key, None)
        config = {**architecture, **config, **architecture}
    elif like.about.architecture:
        about["architecture"] = like.about.architecture
    config |= {k: yaml.safe_load(v) if v else v for k, v in words.items()}
    body = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    return yaml.safe_dump({METADATA: about}, sort_keys=False, allow_unicode=True) + "\n" + body
