"""A stand-in with the interface of MaxText 0.2.5 that the hook uses, and of JAX: there in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

METRIC_LOGGER = """
class MetricLogger:
    def __init__(self, config, learning_rate_schedule):
        self.config, self.buffered = config, []
    def reset_eval_metrics(self):
        pass
    def write_metrics(self, metrics, step, metric_type="train"):
        scalars = metrics["scalar"]
        if metric_type != "train":
            return
        print(f"completed step: {step}, seconds: {scalars['perf/step_time_seconds']:.3f}", flush=True)
        if scalars["learning/loss"] != scalars["learning/loss"]:
            raise SystemExit(1)
    def buffer_and_write_metrics(self, metrics, step, seconds):
        if self.buffered:
            self.write_metrics(*self.buffered.pop())
        metrics["scalar"]["perf/step_time_seconds"] = seconds
        self.buffered.append((metrics, step))
"""
CHECKPOINTING = """
import time
def load_state_if_possible(checkpoint_manager, data_iterator):
    return (None, None)
def maybe_save_checkpoint(checkpoint_manager, state, config, data_iterator, step=None):
    return save_checkpoint(checkpoint_manager, step, state, config, data_iterator, False)
def save_checkpoint(checkpoint_manager, step, state, config=None, data_iterator=None, force=False):
    if step % config.checkpoint_period:
        return False
    time.sleep(0.05)
    return True
"""
DATA_LOADER = """
import time
class DataLoader:
    def load_next_batch(self, *args, **kwargs):
        time.sleep(self.seconds)
        return {}
class RampUpDataLoader(DataLoader):
    def load_next_batch(self, *args, rampup_manager=None, **kwargs):
        return super().load_next_batch()
"""
TRAIN = """
import sys
from types import SimpleNamespace
import jax.monitoring
from maxtext.common import checkpointing, data_loader, metric_logger
if __name__ == "__main__":
    print("argv", *sys.argv[1:])
    config = SimpleNamespace(checkpoint_period=2, async_checkpointing="async" in sys.argv)
    checkpointing.load_state_if_possible(None, None)
    for seconds in (0.1, 2.0):
        for listener in jax.monitoring.listeners:
            listener("/jax/core/compile/backend_compile_duration", seconds, fun_name="train_step")
    logger = metric_logger.MetricLogger(config, None)
    loader = data_loader.RampUpDataLoader()
    for step in range(4):
        loader.seconds = step / 50
        loader.load_next_batch()
        checkpointing.maybe_save_checkpoint(None, None, config, None, step)
        if step == 2:
            logger.reset_eval_metrics()
            logger.write_metrics({"scalar": {}}, 2, metric_type="eval")
        loss = float("nan") if step == 3 else 2.5
        logger.buffer_and_write_metrics({"scalar": {"learning/loss": loss}}, step, 0.125)
    logger.buffer_and_write_metrics({"scalar": {"learning/loss": 1.0}}, 4, 0.125)
"""
JAX = """
def local_devices():
    return [type("Device", (), {"device_kind": "cpu"})]
"""
MONITORING = """
listeners = []
register_event_duration_secs_listener = listeners.append
"""
MODULES = {
    "__init__": "",
    "common/__init__": "",
    "common/metric_logger": METRIC_LOGGER,
    "common/checkpointing": CHECKPOINTING,
    "common/data_loader": DATA_LOADER,
    "trainers/__init__": "",
    "trainers/pre_train/__init__": "",
    "trainers/pre_train/train": TRAIN,
    "jax/__init__": JAX,
    "jax/monitoring": MONITORING,
}


def put(root: Path, modules: Mapping[str, str | None]) -> None:
    """Write the stand-in's modules."""
    for name, text in modules.items():
        if text is not None:
            path = root / "maxtext" / f"{name}.py" if not name.startswith("jax/") else root / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
