"""A model file for somebody's own model: from another one, or from the config.json of released weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from trackwalker.errors import UsageError
from trackwalker.launch.request.models import METADATA, Model

# What config.json of released weights calls MaxText's keys ("names") and its blocks.
_WORDS = json.loads((files("trackwalker.launch") / "maxtext.json").read_text())
_NAMES: dict[str, str] = _WORDS["names"]
_BLOCKS: dict[str, str] = _WORDS["blocks"]
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
