"""Several ranks on one machine, each with a GPU of a stand-in driver: trouble of one GPU is told as its lane's."""
# ruff: noqa: F401, F811 - fixtures are imported, and then asked for by name

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_lanes import VICTIM, judge, lane
from nvml_driver import built

from trackwalker.diagnose.verdict import Verdict
from trackwalker.telemetry.store import open_database

pytestmark = [
    pytest.mark.usefixtures("prometheus"),
    pytest.mark.timeout(120),
]

CLOCKS = {"power": 310_000, "clock__1": 1100, "temperature__0": 48, "reasons": 0x2}
OTHERS = {
    "power-cap": ("gpu-power-cap", {"limit": 350_000, "power": 348_000, "clock__1": 1250, "reasons": 0x4}),
    "heat": ("gpu-thermal-throttle", {"temperature__0": 93, "clock__1": 1200, "power": 400_000, "reasons": 0x40}),
    "gpu-hog": ("gpu-shared", {"processes": 1, "pid__0": 1, "sm__0": 60, "processmemory": 20 << 30}),
}


@pytest.fixture(scope="module")
def judged(built: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verdict]:
    """A run in the middle of which somebody locks the clock of one rank's GPU."""
    return judge(built, tmp_path_factory.mktemp("lanes"), CLOCKS, healthy_s=16.0)


def test_the_lane_and_its_gpu_are_named(judged: tuple[Path, Verdict]) -> None:
    _, verdict = judged
    assert [(c.cause, c.hosts, c.gpus) for c in verdict.roots] == [("gpu-clock-degraded", [lane()], [str(VICTIM)])], (
        verdict.summary
    )


def test_nothing_that_was_recorded_is_called_missing(judged: tuple[Path, Verdict]) -> None:
    job, verdict = judged
    with open_database(job / "prometheus") as telemetry:
        assert {m for u in verdict.untestable for m in u.missing} & telemetry.metrics() == set()


def test_the_evidence_comes_back_under_the_lanes_names(judged: tuple[Path, Verdict]) -> None:
    job, verdict = judged
    named = [
        e for e in verdict.evidence if e.kind == "metric" and "hw_gpu_clock_mhz" in e.source and "gpu)" in e.source
    ]
    assert named
    with open_database(job / "prometheus") as telemetry:
        for item in named:
            again = telemetry.instant(item.source, telemetry.range()[1])
            assert {f"{s.labels['host']}/{s.labels['gpu']}": s.value for s in again} == pytest.approx(
                item.values, abs=5e-4
            )


@pytest.mark.long(reason="a run of half a minute for each; one GPU's locked clock is proven in every landing")
@pytest.mark.parametrize("fault", OTHERS)
def test_whatever_befalls_one_gpu_its_lane_is_named(built: Path, tmp_path: Path, fault: str) -> None:
    cause, values = OTHERS[fault]
    _, verdict = judge(built, tmp_path, values)
    assert [(c.cause, c.hosts, c.gpus) for c in verdict.roots] == [(cause, [lane()], [str(VICTIM)])], verdict.summary


@pytest.mark.long(reason="a run of half a minute; no cause file knows a narrow link, so the sweep has to find it")
def test_a_link_that_came_up_narrow_names_its_lane(built: Path, tmp_path: Path) -> None:
    _, verdict = judge(built, tmp_path, {"width": 2, "replay": 90_000})
    assert {host for c in verdict.roots for host in c.hosts} == {lane()}, verdict.summary
