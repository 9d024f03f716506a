"""`tsdb metrics`, the moment that `tsdb query` takes by itself, and hints for names that were not recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tsdb_jobs import call

from trackwalker.telemetry.blocks import STALE, BlockWriter, labels

pytestmark = [pytest.mark.usefixtures("prometheus")]
START = 1_780_000_000


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished job: its GPUs were heard for ten minutes, the agent itself for two minutes more."""
    root = tmp_path_factory.mktemp("outputs")
    job = root / "77-JAX-granite-9b"
    job.mkdir()
    (root / "77-JAX-granite-9b.log").write_text("JOB_ID=77\nNNODES=2\n")
    writer = BlockWriter(job / "prometheus")
    whole = START + np.arange(0, 721, 5)
    busy = START + np.arange(60, 601, 5)
    for host in ("n1", "n2"):
        writer.add([labels("hw_agent_uptime_seconds", host=host)], whole * 1000, (whole - START)[None, :].astype(float))
        power = np.full(len(busy), 500.0)
        power[-1] = STALE  # a series that ends on purpose is over at once
        for gpu in "01":
            writer.add([labels("hw_gpu_power_watts", host=host, gpu=gpu)], busy * 1000, power[None, :])
    writer.close()
    return root


def test_metrics_are_listed_with_what_they_are(workspace: Path) -> None:
    code, out, err = call(workspace, "metrics", "77", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["schema"] == "trackwalker.tsdb-metrics/1"
    power = {"name": "hw_gpu_power_watts", "kind": "gauge", "unit": "W", "hosts": ["n1", "n2"], "series": 4}
    power |= {"first": START + 60, "last": START + 595}
    uptime = {"name": "hw_agent_uptime_seconds", "kind": "gauge", "unit": "s", "hosts": ["n1", "n2"], "series": 2}
    assert answer["metrics"] == [uptime | {"first": START, "last": START + 720}, power]
    _, out, _ = call(workspace, "metrics", "77", "GPU.*watts$")
    assert [line.split()[0] for line in out.splitlines()] == ["metric", "hw_gpu_power_watts"]


def test_a_pattern_that_matches_nothing_gets_a_hint_and_a_bad_one_a_line(workspace: Path) -> None:
    code, out, err = call(workspace, "metrics", "77", "hw_gpu_power_wats")
    assert (code, out) == (0, "no metric of 77 matches 'hw_gpu_power_wats'\n")
    assert err == "trackwalker: no metric hw_gpu_power_wats was recorded; did you mean hw_gpu_power_watts?\n"
    code, _, err = call(workspace, "metrics", "77", "(")
    assert code == 2
    assert "'(' is no regular expression" in err


def test_the_default_moment_is_the_last_one_with_data(workspace: Path) -> None:
    code, out, err = call(workspace, "query", "77", "hw_gpu_power_watts", "--json")
    answer = json.loads(out)
    assert (code, err, answer["at_is"], len(answer["series"])) == (0, "", "last with data", 4)
    assert START + 594 <= answer["at"] < START + 600
    _, out, _ = call(workspace, "query", "77", "sum(hw_gpu_power_watts)")
    assert "2000" in out
    assert "the last moment with data; the recording ends at" in " ".join(out.split())
    _, out, _ = call(workspace, "query", "77", "hw_gpu_power_watts", "--at", str(START + 700), "--json")
    assert (json.loads(out)["at_is"], json.loads(out)["series"]) == ("given", [])


def test_a_misspelt_metric_gets_a_suggestion(workspace: Path) -> None:
    code, out, err = call(workspace, "query", "77", "sum by (host) (rate(hw_gpu_pwer_watts[1m]))", "--json")
    assert (code, json.loads(out)["series"], json.loads(out)["at_is"]) == (0, [], "end of recording")
    assert err == "trackwalker: no metric hw_gpu_pwer_watts was recorded; did you mean hw_gpu_power_watts?\n"
    assert json.loads(out)["hints"] == [err.removeprefix("trackwalker: ").strip()]
