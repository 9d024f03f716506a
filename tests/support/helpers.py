"""Small makers of evidence that several test files share: job directories as upstream lays them out, job logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEADER = """JOB_ID=12345
JOB_NAME=JAX-llama2-70b-x
NNODES=2
JOB_NODELIST=node[001-002]
JAX_COORDINATOR_PORT=47621
PASSTHROUGH_ARGS="steps=10 per_device_batch_size=8"
MODEL_NAME=llama2-70b
EXP_TAG=x
"""


def make_job(workspace: Path, name: str, *, suffix: str = ".log", link: str | None = "link") -> tuple[Path, Path]:
    """A job directory and its log; `link` is "link", "flat" (an archive's text file) or None."""
    workspace.mkdir(parents=True, exist_ok=True)
    directory, log = workspace / name, workspace / (name + suffix)
    directory.mkdir()
    log.write_text(HEADER)
    if link == "link":
        (directory / "log").symlink_to(Path("..") / log.name)
    elif link == "flat":
        (directory / "log").write_text(f"../{log.name}")
    return directory, log


def step_line(step: int, seconds: float = 12.345, *, mfu: bool = True, loss: str = "10.123") -> str:
    """A MaxText step line without its newline."""
    middle = "MFU: 32.49%, " if mfu else ""
    return (
        f"completed step: {step}, seconds: {seconds}, TFLOP/s/device: 812.345, {middle}"
        f"Tokens/s/device: 2034.567, total_weights: 262144, loss: {loss}"
    )


def write_lines(path: Path, records: list[dict[str, Any]], tail: str = "") -> Path:
    """A JSON-lines journal of version 1, with an optional unfinished end."""
    path.write_text("".join(json.dumps({"v": 1, **r}) + "\n" for r in records) + tail)
    return path
