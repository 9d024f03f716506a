"""The counter that usually decides was not collected; another one that was tells the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import simulate
from trackwalker.lab.variants import Variant

pytestmark = pytest.mark.usefixtures("prometheus")


@dataclass(frozen=True)
class Lacking(Variant):
    """What this cluster does not collect."""

    metrics: tuple[str, ...] = ()

    def dropped(self, seed: int) -> tuple[str, ...]:
        """The same whatever the seed."""
        return self.metrics


more = pytest.mark.long(reason="a world each; a landing keeps one for each kind of device: a NIC, a GPU, a host's CPUs")


@pytest.mark.parametrize(
    ("family", "missing", "says"),
    [
        ("rdma-phased", ("hw_rdma_tx_retx_*", "hw_rdma_tx_ack_*"), "packets/s of the collectives"),
        pytest.param(
            "rdma-phased", ("hw_rdma_*tx_retx_*", "hw_rdma_rx_dup_*"), "retransmits are not counted", marks=more
        ),
        ("gpu-thermal-throttle", ("hw_gpu_clock_*",), "clocks were not collected"),
        pytest.param("collective-hang", ("hw_gpu_power_*",), "their power was not collected", marks=more),
        pytest.param("fabric-congestion", ("hw_rdma_*_cnp_*",), "do not count notifications", marks=more),
        ("hourly-scan", ("hw_procs_*", "hw_context_*"), "nobody counted runnable tasks"),
        pytest.param("gpu-power-cap", ("hw_gpu_temperature_*",), "is constant at a limit", marks=more),
    ],
)
def test_another_counter_decides(tmp_path: Path, family: str, missing: tuple[str, ...], says: str) -> None:
    lacking = Lacking("less collected", metrics=missing)
    done = simulate(load_scenario(family), tmp_path, seed=2, nodes=12, gpus=2, variant=lacking)
    verdict = diagnose(resolve(str(done.job), done.workspace)).verdict
    assert {(c.cause, *sorted(c.hosts)) for c in verdict.roots} == {
        (r.cause, *sorted(r.hosts)) for r in done.truth.roots
    }
    cited = {e for c in verdict.roots for e in c.evidence}
    assert any(says in e.says for e in verdict.evidence if e.id in cited)
