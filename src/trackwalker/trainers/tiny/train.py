"""The training run: join the peers, restore, compile, step, save, leave together."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from trackwalker.trainers.capture import Capture
from trackwalker.trainers.maxtext.place import Place as TracedPlace
from trackwalker.trainers.maxtext.traces import separate_traces
from trackwalker.trainers.progress import Progress
from trackwalker.trainers.stacks import listen
from trackwalker.trainers.tiny import checkpoint, metrics, runtime
from trackwalker.trainers.tiny.checkpoint import CheckpointError
from trackwalker.trainers.tiny.config import Config
from trackwalker.trainers.tiny.data import Pipeline
from trackwalker.trainers.tiny.runtime import Place, say, step_line


def run(config: Config, place: Place) -> int:
    """Train to the last step; the process's exit status."""
    progress = Progress(place.progress_path, place.rank, place.host)
    listen(place.progress_path)
    began = time.perf_counter()
    progress.record("init", state="begin")
    runtime.join(place, config)
    separate_traces(TracedPlace(place.rank, place.count))
    trainer = Trainer(config, place, progress)
    progress.record("init", state="end", seconds=_since(began))
    try:
        start = trainer.restore()
    except CheckpointError as error:
        print(f"checkpoint-error: {error}", file=sys.stderr, flush=True)
        runtime.leave(place)
        return 1
    say("Synchronizing hosts before training loop")
    runtime.barrier("before training loop")
    aborted = trainer.train(start)
    progress.record("done")
    runtime.barrier("after training loop")
    runtime.leave(place)
    progress.close()
    return 1 if aborted else 0


class Trainer:
    """The state of one run on this rank."""

    def __init__(self, config: Config, place: Place, progress: Progress) -> None:
        import jax
        from jax.sharding import Mesh

        from trackwalker.trainers.tiny.model import init_params
        from trackwalker.trainers.tiny.optimizer import init_state

        self._config, self._place, self._progress = config, place, progress
        self._mesh = Mesh(np.array(jax.devices()), ("data",))
        self._batch_sharding = runtime.sharding(self._mesh, "data")
        self._rows = config.per_device_batch_size * jax.local_device_count()
        host_state = init_state(init_params(config))
        self._state = runtime.replicate(host_state, self._mesh)
        self._checkpoints = config.run_directory / "checkpoints"
        count = sum(leaf.size for leaf in jax.tree_util.tree_leaves(host_state["params"]))
        say(f"number parameters: {count / 1e9:.3f} billion")
        for line in metrics.memory_lines("After params initialized"):
            say(line)

    def restore(self) -> int:
        """Take up this run's newest checkpoint, as rank 0 sees it; the first step still to do."""
        step: int | None = None
        if self._config.enable_checkpointing:
            newest = checkpoint.latest_step(self._checkpoints) if self._place.rank == 0 else None
            found = int(runtime.from_rank0(np.int32(-1 if newest is None else newest)))
            step = None if found < 0 else found
        if step is None:
            say("No existing checkpoints found, not restoring checkpoint.")
            return 0
        say(f"restoring from this run's directory step {step}")
        began = time.perf_counter()
        self._progress.record("restore", state="begin", step=step)
        self._state = runtime.replicate(self._load(step), self._mesh)
        self._progress.record("restore", state="end", step=step, seconds=_since(began))
        return step + 1

    def _load(self, step: int) -> Any:
        # Only rank 0 reads, so peers need no shared file system; all learn of a failure, so none is left waiting.
        arrays, failure = self._host_arrays(), None
        if self._place.rank == 0:
            try:
                arrays = checkpoint.load(self._checkpoints, step, arrays)
            except CheckpointError as error:
                failure = error
        if bool(runtime.from_rank0(np.bool_(failure is not None))):
            raise failure or CheckpointError(f"rank 0 cannot read the checkpoint of step {step}")
        return self._as_state(runtime.from_rank0(arrays))

    def train(self, start: int) -> bool:
        """Run the remaining steps; True when it was aborted because the loss is not a number."""
        config, rank0 = self._config, self._place.rank == 0
        saver = checkpoint.Saver(
            self._checkpoints,
            self._progress,
            config.checkpoint_write_seconds,
            slow_from=config.checkpoint_slow_from_step,
            background=config.async_checkpointing,
        )
        board = (
            metrics.TensorBoard(config.run_directory / "tensorboard") if config.enable_tensorboard and rank0 else None
        )
        pipeline = Pipeline(config, self._place.rank, self._rows, start)
        capture = Capture(self._progress, self._place.progress_path, str(config.run_directory / "tensorboard"))
        compiled = None
        aborted = False
        last = time.perf_counter()
        for step in range(start, config.steps):
            capture.begin_step(step)
            host_batch, waited = pipeline.take(lambda: self._progress.record("data_wait", state="begin"))
            batch = self._global_batch(host_batch)
            if compiled is None:
                compiled = self._compile(batch)
            with capture.marked(step):
                self._state, result = compiled(self._state, batch)
                values = {name: float(value) for name, value in result.items()}  # waits for the step to finish
            now = time.perf_counter()
            seconds, last = now - last, now
            self._report(step, seconds, waited, values, board)
            capture.end_step(step)
            if config.abort_on_nan_loss and math.isnan(values["loss"]):
                say("Aborting training due to NaN loss.")
                aborted = True
                break
            if rank0 and self._is_save_step(step):
                saver.save(step, self._host_arrays())
        saver.wait()
        capture.close()
        if board is not None:
            board.close()
        return aborted

    def _is_save_step(self, step: int) -> bool:
        last = step == self._config.steps - 1
        due = step > 0 and step % self._config.checkpoint_period == 0
        return self._config.enable_checkpointing and (due or last)

    def _compile(self, batch: Any) -> Any:
        import jax

        from trackwalker.trainers.tiny.optimizer import train_step

        began = time.perf_counter()
        self._progress.record("compile", state="begin")
        spec: Any = jax.sharding.PartitionSpec
        step = jax.shard_map(
            partial(train_step, config=self._config, axis="data"),
            mesh=self._mesh,
            in_specs=(spec(), spec("data")),
            out_specs=spec(),
            check_vma=False,  # else JAX sums the gradients itself, one message per tensor
        )
        compiled = _compile_quickly(jax.jit(step, donate_argnums=0).lower(self._state, batch))
        self._progress.record("compile", state="end", seconds=_since(began))
        return compiled

    def _report(self, step: int, seconds: float, waited: float, values: dict[str, float], board: Any) -> None:
        config = self._config
        scalars = metrics.step_scalars(config, values, seconds)
        tflops, tokens = scalars["perf/per_device_tflops_per_sec"], scalars["perf/per_device_tokens_per_sec"]
        weights, loss = int(values["total_weights"]), values["loss"]
        say(step_line(step, seconds, tflops, tokens, weights, loss, config.hardware_peak_tflops))
        self._progress.record(
            "train",
            step=step,
            seconds=round(seconds, 6),
            data_wait_s=round(waited, 6),
            loss=loss,
            grad_norm=values["grad_norm"],
            tokens_per_s=round(tokens, 3),
            tflops=round(tflops, 6),
        )
        if board is not None:
            board.write(step, scalars, flush=step % config.log_period == 0)

    def _global_batch(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        import jax

        make: Any = jax.make_array_from_process_local_data
        return {name: make(self._batch_sharding, array) for name, array in batch.items()}

    def _host_arrays(self) -> dict[str, np.ndarray]:
        import jax

        leaves, _ = jax.tree_util.tree_flatten_with_path(self._state)
        # Copies: on CPU the array would be a view of a buffer that the next step is free to overwrite.
        return {_name(path): np.array(leaf.addressable_data(0), copy=True) for path, leaf in leaves}

    def _as_state(self, arrays: dict[str, np.ndarray]) -> Any:
        import jax

        return jax.tree_util.tree_map_with_path(lambda path, _: arrays[_name(path)], self._state)


def _compile_quickly(lowered: Any) -> Any:
    import jax

    with _kept_by_every_rank():
        if jax.default_backend() == "cpu":
            try:  # half the time and two thirds of the memory, for code that is as fast
                return lowered.compile(compiler_options={"xla_cpu_use_fusion_emitters": False})
            except jax.errors.JaxRuntimeError:
                pass  # another XLA, without this option
        return lowered.compile()


@contextlib.contextmanager
def _kept_by_every_rank() -> Iterator[None]:
    """Where JAX has a compile cache, each rank writes what it compiles: a rank that comes back finds its program.

    JAX lets only process 0 write, for the sake of object stores, yet on CPU every process looks for a key of its own.
    """
    try:
        from jax._src.distributed import global_state as group
    except ImportError:  # another JAX: as it does by itself
        yield
        return
    rank, group.process_id = group.process_id, 0
    try:
        yield
    finally:
        group.process_id = rank


def _name(path: Any) -> str:
    return ".".join(key.key for key in path)


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 6)
