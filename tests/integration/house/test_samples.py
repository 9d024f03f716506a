"""The public sample jobs: outcome, status, root causes and culprits of their answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_here import call_here

NAMES = ["collective-hang", "healthy", "heartbeat-false-positive", "rdma-phased"]


@pytest.mark.parametrize("name", NAMES)
def test_sample(name: str, samples: Path, prometheus: Path, unchanged: list[Path]) -> None:
    unchanged.append(samples / name)
    answer = json.loads((samples / name / "ANSWER.json").read_text())
    words = ["diagnose", str(samples / name), "--json"]
    if name == NAMES[0]:  # as a user starts it; the others without a fresh Python for each
        command = [sys.executable, "-m", "trackwalker", *words]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    else:
        result = call_here(os.environ, *words)
    verdict = json.loads(result.stdout)
    assert result.stderr == ""
    for key in ("status", "outcome"):
        assert verdict[key] == answer[key]

    def roots(v: dict[str, list[dict[str, object]]]) -> list[tuple[object, ...]]:
        return [(c["cause"], c["hosts"], c["devices"]) for c in v["causes"] if c["role"] == "root"]

    assert roots(verdict) == roots(answer)
    assert {c["cause"] for c in verdict["causes"]} == {c["cause"] for c in answer["causes"]}
    for key in ("first_step", "last_step", "total_steps", "last_checkpoint"):
        assert verdict["progress"][key] == answer["progress"][key]
    # The answer of the run that is done counts the steps behind its last checkpoint: they are not lost.
    lost = None if verdict["status"] == "completed" else answer["progress"]["steps_lost"]
    assert verdict["progress"]["steps_lost"] == lost
    assert verdict["progress"]["step_time_s"] == pytest.approx(answer["progress"]["step_time_s"], rel=0.005)
