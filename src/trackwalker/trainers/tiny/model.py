"""A decoder-only transformer in plain JAX: RMSNorm, rotary causal attention, SwiGLU or mixture of experts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trackwalker.trainers.tiny.config import Config

Params = dict[str, Any]


def init_params(config: Config) -> Params:
    """Random parameters as numpy arrays: the same on every rank for the same seed, with nothing to compile."""
    rng = np.random.default_rng(config.init_seed)
    layers, emb, mlp = config.base_num_decoder_layers, config.base_emb_dim, config.base_mlp_dim
    heads, width, experts = config.base_num_query_heads, config.head_dim, config.num_experts

    def normal(*shape: int, fan_in: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(fan_in), np.float32)

    # The layers are stacked on the first axis and scanned, so compile time does not grow with depth.
    per_expert = (layers, experts) if experts > 1 else (layers,)
    stack: Params = {
        "attention_norm": np.ones((layers, emb), np.float32),
        "qkv": normal(layers, emb, 3, heads, width, fan_in=emb),
        "attention_out": normal(layers, heads, width, emb, fan_in=emb * 2 * layers),
        "mlp_norm": np.ones((layers, emb), np.float32),
        "gate": normal(*per_expert, emb, mlp, fan_in=emb),
        "up": normal(*per_expert, emb, mlp, fan_in=emb),
        "down": normal(*per_expert, mlp, emb, fan_in=mlp * 2 * layers),
    }
    if experts > 1:
        stack["router"] = normal(layers, emb, experts, fan_in=emb)
    return {
        "embedding": normal(config.vocab_size, emb, fan_in=1),
        "layers": stack,
        "final_norm": np.ones(emb, np.float32),
        "logits": normal(emb, config.vocab_size, fan_in=emb),
    }


def loss_and_aux(params: Params, batch: dict[str, jax.Array], config: Config) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean cross-entropy over the batch plus, for experts, the load-balance loss; aux has the parts."""
    logits, balance = forward(params, batch["inputs"], config)
    at_target = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    per_token = jax.nn.logsumexp(logits, axis=-1) - at_target
    total_weights = jnp.sum(batch["weights"] != 0, dtype=jnp.float32)
    loss = jnp.sum(per_token * batch["weights"]) / total_weights
    moe_lb_loss = config.load_balance_loss_weight * balance
    return loss + moe_lb_loss, {"total_weights": total_weights, "moe_lb_loss": moe_lb_loss}


def forward(params: Params, tokens: jax.Array, config: Config) -> tuple[jax.Array, jax.Array]:
    """Logits in float32 for each position, and the mean load-balance term of the layers (0 when dense)."""
    dtype = jnp.dtype(config.dtype)
    rotation = _rotary_angles(tokens.shape[1], config.head_dim)
    hidden = params["embedding"][tokens].astype(dtype)

    def layer(hidden: jax.Array, weights: Params) -> tuple[jax.Array, jax.Array]:
        weights = {name: value.astype(dtype) for name, value in weights.items()}
        hidden = hidden + _attention(_rms_norm(hidden, weights["attention_norm"]), weights, rotation)
        normed = _rms_norm(hidden, weights["mlp_norm"])
        if config.num_experts > 1:
            update, balance = _experts(normed, weights, config.num_experts_per_tok)
        else:
            update, balance = _swiglu(normed, weights), jnp.float32(0)
        return hidden + update, balance

    hidden, balance = jax.lax.scan(layer, hidden, params["layers"])
    hidden = _rms_norm(hidden, params["final_norm"].astype(dtype))
    return (hidden @ params["logits"].astype(dtype)).astype(jnp.float32), jnp.mean(balance)


def _rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    exact = x.astype(jnp.float32)
    normed = exact * jax.lax.rsqrt(jnp.mean(exact * exact, axis=-1, keepdims=True) + 1e-6)
    return normed.astype(x.dtype) * scale


def _rotary_angles(length: int, width: int) -> tuple[jax.Array, jax.Array]:
    frequency = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * frequency[None, :]
    return jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)


def _rotate(x: jax.Array, rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
    cos, sin = (part[None, :, None, :].astype(x.dtype) for part in rotation)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def _attention(x: jax.Array, weights: Params, rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
    qkv = jnp.einsum("bte,eshd->sbthd", x, weights["qkv"])
    query, key = _rotate(qkv[0], rotation), _rotate(qkv[1], rotation)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) / np.sqrt(query.shape[-1])
    length = x.shape[1]
    causal = np.tril(np.ones((length, length), bool))
    attention = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", attention, qkv[2])
    return jnp.einsum("bqhd,hde->bqe", mixed, weights["attention_out"])


def _swiglu(x: jax.Array, weights: Params) -> jax.Array:
    return jnp.matmul(jax.nn.silu(x @ weights["gate"]) * (x @ weights["up"]), weights["down"])


def _experts(x: jax.Array, weights: Params, per_token: int) -> tuple[jax.Array, jax.Array]:
    probabilities = jax.nn.softmax((x @ weights["router"]).astype(jnp.float32), axis=-1)
    count = probabilities.shape[-1]
    top, chosen = jax.lax.top_k(probabilities, per_token)
    # With one expert the raw probability stays as the gate, or the router would get no gradient.
    gates = top / jnp.sum(top, axis=-1, keepdims=True) if per_token > 1 else top
    one_hot = jax.nn.one_hot(chosen, count)
    combine = jnp.einsum("btk,btkx->btx", gates, one_hot).astype(x.dtype)
    # Every expert sees every token and the gates select: no token is ever dropped, and at this size it is cheapest.
    inner = jax.nn.silu(jnp.einsum("bte,xem->btxm", x, weights["gate"])) * jnp.einsum("bte,xem->btxm", x, weights["up"])
    out = jnp.einsum("btxm,xme,btx->bte", inner, weights["down"], combine)
    # Switch Transformer's balance term: 1 when the experts share the tokens evenly, more when they do not.
    share = jnp.mean(jnp.sum(one_hot, axis=2), axis=(0, 1)) / per_token
    balance = count * jnp.sum(share * jnp.mean(probabilities, axis=(0, 1)))
    return out, balance
