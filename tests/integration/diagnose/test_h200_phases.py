"""Real H200 telemetry: every labelled phase of the recording is told from the others by the playbooks' own tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from h200 import HOST, Recording

from conftest import ROOT
from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.resolve import resolve

pytestmark = [pytest.mark.usefixtures("prometheus")]
FOLDER = ROOT.parent / "shared" / "data" / "h200"
CANCELLED = "FAILED (exit 143) — CANCELLED (scancel / SIGTERM)"

# The phase under test follows the healthy one: a single GPU can only be compared with its own past.
PHASES = {
    "busy_wait": ("trace", "busy_wait"),
    "power_cap_350": ("power_cap_350",),
    "locked_clock_810": ("locked_clock_810",),
    "data_stall": ("data_stall",),
    "idle": ("idle_end", "idle"),
}
CAUSES = {
    "busy_wait": "collective-hang",
    "power_cap_350": "gpu-power-cap",
    "locked_clock_810": "gpu-clock-degraded",
    "data_stall": "input-stall",
    "idle": "dataloader-hang",  # the process lives and holds its memory, the GPU has nothing to do
}
DECIDES = {
    "busy_wait": "hw_gpu_power_watts",
    "power_cap_350": "hw_gpu_power_limit_watts",
    "locked_clock_810": "hw_gpu_clock_mhz",
    "data_stall": "hw_gpu_utilization_percent",
    "idle": "hw_gpu_vram_used_bytes",
}
METRICS = (
    "hw_gpu_clock_mhz",
    "hw_gpu_power_limit_watts",
    "hw_gpu_power_watts",
    "hw_gpu_throttle_active",
    "hw_gpu_utilization_percent",
    "hw_gpu_vram_used_bytes",
)


@pytest.fixture(scope="module")
def recording() -> Recording:
    """The recording; a user's clone does not have it."""
    if not FOLDER.is_dir():
        pytest.skip("the H200 recording is kept outside the repository and is not here")
    return Recording(FOLDER)


def judge(job: Path) -> Verdict:
    return diagnose(resolve(str(job), job.parent)).verdict


@pytest.fixture(scope="module")
def told(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Verdict]:
    """What is said of a phase, judged once for all questions about it."""

    def of(phase: str) -> Verdict:
        place = tmp_path_factory.mktemp(phase)
        return judge(recording.job(place, "compile", "train", *PHASES[phase], ended=CANCELLED))

    return functools.cache(of)


def roots(verdict: Verdict) -> list[str]:
    return [c.cause for c in verdict.roots]


def test_healthy_training_on_a_real_gpu_accuses_nothing(recording: Recording, tmp_path: Path) -> None:
    # The driver reports this GPU held by its power limit all the time: at full load that is normal.
    verdict = judge(recording.job(tmp_path, "compile", "train", "trace", "train_after_wait"))
    assert (verdict.status, verdict.outcome, verdict.causes) == ("completed", "healthy", [])


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_is_told_from_the_others(told: Callable[[str], Verdict], phase: str) -> None:
    verdict = told(phase)
    assert roots(verdict) == [CAUSES[phase]]
    # A GPU's own trouble is the only rank's GPU's; what it waits for is nobody's in particular.
    assert verdict.roots[0].hosts == ([HOST] if CAUSES[phase].startswith("gpu-") else [])
    accused = {c.cause for c in verdict.causes if c.role in ("root", "contributing")}
    assert accused & set(CAUSES.values()) == {CAUSES[phase]}


@pytest.mark.parametrize("phase", PHASES)
def test_without_what_decides_it_is_right_or_abstains(recording: Recording, tmp_path: Path, phase: str) -> None:
    assert wrong_without(DECIDES[phase], recording, tmp_path, phase) is None


@pytest.mark.long(reason="every phase without each of six metrics: thirty worlds")
@pytest.mark.parametrize("phase", PHASES)
def test_without_any_one_metric_it_is_right_or_abstains(recording: Recording, tmp_path: Path, phase: str) -> None:
    for metric in METRICS:
        assert wrong_without(metric, recording, tmp_path / metric, phase) is None, f"without {metric}"


def wrong_without(metric: str, recording: Recording, place: Path, phase: str) -> tuple[str, list[str]] | None:
    """What is said of a phase without that metric, where it is neither right nor nothing."""
    verdict = judge(recording.job(place, "compile", "train", *PHASES[phase], ended=CANCELLED, without=(metric,)))
    said = (verdict.outcome, roots(verdict))
    return None if said in (("insufficient-evidence", []), ("incident", [CAUSES[phase]])) else said


def test_the_data_stall_shows_in_the_times_though_the_step_lines_look_normal(told: Callable[[str], Verdict]) -> None:
    verdict = told("data_stall")
    change = verdict.roots[0].magnitude
    assert change is not None
    assert change.change == pytest.approx(0.18 / 0.573 - 1, abs=0.03)
    assert verdict.roots[0].onset is not None
    assert verdict.roots[0].onset.step == pytest.approx(573, abs=3)


def test_the_limit_that_was_set_is_in_the_evidence(told: Callable[[str], Verdict]) -> None:
    verdict = told("power_cap_350")
    mine = [e for e in verdict.evidence if e.id in verdict.roots[0].evidence]
    assert any("350" in e.says and "700" in e.says for e in mine)
