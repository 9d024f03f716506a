"""AdamW and the train step that every rank runs on its own part of the batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from trackwalker.trainers.tiny.config import Config
from trackwalker.trainers.tiny.model import Params, loss_and_aux

# MaxText's defaults.
_B1, _B2, _EPS, _WEIGHT_DECAY = 0.9, 0.95, 1e-8, 0.1

State = dict[str, Any]


def init_state(params: Params) -> State:
    """Parameters with empty optimiser moments, all numpy: what a checkpoint holds. The moments are flat vectors."""
    size = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    moments = {name: np.zeros(size, np.float32) for name in ("mu", "nu")}
    return {"params": params, **moments, "count": np.zeros((), np.int32)}


def train_step(
    state: State, batch: dict[str, jax.Array], config: Config, axis: str
) -> tuple[State, dict[str, jax.Array]]:
    """One AdamW step; mapped over the mesh axis `axis`, whose ranks hold equal parts of the batch."""
    (loss, aux), grads = jax.value_and_grad(loss_and_aux, has_aux=True)(state["params"], batch, config)
    scalars = {"loss": loss, **aux}
    # One vector, one all-reduce: between processes on CPU the number of messages costs more than their size.
    everything, unravel = ravel_pytree((grads, scalars))
    mean: Any = jax.lax.pmean
    grads, scalars = unravel(mean(everything, axis))
    total_weights = scalars.pop("total_weights") * jax.lax.axis_size(axis)

    grad, _ = ravel_pytree(grads)
    raw_norm = _norm(grad)
    if config.gradient_clipping_threshold > 0:
        grad = grad * jnp.minimum(1.0, config.gradient_clipping_threshold / raw_norm)
    rate = learning_rate(config, state["count"])
    count = state["count"] + 1
    mu = _B1 * state["mu"] + (1 - _B1) * grad
    nu = _B2 * state["nu"] + (1 - _B2) * grad * grad
    direction = (mu / (1 - _B1**count)) / (jnp.sqrt(nu / (1 - _B2**count)) + _EPS)
    flat, to_tree = ravel_pytree(state["params"])
    flat = flat - rate * (direction + _WEIGHT_DECAY * flat)
    metrics = {
        **scalars,
        "total_weights": total_weights,
        "raw_grad_norm": raw_norm,
        "grad_norm": _norm(grad),
        "param_norm": _norm(flat),
        "learning_rate": rate,
    }
    return {"params": to_tree(flat), "mu": mu, "nu": nu, "count": count}, metrics


def learning_rate(config: Config, count: Any) -> jax.Array:
    """Linear warm-up, then constant: it must not depend on `steps`, or a run in two parts would differ from one."""
    warm = jnp.minimum(1.0, (count + 1) / max(1, config.warmup_steps))
    return jnp.multiply(config.learning_rate, warm)


def _norm(vector: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(vector)))
