"""The pure parts of the benches: intervals over pairs, the fake nodes' payload, sizes in proportion, verdicts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from exporter import Cost, verdicts
from fleet import Payload, address_of, name_of
from paired import is_on, ratio_interval
from scale10k import right
from scale_plot import Curve, fitted, plot
from sizing import Measured, need, table
from usage import cpu_seconds, family, memory_mb

PAYLOAD = """# HELP hw_rdma_tx_bytes Bytes sent.
# TYPE hw_rdma_tx_bytes counter
hw_rdma_tx_bytes_total{device="mlx5_0",port="1",host="node0000"} 4000
hw_rdma_tx_errors_total{device="mlx5_0",port="1",host="node0000"} 7
# TYPE hw_gpu_power_watts gauge
hw_gpu_power_watts{gpu="0",host="node0000"} 500
hw_rank_up{host="node0000-r0",rank="0"} 1
# EOF
"""


def test_every_pair_has_both_sides_and_drift_falls_on_both() -> None:
    blocks = [is_on(n) for n in range(8)]
    assert blocks == [True, False, False, True] * 2
    drift = [1 + 0.01 * n for n in range(8)]
    on = [d for d, b in zip(drift, blocks, strict=True) if b]
    off = [d for d, b in zip(drift, blocks, strict=True) if not b]
    assert sum(on) == pytest.approx(sum(off))


def test_the_interval_holds_the_truth_and_shrugs_at_a_wild_pair() -> None:
    rng = np.random.default_rng(3)
    off = 0.1 * np.exp(rng.normal(0, 0.01, 60))
    on = off * 1.004 * np.exp(rng.normal(0, 0.01, 60))
    on[7] *= 5  # somebody compiled something meanwhile
    ratio, low, high = ratio_interval(list(on), list(off))
    assert low < 1.004 < high
    assert low < ratio < high
    assert high - low < 0.01


def test_two_pairs_are_the_least() -> None:
    with pytest.raises(ValueError, match="two pairs"):
        ratio_interval([1.0], [1.0])


def test_a_fake_node_has_its_own_name_and_only_what_moves_moves() -> None:
    payload = Payload(PAYLOAD)
    assert payload.series == 4
    early, late = payload.write(12, 10.0), payload.write(12, 40.0)
    assert "node0000" not in early
    assert 'host="node00012-r0"' in early
    value = {line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in early.splitlines() if line[0] != "#"}
    later = {line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in late.splitlines() if line[0] != "#"}
    assert value["hw_rdma_tx_bytes_total"] < later["hw_rdma_tx_bytes_total"]
    assert value["hw_rdma_tx_errors_total"] == later["hw_rdma_tx_errors_total"] == 7
    assert 480 < value["hw_gpu_power_watts"] < 520
    assert early.endswith("# EOF\n")


def test_fake_nodes_have_addresses_of_their_own() -> None:
    assert len({address_of(n) for n in range(11_000)}) == len({name_of(n) for n in range(11_000)}) == 11_000
    assert all(0 < int(part) < 255 for n in (0, 249, 250, 10_999) for part in address_of(n).split(".")[3:])


def test_sizes_go_in_proportion() -> None:
    measured = Measured(1000, 15.0, 1150, 76_000.0, 0.5, 5000.0, 7.0, 1.7, 2e6)
    ten = need(measured, 10_000, 15.0)
    one = need(measured, 1000, 15.0)
    assert ten.series == 10 * one.series == 11_500_000
    assert ten.disk_gb_day == pytest.approx(10 * one.disk_gb_day)
    assert one.disk_gb_day == pytest.approx(1150 * 1000 / 15 * 86400 * 1.7 / 1e9)
    assert need(measured, 24, 1.0).samples_s == pytest.approx(27_600)
    assert table(measured, [(24, 1.0), (10_000, 15.0)]).count("\n") == 3


def test_each_target_is_judged_by_itself() -> None:
    ours, other = Cost("a", 10, 41, 30, 1000, 1), Cost("b", 6, 20, 20, 500, 1)
    assert [good for good, _ in verdicts(ours, other, Cost("c", 99, 20, 20, 500, 1))] == [True, False, False]


@pytest.mark.starts_processes
def test_a_process_counts_with_what_it_started() -> None:
    loop = "import time\nwhile time.process_time() < 0.2: pass\nprint(1, flush=True); input()"
    shell = subprocess.Popen(
        ["/bin/sh", "-c", f'"{sys.executable}" -S -c "{loop}"; true'], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert shell.stdout is not None
    shell.stdout.readline()
    members = family(shell.pid)
    assert len(members) == 2
    assert cpu_seconds(members) >= 0.15
    assert memory_mb(members[1]) > memory_mb(members[1], "Pss") > 1
    # Other tests of this worker may have left children that are just ending: only these two must be gone.
    assert not set(members) & set(family(os.getpid(), without=[shell.pid]))
    shell.communicate(b"\n", timeout=20)


def test_the_planted_causes_are_right_on_exactly_their_hosts() -> None:
    true = {"rdma-degradation": ["b", "a"], "gpu-clock-degraded": ["c"]}
    assert right({"gpu-power-cap": ["c"], "rdma-degradation": ["a", "b"]}, true), "a card held back is both"
    assert not right({"rdma-degradation": ["a", "b"]}, true)
    assert not right({**true, "rdma-degradation": ["a"]}, true)
    assert not right({**true, "cpu-contention": ["d"]}, true)


def test_a_cost_curve_has_its_exponent() -> None:
    linear = Curve("hosts", "seconds", [1, 2, 4, 8], [3, 6, 12, 24])
    flat = Curve("hosts", "MB", [1, 2, 4, 8], [50, 50, 50, 50])
    assert fitted(linear) == pytest.approx(1.0)
    assert fitted(flat) == pytest.approx(0.0)
    drawn = plot([linear, flat])
    assert drawn.count("<polyline") == 4, "each with the straight line beside it"
    assert "exponent 1.00" in drawn
