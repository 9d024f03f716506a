"""Numbers about a step: its FLOPs by MaxText's counting, memory in use, and TensorBoard scalars."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trackwalker.trainers.progress import warn
from trackwalker.trainers.tiny.config import Config


def tokens_per_device(config: Config) -> int:
    """Tokens one device trains on in a step."""
    return config.per_device_batch_size * config.max_target_length


def tflops_per_device(config: Config) -> float:
    """Training TFLOPs of one device in a step: forward plus twice that backward, only the experts in use, causal."""
    emb, layers = config.base_emb_dim, config.base_num_decoder_layers
    active_mlps = config.num_experts_per_tok if config.num_experts > 1 else 1
    router = emb * config.num_experts if config.num_experts > 1 else 0
    per_layer = 4 * emb * emb + active_mlps * 3 * emb * config.base_mlp_dim + router
    weights = layers * per_layer + emb * config.vocab_size
    matmuls = 2 * weights * tokens_per_device(config)
    attention = layers * 4 * config.per_device_batch_size * config.max_target_length**2 * emb / 2
    return 3 * (matmuls + attention) / 1e12


def step_scalars(config: Config, metrics: Mapping[str, float], seconds: float) -> dict[str, float]:
    """MaxText's TensorBoard tags and values for one step."""
    tokens, tflops = tokens_per_device(config), tflops_per_device(config)
    scalars = {
        "learning/loss": metrics["loss"],
        "learning/grad_norm": metrics["grad_norm"],
        "learning/raw_grad_norm": metrics["raw_grad_norm"],
        "learning/param_norm": metrics["param_norm"],
        "learning/current_learning_rate": metrics["learning_rate"],
        "learning/total_weights": metrics["total_weights"],
        "perf/step_time_seconds": seconds,
        "perf/per_device_tflops": tflops,
        "perf/per_device_tflops_per_sec": tflops / seconds,
        "perf/per_device_tokens": tokens,
        "perf/per_device_tokens_per_sec": tokens / seconds,
    }
    if config.num_experts > 1:
        scalars["learning/moe_lb_loss"] = metrics["moe_lb_loss"]
    return scalars


def memory_lines(label: str) -> list[str]:
    """MaxText's memory banner: device memory, or for a CPU device this process's part of the machine's memory."""
    import jax

    lines = [f"Memstats: {label}:"]
    try:
        for device in jax.local_devices():
            used, limit = _cpu_memory() if device.platform == "cpu" else _device_memory(device)
            name = f"{device.platform}:{device.id}"
            gib = 2**30
            lines.append(f"\tUsing (GB) {used / gib:.1f} / {limit / gib:.1f} ({used / limit:%}) on {name}")
    except (OSError, RuntimeError, LookupError, TypeError, ValueError) as error:
        lines.append(f"\tMemstats unavailable, error: {error}")
    return lines


def _device_memory(device: Any) -> tuple[int, int]:
    stats = device.memory_stats()
    return stats["bytes_in_use"], stats["bytes_limit"]


def _cpu_memory() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return resident * page, os.sysconf("SC_PHYS_PAGES") * page


class TensorBoard:
    """Scalars of one run in TensorBoard's event file; a missing package or a full disk costs a warning, not the run."""

    def __init__(self, directory: Path) -> None:
        self._writer: Any = None
        try:
            # The event file itself, not SummaryWriter: that one's thread dies on a full disk and then blocks us.
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.proto.summary_pb2 import Summary
        except ImportError:
            warn("tensorboardX is not installed; no TensorBoard files (pip install 'trackwalker[tiny]')")
            return
        self._event, self._summary = Event, Summary
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(directory / "events"))
        except OSError as error:
            self._give_up(error)

    def write(self, step: int, scalars: Mapping[str, float], *, flush: bool) -> None:
        """Append one event per scalar."""
        if self._writer is None:
            return
        try:
            now = time.time()
            for tag, value in scalars.items():
                summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=value)])
                self._writer.write_event(self._event(wall_time=now, step=step, summary=summary))
            if flush:
                self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._give_up(error)
            self._writer = None

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        warn(f"TensorBoard files are not written ({error}); training goes on")
