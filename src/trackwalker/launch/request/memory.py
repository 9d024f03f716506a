"""How many parameters a model has (exact), and how much GPU memory a step needs (an estimate that says its error)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from trackwalker.errors import UsageError
from trackwalker.job.gpus import gpus
from trackwalker.launch.request.effective import MAXTEXT, Effective
from trackwalker.launch.request.mesh import Mesh

ERROR = 0.25  # the estimate's own: what XLA fuses, pads and keeps alive is not modelled
USABLE = 0.93  # XLA_PYTHON_CLIENT_MEM_FRACTION of the base layer
GIB = 2**30
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
_MOMENTS = {"adamw": 2, "adam_pax": 2, "muon": 2, "sgd": 0}
# What a policy keeps on the GPU of every layer beside its input; the rest is computed again in the backward pass.
_KEPT: dict[str, list[str]] = MAXTEXT["remat"]


@dataclass(frozen=True)
class Gpu:
    """One GPU model: its memory and its maker."""

    name: str
    vendor: Literal["amd", "nvidia"]
    memory_gib: float


@cache
def gpu_profiles() -> dict[str, Gpu]:
    """Every GPU model whose memory we know, by name."""
    return {name: Gpu(name, row["vendor"], row["memory_gib"]) for name, row in gpus().items() if "memory_gib" in row}


def find_gpu(name: str) -> Gpu:
    """The profile of a GPU model, however it is capitalised."""
    known = gpu_profiles()
    found = next((g for n, g in known.items() if n.lower() == name.lower()), None)
    if found is None:
        raise UsageError(f"unknown GPU '{name}'; known: {', '.join(known)}")
    return found


@dataclass(frozen=True)
class Parameters:
    """Weights of a model, and those that one token passes through."""

    total: int
    active: int


def count_parameters(config: Effective) -> Parameters:
    """The number of weights, exactly, from the architecture keys."""
    width, layers = config.whole("base_emb_dim"), config.whole("base_num_decoder_layers")
    vocabulary = config.whole("vocab_size") * width
    outside = vocabulary * (1 if config.flag("logits_via_embedding") else 2) + width
    per_layer = _attention(config) + 2 * width
    dense, sparse = layer_kinds(config, layers)
    experts, chosen = config.whole("num_experts"), config.whole("num_experts_per_tok")
    one_expert = mlp_weights(config, expert_width(config))
    always = config.whole("shared_experts") * one_expert + width * experts + experts * config.flag("routed_bias")
    fixed = outside + layers * per_layer + dense * mlp_weights(config, config.whole("base_mlp_dim")) + sparse * always
    return Parameters(fixed + sparse * experts * one_expert, fixed + sparse * chosen * one_expert)


def layer_kinds(config: Effective, layers: int) -> tuple[int, int]:
    """How many of the layers are dense, and how many have experts."""
    if config.whole("num_experts") == 1:
        return layers, 0
    first, step = config.whole("first_num_dense_layers"), config.whole("interleave_moe_layer_step")
    sparse = (layers - first) // step
    return layers - sparse, sparse


def expert_width(config: Effective) -> int:
    """Hidden width of one expert."""
    width = config.whole("base_moe_mlp_dim")
    return width if width > 0 else config.whole("base_mlp_dim")


def mlp_weights(config: Effective, hidden: int) -> int:
    """Weights of one feed-forward block."""
    return (len(config["mlp_activations"]) + 1) * config.whole("base_emb_dim") * hidden


def _attention(config: Effective) -> int:
    width, heads = config.whole("base_emb_dim"), config.whole("base_num_query_heads")
    if config["attention_type"] == "mla":
        q, kv = config.whole("q_lora_rank"), config.whole("kv_lora_rank")
        nope, rope, value = (config.whole(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        query = width * q + q + q * heads * (nope + rope) if q else width * heads * (nope + rope)
        return query + width * (kv + rope) + kv + kv * heads * (nope + value) + heads * value * width
    head = config.whole("head_dim")
    norms = 2 * head if config.flag("use_qk_norm") else 0
    return 2 * width * head * (heads + config.whole("base_num_kv_heads")) + norms


@dataclass(frozen=True)
class Estimate:
    """GPU memory of one device in bytes: what must stay for the whole run, and what a step needs on top."""

    weights: float
    optimizer: float
    gradients: float
    activations: float
    gpu: Gpu

    @property
    def state(self) -> float:
        """Weights and optimizer: there from the first step to the last, whatever the compiler does."""
        return self.weights + self.optimizer

    @property
    def total(self) -> float:
        """Everything together."""
        return self.state + self.gradients + self.activations

    @property
    def usable(self) -> float:
        """What XLA may take of the GPU's memory."""
        return self.gpu.memory_gib * GIB * USABLE

    @property
    def verdict(self) -> Literal["fits", "tight", "unlikely", "impossible"]:
        """Impossible only where weights and optimizer alone are too large; the rest depends on the compiler."""
        if self.state > self.usable:
            return "impossible"
        if self.total * (1 - ERROR) > self.usable:
            return "unlikely"
        return "tight" if self.total > self.usable else "fits"

    def brief(self) -> str:
        """What it needs of what there is: `181 of 268 GiB`."""
        return f"{self.total / GIB:.0f} of {self.usable / GIB:.0f} GiB"

    def words(self) -> str:
        """One line for people."""
        parts = [("weights", self.weights), ("optimizer", self.optimizer), ("gradients", self.gradients)]
        parts += [("activations", self.activations)]
        listed = " + ".join(f"{name} {amount / GIB:.0f}" for name, amount in parts)
        whole = f"{self.total / GIB:.0f} GiB ± {ERROR:.0%}"
        return f"{whole} of {self.usable / GIB:.0f} usable on {self.gpu.name} ({listed})"


def estimate_memory(config: Effective, mesh: Mesh, gpu: Gpu) -> Estimate:
    """What one device needs: sharded state, and the activations that the remat policy keeps."""
    parameters = count_parameters(config).total / mesh.weight_shards
    weight = _BYTES.get(str(config["weight_dtype"]), 4)
    first = _BYTES.get(str(config["mu_dtype"]), weight)
    moments = _MOMENTS.get(str(config["opt_type"]), 2)
    optimizer = 0 if moments == 0 else first + weight
    return Estimate(parameters * weight, parameters * optimizer, parameters * weight, _activations(config), gpu)


def _activations(config: Effective) -> float:
    # Tensor, sequence and pipeline axes cut a layer's activations by as much as they raise the tokens of a device
    # (the batch is counted per device), so the product does not depend on the mesh.
    tokens = config.number("per_device_batch_size") * config.whole("max_target_length")
    tokens /= max(1, config.whole("gradient_accumulation_steps"))
    width, layers, half = config.whole("base_emb_dim"), config.whole("base_num_decoder_layers"), 2
    pieces = _pieces(config)
    policy = str(config["remat_policy"])
    if policy not in _KEPT:
        raise UsageError(f"remat_policy={policy}: known policies are {', '.join(_KEPT)}")
    kept = width + sum(pieces[p] for p in _KEPT[policy])
    working = 2 * sum(pieces.values())  # one layer at a time, forward and backward
    logits = config.whole("vocab_size") * 3  # in half precision, and once more as float32
    return tokens * half * (layers * kept + working + logits)


def _pieces(config: Effective) -> dict[str, int]:
    """Width per token of what a layer computes."""
    width, heads = config.whole("base_emb_dim"), config.whole("base_num_query_heads")
    if config["attention_type"] == "mla":
        context = heads * config.whole("v_head_dim")
        qkv = heads * (2 * (config.whole("qk_nope_head_dim") + config.whole("qk_rope_head_dim"))) + context
    else:
        context = heads * config.whole("head_dim")
        qkv = context + 2 * config.whole("base_num_kv_heads") * config.whole("head_dim")
    hidden = config.whole("base_mlp_dim")
    if config.whole("num_experts") > 1:
        chosen = config.whole("num_experts_per_tok") + config.whole("shared_experts")
        hidden = chosen * expert_width(config)
    up = hidden * len(config["mlp_activations"])
    return {"qkv": qkv, "context": context, "out": width, "up": up, "down": width, "norms": 2 * width}


def to_json(estimate: Estimate) -> dict[str, Any]:
    """The estimate as data, in bytes."""
    names = ("weights", "optimizer", "gradients", "activations", "total", "usable")
    figures = {name: round(getattr(estimate, name)) for name in names}
    return {**figures, "error": ERROR, "gpu": estimate.gpu.name, "verdict": estimate.verdict}
