"""RDMA adapters: four drivers, one set of names, and no counter that was not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sysfs_trees import Sample, adapter, link, mutate, pci_card, put, samples, series

from trackwalker.node.collectors import rdma
from trackwalker.node.collectors.rdma import METRICS, RdmaCollector

# Where each name comes from, by the file's place in the tree: hw_counters hold 100 * place + adapter number.
MLX5 = {
    "rx_dup_request": 100, "tx_retx_pkts": 200 + 800 + 1500, "tx_ack_timeout": 300 + 1600, "tx_cnp_pkts": 400,
    "rx_ecn_pkts": 500, "rx_out_of_buffer": 600, "rx_out_of_sequence": 700, "rx_seq_naks": 800, "req_rx_cqe_err": 900,
    "req_tx_retry_excd_err": 1100 + 1200, "resp_rx_cqe_err": 1300, "rx_rnr_naks": 1400, "rx_cnp_pkts": 1800,
    "rx_icrc_errors": 2000,
}  # fmt: skip
SUMS = {"tx_retx_pkts": 3, "tx_ack_timeout": 2, "req_tx_retry_excd_err": 2}  # files of mlx5 that are added up
BNXT = {
    "rx_dup_request": 200, "req_tx_retry_excd_err": 300, "rx_out_of_sequence": 500, "rx_rnr_naks": 700, "rx_bytes": 800,
    "rx_cnp_pkts": 900, "rx_ecn_pkts": 1000, "rx_out_of_buffer": 1100, "rx_pkts": 1200, "rx_discards": 1300,
    "rx_errors": 1400, "tx_retx_pkts": 1600, "rx_seq_naks": 1600, "tx_ack_timeout": 1700, "tx_bytes": 1800,
    "tx_cnp_pkts": 1900, "tx_pkts": 2000, "tx_discards": 2100, "tx_errors": 2200,
}  # fmt: skip
IONIC = {
    "req_rx_cqe_err": 100, "rx_dup_response": 200, "rx_seq_naks": 400, "rx_rnr_naks": 500, "req_tx_retry_excd_err": 600,
    "resp_rx_cqe_err": 700, "rx_dup_request": 800, "rx_out_of_buffer": 900, "rx_out_of_sequence": 1000,
    "ccl_rx_bytes": 1200, "ccl_rx_pkts": 1300, "rx_cnp_pkts": 1400, "rx_ecn_pkts": 1500, "rx_discards": 1600,
    "rx_bytes": 1700, "rx_pkts": 1800, "tx_ack_timeout": 1900, "ccl_tx_ack_timeout": 2000, "ccl_tx_bytes": 2100,
    "ccl_tx_pkts": 2200, "ccl_tx_retx_bytes": 2300, "ccl_tx_retx_pkts": 2400, "tx_cnp_pkts": 2500,
    "tx_retx_bytes": 2600, "tx_retx_pkts": 2700, "tx_bytes": 2800, "tx_pkts": 2900,
}  # fmt: skip
# The standard counters hold 1000 * place + port.
IB = {
    "port_vl15_dropped": 1001, "port_excessive_buffer_overrun_errors": 2001, "port_link_downed": 3001,
    "port_link_error_recovery": 4001, "port_local_link_integrity_errors": 5001, "port_rcv_constraint_errors": 6001,
    "rx_bytes": 4 * 7001, "port_rcv_errors": 8001, "rx_pkts": 9001, "port_rcv_remote_physical_errors": 10001,
    "port_rcv_switch_relay_errors": 11001, "port_xmit_constraint_errors": 12001, "tx_bytes": 4 * 13001,
    "port_xmit_discards": 14001, "tx_pkts": 15001, "port_xmit_wait": 16001, "port_symbol_error": 17001,
}  # fmt: skip


def read(root: Path) -> dict[Sample, float]:
    return samples(RdmaCollector("n1", str(root)).collect())


def expected(device: str, kind: str, number: int) -> dict[Sample, float]:
    """All samples of one adapter with one port."""
    port = {"device": device, "port": "1"}
    counters = {"mlx5": MLX5, "bnxt_en": BNXT, "ionic": IONIC, "ib": {}}[kind]
    out: dict[Sample, float] = {
        series(f"hw_rdma_{name}_total", **port): value + number * (SUMS.get(name, 1) if kind == "mlx5" else 1)
        for name, value in counters.items()
    }
    if kind in ("mlx5", "ib"):
        out |= {series(f"hw_rdma_{name}_total", **port): value for name, value in IB.items()}
    out |= {
        series("hw_rdma_port_state", **port): 1, series("hw_rdma_port_phys_state", **port): 5,
        series("hw_rdma_port_rate_gbps", **port): 400,
        series("hw_rdma_port_carrier_changes_total", **port): 3 + number,
    }  # fmt: skip
    out[series("hw_rdma_port_info", **port, driver={"mlx5": "mlx5_core", "ib": "mlx4_core"}.get(kind, kind),
               link_layer="InfiniBand" if kind == "ib" else "Ethernet", pci=f"0000:{0x0C + number:02x}:00.0",
               netdev=f"{'ib' if kind == 'ib' else 'ens'}{number}", guid=f"506b:4b03:00fe:{number:04x}",
               firmware="28.39.1002")] = 1  # fmt: skip
    generation = 4 if kind == "ib" else 5
    card = {"width": 16, "width_max": 16, "generation": generation, "generation_max": generation}
    out |= {series(f"hw_rdma_pcie_link_{name}", device=device): value for name, value in card.items()}
    errors = {"correctable": 3, "nonfatal": 1, "fatal": 0}
    return out | {series(f"hw_rdma_pcie_{kind}_total", device=device): value for kind, value in errors.items()}


KINDS = {"mlx5": "mlx5_", "bnxt_en": "bnxt_re", "ionic": "ionic_", "ib": "mlx4_"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_gives_exactly_these_samples(tmp_path: Path, kind: str) -> None:
    for number in range(2):
        adapter(tmp_path, number, kind)
    assert read(tmp_path) == {
        **expected(f"{KINDS[kind]}0", kind, 0),
        **expected(f"{KINDS[kind]}1", kind, 1),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_metric_follows_its_source(tmp_path: Path, kind: str) -> None:
    adapter(tmp_path, 0, kind)
    collector = RdmaCollector("n1", str(tmp_path))
    before = samples(collector.collect())
    mutate(tmp_path)
    after = samples(collector.collect())
    assert before.keys() == after.keys()
    assert {name for (name, _), value in before.items() if after[name, _] == value} == {"hw_rdma_port_info"}


def test_every_declared_metric_is_given_by_some_adapter(tmp_path: Path) -> None:
    for number, kind in enumerate(KINDS):
        adapter(tmp_path, number, kind)
    assert {name for name, _ in read(tmp_path)} == set(METRICS)


def test_all_drivers_tell_of_loss_and_congestion() -> None:
    essential = {"tx_retx_pkts", "tx_ack_timeout", "rx_ecn_pkts", "rx_cnp_pkts", "tx_cnp_pkts", "req_tx_retry_excd_err",
                 "rx_dup_request", "rx_out_of_sequence", "rx_out_of_buffer", "rx_seq_naks"}  # fmt: skip
    for driver in (MLX5, BNXT, IONIC):
        assert essential <= driver.keys()


@pytest.mark.parametrize("how", ["gone", "folder", "eio", "empty", "garbage", "negative"])
@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("hw_counters/out_of_sequence", {"rx_out_of_sequence_total"}),
        ("hw_counters/packet_seq_err", {"tx_retx_pkts_total", "rx_seq_naks_total"}),
        ("counters/port_rcv_data", {"rx_bytes_total"}),
        ("counters/symbol_error", {"port_symbol_error_total"}),
        ("state", {"port_state"}),
        ("phys_state", {"port_phys_state"}),
        ("rate", {"port_rate_gbps"}),
    ],
)
def test_a_bad_file_costs_its_own_samples_only(tmp_path: Path, file: str, lost: set[str], how: str) -> None:
    adapter(tmp_path, 0, "mlx5")
    device = adapter(tmp_path, 1, "mlx5")
    whole = read(tmp_path)
    path = device / "ports" / "1" / file
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "eio":
        path.symlink_to("/proc/self/mem")
    elif how != "gone":
        path.write_text({"empty": "", "garbage": "N/A (no PMA)\n", "negative": "-1\n"}[how])
    got = read(tmp_path)
    if how == "gone":  # a counter that the driver never had is no part of a sum
        got.pop(series("hw_rdma_tx_retx_pkts_total", device="mlx5_1", port="1"))
        whole.pop(series("hw_rdma_tx_retx_pkts_total", device="mlx5_1", port="1"))
        lost = lost - {"tx_retx_pkts_total"}
    assert {(name, dict(labels)["device"]) for name, labels in whole if (name, labels) not in got} == {
        (f"hw_rdma_{name}", "mlx5_1") for name in lost
    }
    assert {key: whole[key] for key in got} == got


def test_a_sum_with_a_part_missing_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    device = adapter(tmp_path, 0, "mlx5")
    collector = RdmaCollector("n1", str(tmp_path))
    key = series("hw_rdma_tx_retx_pkts_total", device="mlx5_0", port="1")
    assert samples(collector.collect())[key] == 2500
    part = device / "ports/1/hw_counters/implied_nak_seq_err"
    part.write_text("N/A\n")
    assert key not in samples(collector.collect())
    part.write_text("201\n")
    assert samples(collector.collect())[key] == 2501


def test_two_ports_and_an_adapter_that_comes_later(tmp_path: Path) -> None:
    adapter(tmp_path, 0, "mlx5", ports=2)
    collector = RdmaCollector("n1", str(tmp_path))
    got = samples(collector.collect())
    assert got[series("hw_rdma_rx_bytes_total", device="mlx5_0", port="2")] == 4 * 7002
    adapter(tmp_path, 1, "ionic")
    got = samples(collector.collect())
    assert got[series("hw_rdma_tx_bytes_total", device="ionic_1", port="1")] == 2801
    (tmp_path / "class/infiniband/mlx5_0").unlink()
    assert not any(dict(labels).get("device") == "mlx5_0" for _, labels in samples(collector.collect()))


def test_an_adapter_without_netdev_or_counters_still_has_its_state(tmp_path: Path) -> None:
    card = pci_card(tmp_path, "0000:0c:00.0", "irdma")
    device = card / "infiniband" / "rocep12s0"
    link(tmp_path / "class/infiniband/rocep12s0", device)
    link(device / "device", card)
    put(device / "ports/1", {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "2.5 Gb/sec (1X SDR)"})
    got = {name: value for (name, _), value in read(tmp_path).items() if "pcie" not in name}
    assert got == {
        "hw_rdma_port_state": 0,
        "hw_rdma_port_phys_state": 3,
        "hw_rdma_port_rate_gbps": 2.5,
        "hw_rdma_port_info": 1,
    }


def test_the_first_read_of_all_adapters_is_made_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        adapter(tmp_path, number, "ionic")
    warmed: list[list[str]] = []
    monkeypatch.setattr(rdma, "warm_up", lambda paths: warmed.append(list(paths)))
    collector = RdmaCollector("n1", str(tmp_path))
    collector.collect()
    collector.collect()
    assert [Path(path).parts[-5] for path in warmed[0]] == [f"ionic_{n}" for n in range(4)]
    assert len(warmed) == 1


def test_an_adapter_that_does_not_answer_delays_the_first_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rdma, "_WARM_S", 0.05)
    path = tmp_path / "fifo"
    os.mkfifo(path)  # opening it for reading waits for a writer
    rdma.warm_up([str(path)])
    os.close(os.open(path, os.O_WRONLY))  # let the thread end


def test_without_adapters_there_is_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == {}
