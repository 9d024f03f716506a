"""Recordings and samples that need accounts and trends: late data, a leak everywhere, a storage stall."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.resolve import resolve

pytestmark = [pytest.mark.usefixtures("prometheus")]


def verdict_of(folder: Path) -> Verdict:
    return diagnose(resolve(str(folder), folder)).verdict


@pytest.fixture
def late_data(samples: Path) -> Path:
    folder = samples.parent / "h200runs" / "slow-data"
    if not folder.is_dir():
        pytest.skip("the recordings of real runs are not here (../shared/data/h200runs)")
    return next(p for p in folder.iterdir() if p.is_dir())


def test_late_data_of_the_only_rank_is_booked_and_no_gpu_is_blamed(late_data: Path) -> None:
    verdict = verdict_of(late_data)
    (root,) = verdict.roots
    assert (root.cause, root.hosts) == ("input-stall", [])
    assert root.onset is not None
    assert root.onset.step == 227
    assert root.explains is not None
    assert root.explains > 0.9
    (account,) = verdict.accounts
    assert account.steps == [227, 449]
    assert sum(account.shares.values()) == pytest.approx(1.0, abs=0.01)


def test_starved_gpus_that_clock_down_are_not_blamed_for_it(samples: Path) -> None:
    verdict = verdict_of(samples / "input-stall-all-ranks")
    (root,) = verdict.roots
    assert (root.cause, root.hosts) == ("input-stall", [])
    assert {"gpu-power-cap", "gpu-clock-degraded"} <= {r.cause for r in verdict.ruled_out}
    assert root.onset is not None
    assert 144 <= (root.onset.step or 0) <= 148


def test_a_leak_on_every_host_is_an_incident_at_full_speed_and_the_cancel_its_mechanism(samples: Path) -> None:
    verdict = verdict_of(samples / "fleet-memory-leak")
    assert verdict.outcome == "incident"
    assert {c.cause: (c.role, c.hosts) for c in verdict.causes} == {
        "host-memory-leak": ("root", []),
        "user-cancel": ("mechanism", []),
    }


def test_a_storage_stall_that_costs_heartbeats_is_the_root_and_the_kill_its_mechanism(samples: Path) -> None:
    verdict = verdict_of(samples / "storage-stall-heartbeat")
    roles = {c.cause: c.role for c in verdict.causes}
    assert roles == {"storage-degradation": "root", "heartbeat-false-positive": "mechanism"}
    assert not any(a.do in ("exclude-nodes", "drain-node") for a in verdict.actions)
