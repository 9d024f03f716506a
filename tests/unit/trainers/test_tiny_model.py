"""The small trainer's model and optimiser: causal, balanced, warmed up, learning."""

from __future__ import annotations

import dataclasses
import importlib
import os
from functools import partial
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax")

from trackwalker.trainers.tiny import model, optimizer, train  # noqa: E402 - both import JAX
from trackwalker.trainers.tiny.config import Config  # noqa: E402
from trackwalker.trainers.tiny.data import make_batch  # noqa: E402

DENSE = Config(
    vocab_size=16,
    base_emb_dim=16,
    base_num_query_heads=2,
    base_num_decoder_layers=2,
    base_mlp_dim=8,
    max_target_length=12,
    warmup_steps=4,
    learning_rate=0.01,
)
EXPERTS = dataclasses.replace(DENSE, num_experts=4, num_experts_per_tok=2)


@pytest.mark.parametrize("config", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_no_position_sees_the_future(config: Config) -> None:
    params = model.init_params(config)
    forward: Any = jax.jit(partial(model.forward, config=config))
    tokens = make_batch(config, 0, 0, 2)["inputs"]
    changed = tokens.copy()
    changed[:, 7] = (changed[:, 7] + 1) % config.vocab_size
    before, _ = forward(params, tokens)
    after, _ = forward(params, changed)
    assert before.shape == (2, 12, 16)
    np.testing.assert_allclose(before[:, :7], after[:, :7], atol=1e-5)
    assert np.abs(np.asarray(before[:, 7:]) - np.asarray(after[:, 7:])).max() > 1e-3


def test_initial_params_depend_only_on_the_seed() -> None:
    one, again = model.init_params(DENSE), model.init_params(DENSE)
    other = model.init_params(dataclasses.replace(DENSE, init_seed=1))
    np.testing.assert_array_equal(one["layers"]["qkv"], again["layers"]["qkv"])
    assert (one["layers"]["qkv"] != other["layers"]["qkv"]).any()


def test_balance_is_one_when_the_router_has_no_preference() -> None:
    params = model.init_params(EXPERTS)
    params["layers"]["router"] = np.zeros_like(params["layers"]["router"])
    _, balance = model.forward(params, make_batch(EXPERTS, 0, 0, 2)["inputs"], EXPERTS)
    assert float(balance) == pytest.approx(1.0)


def test_learning_rate_warms_up_and_stays() -> None:
    rates = [float(optimizer.learning_rate(DENSE, step)) for step in (0, 1, 3, 4, 1000)]
    assert rates == pytest.approx([0.0025, 0.005, 0.01, 0.01, 0.01])
    assert float(optimizer.learning_rate(dataclasses.replace(DENSE, warmup_steps=0), 0)) == pytest.approx(0.01)


def test_steps_learn_a_batch_and_count_its_tokens() -> None:
    spec: Any = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    step = jax.jit(
        jax.shard_map(
            partial(optimizer.train_step, config=DENSE, axis="data"),
            mesh=mesh,
            in_specs=(spec(), spec("data")),
            out_specs=spec(),
            check_vma=False,
        )
    )
    state, batch = optimizer.init_state(model.init_params(DENSE)), make_batch(DENSE, 0, 0, 4)
    losses = []
    for _ in range(30):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(np.log(16), abs=1.0)
    assert losses[-1] < losses[0] / 2
    assert float(metrics["total_weights"]) == 4 * 12
    assert float(metrics["grad_norm"]) <= 1.0001
    assert int(state["count"]) == 30


def test_every_rank_keeps_what_it_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX writes its compile cache in process 0 only, and each process looks there for a key of its own."""
    group = importlib.import_module("jax._src.distributed").global_state
    monkeypatch.setattr(group, "process_id", 3)
    seen = []

    class Lowered:
        def compile(self, **options: Any) -> str:
            seen.append(group.process_id)
            return "program"

    assert train._compile_quickly(Lowered()) == "program"
    assert seen == [0]
    assert group.process_id == 3
