"""What the jobs of a sweep that compares settings have in common: short runs on synthetic data, nothing saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trackwalker.errors import UsageError

FEWEST_STEPS = 10  # the first five are never steady
_USUAL = {"dataset_type": "synthetic", "enable_checkpointing": "false"}


def job_settings(request: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The trainer's settings and the environment that every trial carries; too few steps are refused."""
    config = {**_USUAL, "steps": str(request["steps"]), **request.get("config", {})}
    config = {str(k): str(v) for k, v in config.items()}
    if not config["steps"].isdecimal() or int(config["steps"]) < FEWEST_STEPS:
        raise UsageError(f"steps={config['steps']}: at least {FEWEST_STEPS}, or no step is a steady one")
    return config, {str(k): str(v) for k, v in request.get("env", {}).items()}
