"""Real runs on a real H200, recorded by ourselves: what was done to them is found, with rank and GPU."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_here import call_here

from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve
from trackwalker.telemetry.store import open_database

pytestmark = [pytest.mark.usefixtures("prometheus")]
SHARED = Path(__file__).parents[4] / "shared" / "data"
RUNS = ["healthy", "power-cap", "slow-data", "stopped"]


def job_of(name: str) -> Path:
    folder = SHARED / "h200runs" / name
    if not folder.is_dir():
        pytest.skip("the recordings of ../shared/data/h200runs are not here")
    return next(path for path in folder.iterdir() if path.is_dir())


@functools.cache
def verdict_of(job: Path) -> dict[str, Any]:
    done = call_here(os.environ, "diagnose", str(job), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_what_was_done_is_found(name: str, unchanged: list[Path]) -> None:
    job = job_of(name)
    unchanged.append(job)
    answer = json.loads((job.parent / "ANSWER.json").read_text())
    verdict = verdict_of(job)
    roots = {c["cause"]: c["hosts"] for c in verdict["causes"] if c["role"] == "root"}
    assert (verdict["outcome"], roots) == (answer["outcome"], answer["roots"])
    if "gpus" in answer:
        assert [g for c in verdict["causes"] for g in c["gpus"]] == answer["gpus"]
    if "onset_step" in answer:
        (root,) = [c for c in verdict["causes"] if c["role"] == "root"]
        assert abs(root["onset"]["step"] - answer["onset_step"]) <= 3


def test_the_words_fit_one_rank() -> None:
    verdict = verdict_of(job_of("stopped"))
    told = " ".join([verdict["summary"], *(e["says"] for e in verdict["evidence"])])
    assert "state T" in told
    for wrong in ("All ranks", "in a collective", "the others"):
        assert wrong not in verdict["summary"]


@pytest.mark.parametrize("name", [*(f"h200runs/{n}" for n in RUNS), "samples/healthy", "samples/rdma-phased"])
def test_no_verdict_calls_a_metric_not_collected_that_is_in_the_database(name: str) -> None:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"../shared/data/{name} is not here")
    job = resolve(str(job_of(name.split("/")[1]) if name.startswith("h200runs") else folder), folder)
    assert job.database is not None
    with open_database(job.database) as telemetry:
        recorded = telemetry.metrics()
    if name.startswith("h200runs"):
        assert job.dir is not None
        missing = {m for u in verdict_of(job.dir)["untestable"] for m in u["missing"]}
    else:
        missing = {m for u in diagnose(job).verdict.untestable for m in u.missing}
    assert missing & recorded == set()
