"""Less evidence, a wrong clock, lost samples: a right answer may become no answer, never a wrong accusation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import Truth, load_scenario
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.simulate import simulate
from trackwalker.lab.variants import AS_WRITTEN, Variant

pytestmark = [pytest.mark.usefixtures("prometheus")]

SCENARIOS = (
    "collective-hang",
    "cpu-contention",
    "dataloader-hang",
    "gpu-clock-degraded",
    "gpu-thermal-throttle",
    "healthy-plain",
    "node-death",
    "rdma-phased",
)
NODES, GPUS, SEED = 6, 1, 1


@dataclass(frozen=True)
class Without(Variant):
    """One family of metrics was not collected."""

    metrics: str = ""

    def dropped(self, seed: int) -> tuple[str, ...]:
        """The same family whatever the seed."""
        return (self.metrics,)


CONDITIONS = (
    Variant("a host's clock is a minute ahead", skew_s=60.0),
    Variant("one sample in a hundred is lost", lost_scrapes=0.01),
    *(
        Without(f"without {family}", metrics=family)
        for family in (
            "hw_rdma_*",
            "hw_gpu_power_*",
            "hw_gpu_temperature_*",
            "hw_gpu_clock_*",
            "hw_gpu_vram_*",
            "hw_procs_*",
            "hw_scrape_*",
            "ray_*",
            "tb_*",
        )
    ),
)


BY_NAME = {condition.name: condition for condition in CONDITIONS}
# For every landing: each incident without what its answer rests on, and each condition at least once.
HARDEST = {
    "collective-hang": ("without hw_gpu_power_*", "one sample in a hundred is lost"),
    "cpu-contention": ("without hw_procs_*", "a host's clock is a minute ahead"),
    "dataloader-hang": ("without tb_*", "without ray_*"),
    "gpu-clock-degraded": ("without hw_gpu_clock_*", "without hw_gpu_vram_*"),
    "gpu-thermal-throttle": ("without hw_gpu_temperature_*",),
    "healthy-plain": ("one sample in a hundred is lost",),
    "node-death": ("without hw_scrape_*", "a host's clock is a minute ahead"),
    "rdma-phased": ("without hw_rdma_*",),
}
assert set(HARDEST) == set(SCENARIOS)
assert {name for names in HARDEST.values() for name in names} == set(BY_NAME)


def judged(family: str, place: Path, condition: Variant) -> tuple[Verdict, Truth]:
    done = simulate(load_scenario(family), place, SEED, nodes=NODES, gpus=GPUS, variant=condition)
    return diagnose(resolve(str(done.job), done.workspace)).verdict, done.truth


def wrong_accusations(verdict: Verdict, truth: Truth) -> list[str]:
    """Causes called roots of an incident that are none, and hosts named as culprits that are none.

    `unclassified` names no cause: where what would name it is missing, the right host is a right answer.
    """
    if verdict.outcome != "incident":
        return []
    true = [r for t in (truth, *truth.alternatives) for r in t.roots]
    causes = {r.cause for r in true} | set(truth.also_roots) | {truth.mechanism}
    hosts = {h for r in true for h in r.hosts}
    wrong = [c.cause for c in verdict.roots if c.cause not in causes | {"unclassified"}]
    return wrong + [f"{c.cause} on {h}" for c in verdict.roots for h in c.hosts if h not in hosts]


@pytest.mark.parametrize("family", SCENARIOS)
def test_the_hardest_conditions_turn_no_right_answer_into_a_wrong_accusation(tmp_path: Path, family: str) -> None:
    assert accused_under([BY_NAME[name] for name in HARDEST[family]], family, tmp_path) == {}


@pytest.mark.long(reason="every incident as written and under every condition: 96 simulated runs")
@pytest.mark.parametrize("family", SCENARIOS)
def test_no_condition_turns_a_right_answer_into_a_wrong_accusation(tmp_path: Path, family: str) -> None:
    verdict, truth = judged(family, tmp_path / "as-written", AS_WRITTEN)
    graded = grade(verdict.model_dump(by_alias=True), truth)
    assert graded.passed, f"right to begin with: {graded.said}"
    assert accused_under(CONDITIONS, family, tmp_path) == {}


def accused_under(conditions: Sequence[Variant], family: str, folder: Path) -> dict[str, list[str]]:
    """Wrong accusations by the condition that led to them."""
    wrong = {}
    for number, condition in enumerate(conditions):
        verdict, truth = judged(family, folder / str(number), condition)
        if accused := wrong_accusations(verdict, truth):
            wrong[condition.name] = accused
    return wrong
