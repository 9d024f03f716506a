"""Model FLOPs of a training step, exactly, from the architecture: what MFU is the share of.

Counted are the matrix products of one forward pass and twice that for the backward pass; nothing that is computed
again. One multiplication with its addition is two. Causal attention counts half of the square: the rest is masked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trackwalker.launch.request.memory import expert_width, layer_kinds, mlp_weights
from trackwalker.launch.request.resolved import Effective

FORMULA = "trackwalker.model-flops/1 (causal attention counted half, as MaxText does since mid-2025)"
# Decoders whose layers take turns: of every so many layers, how many see only a part of the sequence.
_LOCAL = {"gemma2": (1, 2), "gemma3": (5, 6), "gpt_oss": (1, 2), "llama4": (3, 4)}
_FLOAT8 = ("fp8", "float8", "nanoo")


@dataclass(frozen=True)
class Flops:
    """FLOPs of one device in one step, by part of the model, and the type that each part's products have."""

    parts: dict[str, float]
    dtypes: dict[str, str]
    attention_full: float  # what attention would be with the masked half counted
    notes: list[str] = field(default_factory=list)

    @property
    def total(self) -> float:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def with_masked_half(self) -> float:
        """As MaxText counted before mid-2025."""
        return self.total - self.parts["attention"] + self.attention_full

    def ideal_seconds(self, peak: dict[str, float]) -> float | None:
        """How long the parts take at the peak (TFLOP/s) of their own types; None where one is not known."""
        if any(peak.get(kind) is None for kind in self.dtypes.values()):
            return None
        return sum(flops / (peak[self.dtypes[part]] * 1e12) for part, flops in self.parts.items())


def model_flops(config: Effective) -> Flops:
    """Count the FLOPs of a dense, grouped-query, mixture-of-experts or latent-attention decoder."""
    tokens = config.number("per_device_batch_size") * config.whole("gradient_accumulation_steps")
    length, width = config.whole("max_target_length"), config.whole("base_emb_dim")
    layers = config.whole("base_num_decoder_layers")
    rows = tokens * length  # rows of every matrix product
    dense, sparse = layer_kinds(config, layers)
    mlp = mlp_weights(config, config.whole("base_mlp_dim")) * dense
    parts = {"projections": 2 * rows * layers * _projections(config)}
    parts["mlp"] = 2 * rows * mlp
    if sparse:
        one = mlp_weights(config, expert_width(config))
        active = config.whole("num_experts_per_tok") + config.whole("shared_experts")
        parts["experts"] = 2 * rows * sparse * one * active
        parts["router"] = 2 * rows * sparse * width * config.whole("num_experts")
    parts["logits"] = 2 * rows * width * config.whole("vocab_size")
    per_pair = _per_pair(config)
    seen, full = _pairs(config, length, layers)
    parts["attention"] = tokens * seen * per_pair
    parts = {name: 3 * flops for name, flops in parts.items() if flops}
    notes = []
    if int(config.get("mtp_num_layers", 0) or 0):
        notes.append("the layers that predict further tokens (mtp_num_layers) are not counted")
    return Flops(parts, _dtypes(config, parts), 3 * tokens * full * per_pair, notes)


def _projections(config: Effective) -> int:
    """Weights of one layer that queries, keys, values and the output pass through."""
    width, heads = config.whole("base_emb_dim"), config.whole("base_num_query_heads")
    if config["attention_type"] != "mla":
        head = config.whole("head_dim")
        return 2 * width * head * (heads + config.whole("base_num_kv_heads"))
    q, kv = config.whole("q_lora_rank"), config.whole("kv_lora_rank")
    nope, rope, value = (config.whole(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    query = width * q + q * heads * (nope + rope) if q else width * heads * (nope + rope)
    return query + width * (kv + rope) + kv * heads * (nope + value) + heads * value * width


def _per_pair(config: Effective) -> int:
    """FLOPs of one query and one key in one layer: their product, and the value weighed by it."""
    heads = config.whole("base_num_query_heads")
    if config["attention_type"] != "mla":
        return 4 * heads * config.whole("head_dim")
    return 2 * heads * sum(config.whole(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))


def _pairs(config: Effective, length: int, layers: int) -> tuple[float, float]:
    """Pairs of query and key in all layers of one sequence: those that are seen, and with the masked half."""
    block = str(config["decoder_block"]).split(".")[-1].lower()
    window = int(config.get("sliding_window_size", 0) or 0)
    chunk = int(config.get("chunk_attn_window_size", 0) or 0) if block == "llama4" else 0
    local, of = _LOCAL.get(block, (0, 1))
    few = layers // of * local + min(layers % of, local) if window or chunk else 0
    one = length * length / 2
    if chunk and chunk < length:
        near = length * chunk / 2
    elif window and window < length:
        near = length * window - window * window / 2
    else:
        near = one
    return few * near + (layers - few) * one, few * 2 * near + (layers - few) * float(length * length)


def _dtypes(config: Effective, parts: dict[str, float]) -> dict[str, str]:
    """The type of each part's products: quantisation reaches the layers' weights, not attention and logits."""
    plain = str(config.get("dtype", "bfloat16") or "bfloat16")
    asked = str(config.get("quantization", "") or "").lower()
    small = "float8" if any(word in asked for word in _FLOAT8) else "int8" if asked.startswith("int8") else plain
    reached = ("projections", "mlp", "experts")
    return {part: small if part in reached else plain for part in parts}
