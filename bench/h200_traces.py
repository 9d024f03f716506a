"""Traces of steps whose dominant cost is built in, made on a GPU; does the report name that cost?

    python bench/h200_traces.py OUT              makes the four traces in OUT and judges the report of each
    python bench/h200_traces.py OUT --make       only makes them: needs JAX and nothing of trackwalker
    python bench/h200_traces.py OUT --check      only judges traces that were made before, perhaps on another machine

The kinds: `dense` (attention and MLP, forward and backward), `moe` (tokens sorted to tiny experts and back: moving them
costs more than the experts), `host` (Python sleeps between steps), `copy` (a large array goes to pinned host memory and
comes back in every step). Without a GPU, or with --small, it is a dry run of small sizes: it shows that the script
works; on CPUs nothing has to be copied, so `copy` only has to run. Exit status 1 when a cost is not named.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 5
GEMM = ("gemm", "attention-forward", "attention-backward", "softmax")
DISPATCH = ("moe-routing", "gather-scatter", "sort")
# kind -> the bucket that must be largest, and the kinds of work that must together be largest in it
TRUTH: dict[str, tuple[str, tuple[str, ...]]] = {
    "dense": ("compute", GEMM),
    "moe": ("compute", DISPATCH),
    "host": ("host_gap", ()),
    "copy": ("copy", ()),
}
ON_CPU: dict[str, tuple[str, tuple[str, ...]]] = {"copy": ("", ())}  # the host's memory is the device's there


def make(out: Path, small: bool) -> None:
    """Trace all kinds."""
    import jax

    made = {"dense": dense, "moe": moe, "host": host, "copy": copy}
    platform = jax.devices()[0].platform
    small = small or platform == "cpu"
    for kind, build in made.items():
        step, state, pause_s = build(small)
        for _ in range(2):
            state = jax.block_until_ready(step(state))
        jax.profiler.start_trace(str(out / kind))
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                time.sleep(pause_s)
                state = jax.block_until_ready(step(state))
        jax.profiler.stop_trace()
        print(f"{kind}: traced {STEPS} steps on {jax.devices()[0].device_kind}", flush=True)
    facts = {"platform": platform, "device": jax.devices()[0].device_kind, "jax": jax.__version__, "small": small}
    (out / "made.json").write_text(json.dumps(facts))


Built = tuple[Callable[[Any], Any], Any, float]


def dense(small: bool) -> Built:
    """A block of a transformer with its gradients."""
    import jax
    import jax.numpy as jnp

    batch, length, width, heads, layers = (2, 128, 256, 4, 2) if small else (8, 2048, 4096, 32, 4)
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    weights = {n: jax.random.normal(k, s, jnp.bfloat16) / 64 for (n, s), k in zip(shapes.items(), keys, strict=False)}
    x = jax.random.normal(keys[4], (batch, length, width), jnp.bfloat16)

    def block(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
        with jax.named_scope("attention"):
            q, k, v = jnp.split((x @ w["qkv"]).reshape(batch, length, 3 * heads, -1), 3, axis=2)
            x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ w["out"]
        with jax.named_scope("mlp"):
            return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def loss(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for _ in range(layers):
            x = block(x, w)
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    @jax.jit
    def train_step(state: tuple[dict[str, jax.Array], jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
        w, x = state
        gradient = jax.grad(loss)(w, x)
        return jax.tree.map(lambda a, g: a - 1e-4 * g, w, gradient), x

    return train_step, (weights, x), 0.0


def moe(small: bool) -> Built:
    """Each token goes to several experts and back; the experts do next to nothing."""
    import jax
    import jax.numpy as jnp

    tokens, width, experts, chosen = (4096, 128, 16, 4) if small else (65_536, 2048, 64, 8)
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (tokens, width), jnp.float32)
    router = jax.random.normal(keys[1], (width, experts), jnp.float32)

    @jax.jit
    def train_step(x: jax.Array) -> jax.Array:
        with jax.named_scope("moe_dispatch"):
            weight, expert = jax.lax.top_k(x @ router, chosen)
            order = jnp.argsort(expert.reshape(-1))
            # Without the barriers the compiler would move the tokens and work on them in one kernel.
            rows = jax.lax.optimization_barrier(x[order // chosen])
        with jax.named_scope("moe_combine"):
            rows = rows * weight.reshape(-1)[order][:, None]
            back = jax.lax.optimization_barrier(jnp.zeros_like(x).at[order // chosen].add(rows))
        return back / jnp.linalg.norm(back) * jnp.sqrt(tokens)

    return train_step, x, 0.0


def host(small: bool) -> Built:
    """A small step, and a host that sleeps before it."""
    import jax
    import jax.numpy as jnp

    side = 128 if small else 1024
    step = jax.jit(lambda x: jnp.tanh(x @ x))
    return step, jnp.ones((side, side), jnp.bfloat16) / side, 0.05


def copy(small: bool) -> Built:
    """An array that lives on the host and visits the device in every step."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    device = jax.devices()[0]
    there = SingleDeviceSharding(device, memory_kind="pinned_host")
    here = SingleDeviceSharding(device, memory_kind="device")
    x = jnp.ones((1 << (22 if small else 28),), jnp.float32)

    @jax.jit
    def train_step(x: jax.Array) -> jax.Array:
        return jax.device_put(jax.device_put(x, here) + 1, there)

    return train_step, jax.device_put(x, there), 0.0


def check(out: Path) -> bool:
    """Judge the report of each kind."""
    from trackwalker.job.layout import Job
    from trackwalker.perf.analysis.report import Options, analyse

    facts = json.loads((out / "made.json").read_text())
    print(f"{facts['device']}, JAX {facts['jax']}{', small sizes: a dry run' if facts['small'] else ''}")
    good = True
    for kind, on_gpu in TRUTH.items():
        bucket, works = ON_CPU.get(kind, on_gpu) if facts["platform"] == "cpu" else on_gpu
        report = analyse(Job(kind, None, None), Options(traces=[out / kind]))
        trace = report.trace
        if trace is None:
            print(f"{kind:6} FAIL: no step found: {'; '.join(m.why for m in report.missing)}")
            good = False
            continue
        found = max(trace.buckets, key=lambda row: row.share)
        ours = sum(row.share for row in trace.kinds if row.name in works)
        others = max((row.share for row in trace.kinds if row.name not in works), default=0.0)
        right = found.name.startswith(bucket) and (not works or ours > others)
        good = good and right and trace.steps >= STEPS - 1
        work = ", ".join(f"{row.name} {100 * row.share:.0f} %" for row in trace.kinds[:3])
        fix = report.fixes[0].says if report.fixes else "nothing to fix"
        verdict = "PASS" if right else "FAIL"
        print(f"{kind:6} {verdict}: {found.name} {100 * found.share:.0f} % of {1e3 * trace.step_s:.3g} ms; {work}")
        print(f"       {trace.steps} steps; {fix}")
    return good


def main() -> int:
    """Make, check, or both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--small", action="store_true", help="small sizes on a GPU, too")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--make", action="store_true")
    either.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not options.check:
        options.out.mkdir(parents=True, exist_ok=True)
        make(options.out, options.small)
    return 0 if options.make or check(options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
