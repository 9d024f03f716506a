"""What a run was told: the trainer's own config dump over run.json over the model file, as one set of values."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from trackwalker.errors import TrackwalkerError
from trackwalker.job.run import RunRecord
from trackwalker.job.scrub import shown
from trackwalker.launch.request.models import load_model
from trackwalker.launch.request.resolved import Effective
from trackwalker.logs.facts import LogFacts

# MaxText prints the scaled sizes under these names; they win over what they were scaled from.
_SCALED = {
    "emb_dim": "base_emb_dim",
    "mlp_dim": "base_mlp_dim",
    "moe_mlp_dim": "base_moe_mlp_dim",
    "num_decoder_layers": "base_num_decoder_layers",
    "num_query_heads": "base_num_query_heads",
    "num_kv_heads": "base_num_kv_heads",
}
_SIZES = ("base_emb_dim", "base_mlp_dim", "base_num_decoder_layers", "base_num_query_heads", "vocab_size")
_ENUM = re.compile(r"^[A-Z]\w*(?:Type|Location|Mode|Method|Policy)\.(\w+)$")
# What decides about speed, for comparisons of two runs.
_SPEED = re.compile(
    r"^(?:model_name|per_device_batch_size|max_target_length|gradient_accumulation_steps|(?:ici|dcn)_\w+_parallelism"
    r"|remat_policy|attention|dtype|weight_dtype|quantization|scan_layers|sparse_matmul|megablox|capacity_factor"
    r"|base_\w+|num_experts\w*|dataset_type|packing|shardy|opt_type)$"
)
_ENVIRONMENT = re.compile(r"^(?:XLA_FLAGS|XLA_\w+|NCCL_\w+|RCCL_\w+|JAX_\w+|HSA_\w+|NVTE_\w+|LIBTPU\w*|TF_\w+)$")
_WHERE = re.compile(r"COORDINATOR|_IP$|_PORT$|PROCESS_ID|LOCAL_DEVICE|SOCKET_IFNAME")  # place, not speed


@dataclass
class Settings:
    """The config of a run, and which places it was put together from."""

    values: Effective
    told: dict[str, Any] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)
    model: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    contradicts: str = ""  # what the run says otherwise than the model file of its name

    @property
    def untold(self) -> list[str]:
        """Sizes of the model that nobody stated: with the trainer's defaults its FLOPs would be another model's."""
        return [name for name in _SIZES if name not in self.told]

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens of one device in one step."""
        if not {"per_device_batch_size", "max_target_length"} <= set(self.told):
            return None
        try:
            batch, length = self.values.number("per_device_batch_size"), self.values.whole("max_target_length")
            return batch * length * self.values.whole("gradient_accumulation_steps")
        except TrackwalkerError:
            return None

    def about_speed(self) -> dict[str, str]:
        """The settings and variables that a comparison has to know of; secrets starred."""
        config = {k: str(v) for k, v in sorted(self.told.items()) if _SPEED.match(k)}
        env = {k: shown(k, v) for k, v in sorted(self.env.items()) if _ENVIRONMENT.match(k) and not _WHERE.search(k)}
        return {**config, **env}


def settings_of(facts: LogFacts, run: RunRecord | None) -> Settings:
    """Put the places together; what none of them tells stays at the trainer's default."""
    told: dict[str, Any] = {}
    places: list[str] = []
    model = (run.model if run else None) or facts.header.get("MODEL_NAME") or facts.header.get("MODEL_NAME_ALIAS")
    dump = {name: _value(text) for name, (text, _) in facts.config.items()}
    dump |= {base: dump[scaled] for scaled, base in _SCALED.items() if scaled in dump}
    architecture, contradicts = _architecture(model, dump, told, places)
    if run is not None and run.config:
        told |= {name: setting.value for name, setting in run.config.items()}
        places.append("run.json")
    if dump:
        told |= dump
        places.append("config dump of the log")
        heads = dump.get("base_num_query_heads")
        if heads and "base_emb_dim" in dump and "base_num_kv_heads" not in dump:  # a trainer with one kind of heads
            told["base_num_kv_heads"] = heads
            told.setdefault("head_dim", int(told["base_emb_dim"]) // int(heads))
    env = {name: str(setting.value) for name, setting in run.env.items()} if run else {}
    name = str(dump.get("model_name") or "")
    model = model or (name if name != "default" else None)
    return Settings(Effective(told, architecture), told, places, model, env, contradicts)


def _architecture(
    model: str | None, dump: dict[str, Any], told: dict[str, Any], places: list[str]
) -> tuple[dict[str, Any], str]:
    """What the model file adds; nothing when the run itself says that it trained something else under that name."""
    try:
        known = load_model(model) if model else None
    except TrackwalkerError:
        known = None  # a model of the user's own: the dump has to say it all
    if known is None:
        return {}, ""
    sizes = {**known.about.architecture, **{k: v for k, v in known.config.items() if k in _SIZES}}
    for name, value in sizes.items():
        if name in dump and isinstance(value, int) and str(dump[name]) != str(value):
            return {}, f"{name} is {dump[name]} in the run and {value} in the model file {known.name}"
    told |= {**known.about.architecture, **known.config}
    places.append(f"model file {known.name}")
    return dict(known.about.architecture), ""


def _value(text: str) -> Any:
    """A value of the dump: an enumeration's name, a list, or the text itself."""
    if match := _ENUM.match(text):
        return "" if match[1] == "NONE" else match[1].lower()
    if text.startswith("["):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    return text
