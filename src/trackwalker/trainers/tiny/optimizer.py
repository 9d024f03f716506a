"""AdamW and the jitted train step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trackwalker.trainers.tiny.config import Config
from trackwalker.trainers.tiny.model import Params, loss_and_aux

# MaxText's defaults.
_B1, _B2, _EPS, _WEIGHT_DECAY = 0.9, 0.95, 1e-8, 0.1

State = dict[str, Any]


def init_state(params: Params) -> State:
    """Parameters with empty optimiser moments, all numpy: what a checkpoint holds."""
    return {
        "params": params,
        "mu": jax.tree_util.tree_map(np.zeros_like, params),
        "nu": jax.tree_util.tree_map(np.zeros_like, params),
        "count": np.zeros((), np.int32),
    }


def train_step(state: State, batch: dict[str, jax.Array], config: Config) -> tuple[State, dict[str, jax.Array]]:
    """One AdamW step on the global batch; the gradient's mean over ranks is the all-reduce that XLA inserts."""
    (loss, aux), grads = jax.value_and_grad(loss_and_aux, has_aux=True)(state["params"], batch, config)
    raw_norm = _norm(grads)
    if config.gradient_clipping_threshold > 0:
        scale = jnp.minimum(1.0, config.gradient_clipping_threshold / raw_norm)
        grads = jax.tree_util.tree_map(lambda g: g * scale, grads)
    count = state["count"] + 1
    rate = learning_rate(config, state["count"])
    mu = jax.tree_util.tree_map(lambda m, g: _B1 * m + (1 - _B1) * g, state["mu"], grads)
    nu = jax.tree_util.tree_map(lambda n, g: _B2 * n + (1 - _B2) * g * g, state["nu"], grads)

    def update(p: jax.Array, m: jax.Array, n: jax.Array) -> jax.Array:
        direction = (m / (1 - _B1**count)) / (jnp.sqrt(n / (1 - _B2**count)) + _EPS)
        return p - rate * (direction + _WEIGHT_DECAY * p)

    params = jax.tree_util.tree_map(update, state["params"], mu, nu)
    metrics = {
        "loss": loss,
        **aux,
        "raw_grad_norm": raw_norm,
        "grad_norm": _norm(grads),
        "param_norm": _norm(params),
        "learning_rate": rate,
    }
    return {"params": params, "mu": mu, "nu": nu, "count": count}, metrics


def learning_rate(config: Config, count: jax.Array) -> jax.Array:
    """Linear warm-up, then constant: it must not depend on `steps`, or a run in two parts would differ from one."""
    if config.warmup_steps == 0:
        return jnp.float32(config.learning_rate)
    return config.learning_rate * jnp.minimum(1.0, (count + 1) / config.warmup_steps)


def _norm(tree: Any) -> jax.Array:
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree_util.tree_leaves(tree)]
    return jnp.sqrt(jnp.sum(jnp.stack(squares)))
