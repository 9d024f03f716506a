"""Recordings of real faults on a real H200 (bench/gpu_drill.py): the weakest strength of each, and healthy runs.

`drill` holds the JAX runs of the first session; `more` those of the second: PyTorch, two ranks on two MIG slices.
"""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest
from command_here import call_here

pytestmark = [pytest.mark.usefixtures("prometheus")]
FOLDER = Path(__file__).parents[2] / "data" / "gpu_drill"
ARCHIVES = {name: json.loads((FOLDER / f"{name}.json").read_text())["runs"] for name in ("drill", "more")}
RUNS = {row["name"]: row for rows in ARCHIVES.values() for row in rows if "job" in row}
WEAKEST = ["power-cap-0.3", "lock-clocks-0.35", "gpu-hog-0.25", "busy-wait-0.25", "data-stall-0.13"]
TORCH = ["torch-power-cap", "mig-gpu-hog"]
WELL = ["healthy-2", "gpu-memory-hog-0.95", "torch-healthy", "mig-healthy"]
PLACE = {"mig-gpu-hog": (["vm-r0"], ["0:0"])}  # of two ranks on two slices of the GPU


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drill")
    wanted = tuple(RUNS[name]["job"] for name in (*WEAKEST, *TORCH, *WELL))
    for name in ARCHIVES:
        with tarfile.open(FOLDER / f"{name}.tar.xz") as packed:
            packed.extractall(folder, [m for m in packed if m.name.startswith(wanted)], filter="data")
    return folder


@pytest.mark.parametrize("name", [*WEAKEST, *TORCH, *WELL])
def test_what_was_done_to_a_real_gpu_is_found(name: str, recordings: Path) -> None:
    row = RUNS[name]
    done = call_here(os.environ, "diagnose", str(recordings / row["job"]), "--json")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    roots = [(c["cause"], c["hosts"], c["gpus"]) for c in verdict["causes"] if c["role"] == "root"]
    if name in WELL:
        assert (verdict["outcome"], roots) == ("healthy", [])
        return
    assert row["cost"] >= 0.1
    place = PLACE.get(name, (["vm-r0"], ["0"])) if row["cause"].startswith("gpu-") else ([], [])
    assert roots == [(row["cause"], *place)], verdict["summary"]
