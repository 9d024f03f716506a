"""Training scalars of every rank (tb_*), stamped with the end of their step: a hang is silence, not a ghost."""

from __future__ import annotations

import re
from typing import Any

from trackwalker.node.exposition import Family

_STEP = re.compile(
    r"completed step: *(?P<step>\d+), seconds: *(?P<seconds>[0-9.]+)(?:, TFLOP/s/device: *(?P<tflops>[0-9.]+))?"
    r"(?:, MFU: *[0-9.]+%)?(?:, Tokens/s/device: *(?P<tokens_per_s>[0-9.]+))?"
    r".*?, loss: *(?P<loss>[-+]?(?:nan|inf|[0-9.]+(?:e[-+]?\d+)?))",
    re.IGNORECASE,
)
_FAMILIES = {
    "step": ("tb_step", "Last completed step."),
    "seconds": ("tb_perf_step_time_seconds", "Duration of the last completed step."),
    "tokens_per_s": ("tb_perf_per_device_tokens_per_sec", "Tokens per second per device."),
    "tflops": ("tb_perf_per_device_tflops_per_sec", "TFLOP per second per device."),
    "loss": ("tb_learning_loss", "Training loss."),
    "data_wait_s": ("train_data_wait_seconds", "Time the last step waited for its batch."),
}


def parse_step_line(line: str) -> dict[str, Any] | None:
    """A progress record from a MaxText step line, None for any other line."""
    if "completed step" not in line:
        return None
    match = _STEP.search(line)
    if not match:
        return None
    try:
        values = {k: float(v) for k, v in match.groupdict().items() if v is not None}
        return {"phase": "train", **values, "step": int(values["step"])}
    except (ValueError, OverflowError):  # the words of a step line, but not its numbers
        return None


class TrainingCollector:
    """Remembers each rank's latest completed step; fed by the agent from the trainer's hook or its step lines."""

    name = "training"

    def __init__(self) -> None:
        self._last: dict[int, dict[str, Any]] = {}

    def feed(self, record: dict[str, Any]) -> None:
        """Take in one progress record of a rank."""
        if record.get("phase") == "train" and "step" in record:
            self._last[int(record["rank"])] = record

    def collect(self) -> list[Family]:
        """One sample per rank and scalar, stamped with the end of its step."""
        families = {key: Family(name, "gauge", text) for key, (name, text) in _FAMILIES.items()}
        for rank, record in sorted(self._last.items()):
            for key, family in families.items():
                family.add(_number(record.get(key)), time=record["t"], host=record["host"], rank=str(rank))
        return list(families.values())


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # nothing reported, or nothing that is a number
        return None
