"""RDMA ports from sysfs: ionic, mlx5, bnxt_re and plain InfiniBand counters under one set of names."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from typing import NamedTuple

from trackwalker.job.processes import read_bytes
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import PciCard, SysFile, families, line, names, target

_IB = "counters/"
_HW = "hw_counters/"


class Source(NamedTuple):
    """Files whose sum is the counter (those of them that the driver has), each in units of `factor`."""

    files: tuple[str, ...]
    factor: int = 1


def _hw(*files: str) -> Source:
    return Source(tuple(_HW + file for file in files))


# Name: help, and where drivers keep it; the first source with a file wins. A name that no driver file gives is absent.
# Order of the hw_counters sources: ionic, mlx5, bnxt_re (two spellings).
COUNTERS: dict[str, tuple[str, tuple[Source, ...]]] = {
    "rx_bytes": ("Bytes received.", (Source((f"{_IB}port_rcv_data",), 4), _hw("rx_rdma_ucast_bytes"), _hw("rx_bytes"))),
    "tx_bytes": ("Bytes sent.", (Source((f"{_IB}port_xmit_data",), 4), _hw("tx_rdma_ucast_bytes"), _hw("tx_bytes"))),
    "rx_pkts": ("Packets received.", (Source((f"{_IB}port_rcv_packets",)), _hw("rx_rdma_ucast_pkts"), _hw("rx_pkts"))),
    "tx_pkts": ("Packets sent.", (Source((f"{_IB}port_xmit_packets",)), _hw("tx_rdma_ucast_pkts"), _hw("tx_pkts"))),
    "tx_retx_bytes": ("Bytes sent again.", (_hw("tx_rdma_retx_bytes"),)),
    "tx_retx_pkts": (
        "Packets sent again (ionic), or the events that made the sender go back: NAKs, implied NAKs, adaptive"
        " retransmissions (mlx5), NAKs (bnxt).",
        (
            _hw("tx_rdma_retx_pkts"),
            _hw("packet_seq_err", "implied_nak_seq_err", "roce_adp_retrans"),
            _hw("seq_err_naks_rcvd"),
        ),
    ),
    "tx_ack_timeout": (
        "Times the sender waited in vain for an acknowledgement.",
        (_hw("tx_rdma_ack_timeout"), _hw("local_ack_timeout_err", "roce_adp_retrans_to"), _hw("to_retransmits")),
    ),
    "rx_ecn_pkts": (
        "Packets received with a congestion mark.",
        (_hw("rx_rdma_ecn_pkts"), _hw("np_ecn_marked_roce_packets"), _hw("rx_ecn_marked_pkts")),
    ),
    "rx_cnp_pkts": (
        "Congestion notifications received (we are asked to slow down).",
        (_hw("rx_rdma_cnp_pkts"), _hw("rp_cnp_handled"), _hw("rx_cnp_pkts")),
    ),
    "tx_cnp_pkts": (
        "Congestion notifications sent (we ask others to slow down).",
        (_hw("tx_rdma_cnp_pkts"), _hw("np_cnp_sent"), _hw("tx_cnp_pkts"), _hw("np_cnp_pkts")),
    ),
    "req_rx_cqe_err": ("Requests that ended in an error.", (_hw("req_rx_cqe_err"), _hw("req_cqe_error"))),
    "resp_rx_cqe_err": ("Responses that ended in an error.", (_hw("resp_rx_cqe_err"), _hw("resp_cqe_error"))),
    "req_tx_retry_excd_err": (
        "Requests given up after all retries: the connection is lost.",
        (
            _hw("req_tx_retry_excd_err"),
            _hw("req_transport_retries_exceeded", "req_rnr_retries_exceeded"),
            _hw("max_retry_exceeded"),
        ),
    ),
    "ccl_tx_retx_pkts": ("Collective packets sent again.", (_hw("tx_rdma_ccl_cts_retx_pkts"),)),
    "ccl_tx_retx_bytes": ("Collective bytes sent again.", (_hw("tx_rdma_ccl_cts_retx_bytes"),)),
    "ccl_tx_ack_timeout": ("Collective acknowledgements waited for in vain.", (_hw("tx_rdma_ccl_cts_ack_timeout"),)),
    "ccl_tx_pkts": ("Collective packets sent.", (_hw("tx_rdma_ccl_cts_pkts"),)),
    "ccl_tx_bytes": ("Collective bytes sent.", (_hw("tx_rdma_ccl_cts_bytes"),)),
    "ccl_rx_pkts": ("Collective packets received.", (_hw("rx_rdma_ccl_cts_pkts"),)),
    "ccl_rx_bytes": ("Collective bytes received.", (_hw("rx_rdma_ccl_cts_bytes"),)),
    "rx_dup_response": ("Responses received twice.", (_hw("req_rx_dup_response"),)),
    "rx_dup_request": (
        "Requests received twice: the peer sent again.",
        (_hw("resp_rx_dup_request"), _hw("duplicate_request"), _hw("dup_req")),
    ),
    "rx_out_of_sequence": (
        "Packets that came out of sequence: something before them was lost.",
        (_hw("resp_rx_outouf_seq"), _hw("out_of_sequence"), _hw("oos_drop_count")),
    ),
    "rx_out_of_buffer": (
        "Packets for which the receiver had no buffer.",
        (_hw("resp_rx_outof_buf"), _hw("out_of_buffer"), _hw("rx_out_of_buffer")),
    ),
    "rx_seq_naks": (
        "Negative acknowledgements received for lost packets.",
        (_hw("req_rx_pkt_seq_err"), _hw("packet_seq_err"), _hw("seq_err_naks_rcvd")),
    ),
    "rx_rnr_naks": (
        "Receiver-not-ready answers received.",
        (_hw("req_rx_rnr_retry_err"), _hw("rnr_nak_retry_err"), _hw("rnr_naks_rcvd")),
    ),
    "rx_icrc_errors": ("Packets received with a bad checksum.", (_hw("rx_icrc_encapsulated"),)),
    "rx_discards": ("Received packets thrown away.", (_hw("rx_rdma_mtu_discard_pkts"), _hw("rx_roce_discards"))),
    "rx_errors": ("Packets received with an error.", (_hw("rx_roce_errors"),)),
    "tx_discards": ("Packets thrown away before they were sent.", (_hw("tx_roce_discards"),)),
    "tx_errors": ("Packets that could not be sent.", (_hw("tx_roce_errors"),)),
    **{
        f"port_{name}": (text, (Source((_IB + file,)),))
        for name, file, text in (
            ("symbol_error", "symbol_error", "Symbol errors: a bad cable or transceiver."),
            ("link_downed", "link_downed", "Times the link went down."),
            ("link_error_recovery", "link_error_recovery", "Times the link recovered from errors."),
            ("rcv_errors", "port_rcv_errors", "Packets received with an error."),
            ("rcv_remote_physical_errors", "port_rcv_remote_physical_errors", "Packets marked bad by a switch."),
            ("rcv_switch_relay_errors", "port_rcv_switch_relay_errors", "Packets a switch could not forward."),
            ("rcv_constraint_errors", "port_rcv_constraint_errors", "Received packets refused by the port."),
            ("xmit_constraint_errors", "port_xmit_constraint_errors", "Packets the port refused to send."),
            ("xmit_discards", "port_xmit_discards", "Packets thrown away because the port was down or congested."),
            ("xmit_wait", "port_xmit_wait", "Ticks in which there was data to send and no credit."),
            ("local_link_integrity_errors", "local_link_integrity_errors", "Physical errors above the threshold."),
            ("excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors", "Buffer overruns."),
            ("vl15_dropped", "VL15_dropped", "Management packets dropped."),
        )
    },
}  # fmt: skip

METRICS = {
    **{f"hw_rdma_{name}_total": ("counter", text) for name, (text, _) in COUNTERS.items()},
    "hw_rdma_port_state": ("gauge", "1 when the port is active."),
    "hw_rdma_port_phys_state": ("gauge", "Physical state (5 link up, 3 disabled, 2 polling)."),
    "hw_rdma_port_rate_gbps": ("gauge", "Rate the port runs at."),
    "hw_rdma_port_carrier_changes_total": ("counter", "Times the link of the port's network device went up or down."),
    "hw_rdma_port_info": ("gauge", "Which adapter this is."),
    **PciCard.metrics("hw_rdma_"),
}

_STATE = re.compile(rb"(\d+): *([A-Za-z_]+)")
_RATE = re.compile(rb"([\d.]+) Gb/sec")
_WARM_S = 1.0


class RdmaCollector:
    """Every port of every adapter in /sys/class/infiniband."""

    name = "rdma"

    def __init__(self, node: str, sysfs: str = "/sys") -> None:
        self._node = node
        self._root = f"{sysfs}/class/infiniband"
        self._listing: list[str] = []
        self._ports: list[_Port] = []
        self._cards: list[tuple[dict[str, str], PciCard]] = []

    def collect(self) -> list[Family]:
        """All families of now."""
        listing = names(self._root)
        if listing != self._listing:
            self._find(listing)
        out = families(METRICS)
        for port in self._ports:
            port.read(out)
        for labels, card in self._cards:
            for name, value in card.samples():
                out[f"hw_rdma_{name}"].add(value, None, **labels)
        return list(out.values())

    def _find(self, listing: list[str]) -> None:
        self._listing = listing
        devices = {device: f"{self._root}/{device}" for device in listing}
        warm_up(path for device in devices.values() for path in _one_counter(device))
        self._ports = [
            _Port({"device": device, "port": port, "host": self._node}, path, f"{path}/ports/{port}")
            for device, path in devices.items()
            for port in names(f"{path}/ports")
        ]
        self._cards = [
            ({"device": device, "host": self._node}, PciCard(f"{path}/device")) for device, path in devices.items()
        ]


class _Port:
    """The files of one port."""

    def __init__(self, labels: dict[str, str], device: str, path: str) -> None:
        present = {folder + file for folder in (_IB, _HW) for file in names(f"{path}/{folder}")}
        netdev = line(f"{path}/gid_attrs/ndevs/0") or _only(names(f"{device}/device/net"))
        self._labels = labels
        self._info = {
            "driver": target(f"{device}/device/driver"),
            "link_layer": line(f"{path}/link_layer"),
            "netdev": netdev,
            "pci": target(f"{device}/device"),
            "guid": line(f"{device}/node_guid"),
            "firmware": line(f"{device}/fw_ver"),
        }
        self._counters: list[tuple[str, list[SysFile], int]] = []
        for name, (_, sources) in COUNTERS.items():
            for source in sources:
                files = [SysFile(f"{path}/{file}") for file in source.files if file in present]
                if files:
                    self._counters.append((f"hw_rdma_{name}_total", files, source.factor))
                    break
        self._state, self._phys = SysFile(f"{path}/state"), SysFile(f"{path}/phys_state")
        self._rate = SysFile(f"{path}/rate")
        self._carrier = SysFile(f"{device}/device/net/{netdev}/carrier_changes") if netdev else None

    def read(self, out: dict[str, Family]) -> None:
        """Add this port's samples."""
        labels = self._labels
        for name, files, factor in self._counters:
            total = 0
            for file in files:
                value = file.number()
                if value is None or value < 0:
                    break  # a sum with a part missing would look like a reset, and the next whole one like a storm
                total += value
            else:
                out[name].add(total * factor, None, **labels)
        state = _STATE.match(self._state.read() or b"")
        if state:
            out["hw_rdma_port_state"].add(b"ACTIVE" in state[2], None, **labels)
        physical = _STATE.match(self._phys.read() or b"")
        if physical:
            out["hw_rdma_port_phys_state"].add(int(physical[1]), None, **labels)
        rate = _RATE.match(self._rate.read() or b"")
        if rate:
            out["hw_rdma_port_rate_gbps"].add(float(rate[1]), None, **labels)
        if self._carrier:
            out["hw_rdma_port_carrier_changes_total"].add(self._carrier.number(), None, **labels)
        out["hw_rdma_port_info"].add(1, None, **labels, **self._info)


def warm_up(paths: Iterable[str]) -> None:
    """Read one counter of each adapter at once: the first read asks the firmware, about 60 ms each on ionic."""
    threads = [threading.Thread(target=read_bytes, args=(path,), daemon=True) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WARM_S)


def _one_counter(device: str) -> list[str]:
    for port in names(f"{device}/ports"):
        folder = f"{device}/ports/{port}/{_HW}"
        counters = [f for f in names(folder) if f != "lifespan"]
        if counters:
            return [os.path.join(folder, counters[0])]
    return []


def _only(found: list[str]) -> str:
    return found[0] if len(found) == 1 else ""
