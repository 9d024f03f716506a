"""Folders that look like /sys on machines with AMD GPUs and RDMA adapters, as the drivers' sources write them."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trackwalker.node.exporter.exposition import Family

U16, U32, U64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
Sample = tuple[str, tuple[tuple[str, str], ...]]
Fields = list[tuple[str, Any]]  # of a ctypes structure


def samples(families: list[Family]) -> dict[Sample, float]:
    """Name and sorted labels of every sample, with its value; twice the same series is an error."""
    out: dict[Sample, float] = {}
    for family in families:
        for labels, value, _ in family.samples:
            key = (family.name, tuple(sorted(labels.items())))
            assert key not in out, f"{key} stands there twice"
            out[key] = value
    return out


def series(name: str, /, **labels: str) -> Sample:
    """The key of a sample of host `n1`."""
    return name, tuple(sorted({"host": "n1", **labels}.items()))


def put(folder: Path, files: Mapping[str, object]) -> None:
    """Write files (paths may go deeper); text gets the newline that the kernel writes."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())


def link(at: Path, to: Path) -> None:
    """A relative symlink, as in sysfs."""
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(os.path.relpath(to, at.parent))


def pci_card(root: Path, address: str, driver: str, *, generation: str = "32.0", plus: int = 0) -> Path:
    """A PCIe card with its link and AER files."""
    card = root / "devices" / "pci0000:00" / address
    aer = {
        "correctable": f"RxErr 0\nBadTLP 1\nBadDLLP 0\nRollover 0\nTimeout 2\nNonFatalErr 0\nTOTAL_ERR_COR {3 + plus}",
        "nonfatal": f"Undefined 0\nDLP 0\nPoisonedTLP 0\nCmpltTO 1\nTOTAL_ERR_NONFATAL {1 + plus}",
        "fatal": f"Undefined 0\nDLP 0\nMalfTLP 0\nTOTAL_ERR_FATAL {plus}",
    }
    put(card, {f"aer_dev_{kind}": text for kind, text in aer.items()})
    put(card, {"current_link_width": 16, "max_link_width": 16})
    put(card, {"current_link_speed": f"{generation} GT/s PCIe", "max_link_speed": f"{generation} GT/s PCIe"})
    link(root / "bus" / "pci" / "devices" / address, card)
    link(root / "bus" / "pci" / "drivers" / driver / address, card)
    link(card / "driver", root / "bus" / "pci" / "drivers" / driver)
    return card


def _gpu(root: Path, hwmon: int, address: str, sensors: Mapping[str, object], device: Mapping[str, object]) -> Path:
    card = pci_card(root, address, "amdgpu")
    folder = card / "hwmon" / f"hwmon{hwmon}"
    put(folder, {"name": "amdgpu", **sensors})
    link(folder / "device", card)
    link(root / "class" / "hwmon" / f"hwmon{hwmon}", folder)
    put(card, {"vendor": "0x1002", **device})
    return card


def kfd(root: Path, processes: int) -> None:
    """The processes that use a GPU."""
    for pid in range(processes):
        (root / "class" / "kfd" / "kfd" / "proc" / str(4000 + pid)).mkdir(parents=True, exist_ok=True)


def mi300x(root: Path, gpus: int = 8, table: Callable[[int], bytes] | None = None) -> list[Path]:
    """MI300X cards: junction and HBM sensors, momentary power, ACA error counters; other hwmon devices beside them."""
    put(root / "devices/platform/coretemp.0/hwmon/hwmon0", {"name": "coretemp", "temp1_input": 1})
    link(root / "class/hwmon/hwmon0", root / "devices/platform/coretemp.0/hwmon/hwmon0")
    kfd(root, 8)
    cards = []
    for g in range(gpus):
        sensors = {
            "temp2_input": 51000 + 1000 * g, "temp2_label": "junction", "temp2_crit": 100000,
            "temp3_input": 44000 + 1000 * g, "temp3_label": "mem",
            "power1_input": 142000000 + 1000000 * g, "power1_label": "PPT", "power1_cap": 750000000 + 1000000 * g,
            "freq1_input": 132000000 + 1000000 * g, "freq1_label": "sclk",
            "freq2_input": 900000000 + 1000000 * g, "freq2_label": "mclk",
        }  # fmt: skip
        device = {
            "device": "0x74a1", "unique_id": f"9d4f3a{g:010x}", "serial_number": f"69234000{g:04d}",
            "product_name": "AMD Instinct MI300X OAM", "vbios_version": "113-M3000100-102",
            "mem_info_vram_used": 297_000_000 + g, "mem_info_vram_total": 206_141_652_992 + g,
            "gpu_busy_percent": 0, "mem_busy_percent": 0, "pcie_replay_count": 0,
            "gpu_metrics": (table or (lambda g: blob(8, g)))(g),
            "ras/features": "feature mask: 0x3fff", "ras/gpu_vram_bad_pages": b"0x00000001 : 0x00001000 : R\n" * g,
        }  # fmt: skip
        for n, block in enumerate(("umc", "xgmi_wafl", "gfx", "mmhub", "sdma", "pcie_bif")):
            device[f"ras/aca_{block}"] = f"ue: {n + g}\nce: {10 + n + g}\nde: {20 + n + g}"
        # Address order is not hwmon order: the numbers must go by the address.
        cards.append(_gpu(root, 9 - g, f"0000:{5 + 16 * g:02x}:00.0", sensors, device))
    return cards


def mi250(root: Path, gpus: int = 2) -> list[Path]:
    """MI250 dies: an edge sensor too, average power only, error counters in the older form, table 1.3."""
    kfd(root, 0)
    (root / "class/kfd/kfd/proc").mkdir(parents=True)
    cards = []
    for g in range(gpus):
        sensors = {
            "temp1_input": 35000 + 1000 * g, "temp1_label": "edge", "temp2_input": 40000 + 1000 * g,
            "temp2_label": "junction", "temp3_input": 37000 + 1000 * g, "temp3_label": "mem",
            "power1_average": 92000000 + 1000000 * g, "power1_cap": 560000000 + 1000000 * g,
            "freq1_input": 800000000 + 1000000 * g, "freq2_input": 1600000000 + 1000000 * g,
        }  # fmt: skip
        device = {
            "device": "0x740c", "unique_id": f"7c1f{g:012x}", "mem_info_vram_used": 11_000_000 + g,
            "mem_info_vram_total": 68_702_699_520 + g, "gpu_busy_percent": 30 + g, "mem_busy_percent": 20 + g,
            "pcie_replay_count": 4 + g, "gpu_metrics": blob_1_3(g),
            "ras/gpu_vram_bad_pages": b"0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n",
        }  # fmt: skip
        for n, block in enumerate(("umc", "xgmi_wafl", "gfx", "mmhub", "sdma")):
            device[f"ras/{block}_err_count"] = f"ue: {n + g}\nce: {10 + n + g}"
        cards.append(_gpu(root, 1 + g, f"0000:{0x31 + g:02x}:00.0", sensors, device))
    return cards


# gpu_metrics: the structures of kgd_pp_interface.h, typed in again here and laid out by ctypes.
_SENSORS: Fields = [("hotspot", U16), ("mem", U16), ("vrsoc", U16), ("power", U16), ("gfx", U16), ("umc", U16)]
_CLOCK: Fields = [("energy", U64), ("clock_ns", U64)]
_RESIDENCY: Fields = [(n, U32) for n in ("cycles", "prochot", "ppt", "socket", "vr", "hbm")]
_LINKS: Fields = [
    ("lock", U32), ("pcie_width", U16), ("pcie_speed", U16), ("xgmi_width", U16), ("xgmi_speed", U16), ("gfx_acc", U32),
    ("mem_acc", U32), ("bw_acc", U64), ("bw", U64), ("recovery", U64), ("replay", U64), ("rollover", U64),
]  # fmt: skip
_NAK: Fields = [("nak_sent", U32), ("nak_received", U32)]
_XGMI: Fields = [("xgmi_read", U64 * 8), ("xgmi_write", U64 * 8)]
_TAIL: Fields = [
    ("fw", U64),
    ("clk", U16 * 8),
    ("soc", U16 * 4),
    ("v", U16 * 4),
    ("d", U16 * 4),
    ("uclk", U16),
    ("last", U16),
]
_ENGINES: Fields = [("vcn", U16 * 4), ("jpeg", U16 * 32)]
_XCP_6: Fields = [("a", U32 * 8), ("j", U16 * 32), ("v", U16 * 4), ("b", U64 * 8)]
_XCP_8: Fields = [
    ("a", U32 * 8),
    ("j", U16 * 40),
    ("v", U16 * 4),
    ("b", U64 * 8),
    ("p", U64 * 8),
    ("t", U64 * 8),
    ("l", U64 * 8),
]
_UP: Fields = [("xgmi_up", U16 * 8), ("pad", U16)]


def _structure(name: str, fields: Fields) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _table(name: str, *parts: Fields, xcp: Fields | None = None) -> type[ctypes.Structure]:
    fields: Fields = [("size", U16), ("format", ctypes.c_uint8), ("content", ctypes.c_uint8)]
    fields += [field for part in parts for field in part]
    if xcp:
        fields += [("xcp", _structure(f"{name}_xcp", xcp) * 8), ("other_end", U32)]
    return _structure(name, fields)


_THROTTLE: Fields = [("throttle", U32)]
TABLES = {
    4: _table("v1_4", _SENSORS, _ENGINES[:1], _CLOCK, _THROTTLE, _LINKS, _XGMI, _TAIL),
    5: _table("v1_5", _SENSORS, _ENGINES, _CLOCK, _THROTTLE, _LINKS, _NAK, _XGMI, _TAIL),
    6: _table("v1_6", _SENSORS, _CLOCK, _RESIDENCY, _LINKS, _NAK, _XGMI, _TAIL, xcp=_XCP_6),
    60: _table("v1_6_early", _SENSORS, _ENGINES, _CLOCK, _RESIDENCY, _THROTTLE, _LINKS, _NAK, _XGMI, _TAIL),
    7: _table(
        "v1_7", _SENSORS, [("max_bw", U64)], _CLOCK, _RESIDENCY, _LINKS, _NAK, _XGMI, _UP, _TAIL,
        xcp=[*_XCP_6, ("h", U64 * 8)],
    ),
    8: _table("v1_8", _SENSORS, [("max_bw", U64)], _CLOCK, _RESIDENCY, _LINKS, _NAK, _XGMI, _UP, _TAIL, xcp=_XCP_8),
}  # fmt: skip
V1_3 = _table(
    "v1_3",
    [(n, U16) for n in ("edge", "hotspot", "mem", "vrgfx", "vrsoc", "vrmem", "gfx", "umc", "mm", "power")],
    _CLOCK,
    [("average", U16 * 7), ("current", U16 * 7), *_THROTTLE, ("fan", U16), ("width", U16), ("speed", U16), ("p", U16)],
    [("gfx_acc", U32), ("mem_acc", U32), ("hbm", U16 * 4), ("fw", U64), ("volts", U16 * 3), ("p1", U16), ("bits", U64)],
)


def values(g: int) -> dict[str, object]:
    """What the table of GPU g says."""
    return {
        "hotspot": 51 + g, "mem": 44 + g, "vrsoc": 61 + g, "power": 142 + g, "gfx": 90 + g, "umc": 40 + g,
        "energy": (1000 + g) * 65536, "clock_ns": 10**12, "cycles": 1_000_000, "prochot": 0, "ppt": 1000 + g,
        "socket": 2000, "vr": 0, "hbm": 0, "pcie_width": 16, "pcie_speed": 320, "xgmi_width": 16 + g,
        "xgmi_speed": 32 + g,
        "recovery": 1 + g, "replay": 2 + g, "rollover": 3 + g, "nak_sent": 4 + g, "nak_received": 5 + g,
        "xgmi_read": [100 * link + g for link in range(8)], "xgmi_write": [1000 * link + g for link in range(8)],
        "xgmi_up": [0 if link == 7 else 1 for link in range(8)],
    }  # fmt: skip


def blob(content: int, g: int, **changes: object) -> bytes:
    """The table of GPU g in revision 1.`content` (60: the first 1.6); what the firmware has not is all ones."""
    kind = TABLES[content]
    table = kind.from_buffer_copy(b"\xff" * ctypes.sizeof(kind))
    table.size, table.format, table.content = ctypes.sizeof(kind), 1, 6 if content == 60 else content
    return _fill(table, {**values(g), **changes})


def blob_1_3(g: int, **changes: object) -> bytes:
    """The table of an MI250 die."""
    table = V1_3.from_buffer_copy(b"\xff" * ctypes.sizeof(V1_3))
    table.size, table.format, table.content = ctypes.sizeof(V1_3), 1, 3
    given = {
        "edge": 35,
        "hotspot": 40,
        "mem": 37,
        "vrsoc": 33 + g,
        "gfx": 31 + g,
        "umc": 21 + g,
        "power": 92,
        "bits": 1,
    }
    return _fill(table, {**given, **changes})


def blob_1_9(attributes: list[tuple[int, str, list[int]]], size: int | None = None) -> bytes:
    """A table that describes itself: (id, type letter, values)."""
    types = "BbHhIiQq"
    body = len(attributes).to_bytes(4, "little")
    for identity, letter, numbers in attributes:
        width = {"B": 1, "H": 2, "I": 4, "Q": 8}[letter.upper()]
        body += (types.index(letter) << 20 | identity << 10 | len(numbers)).to_bytes(8, "little")
        body += b"".join(n.to_bytes(width, "little") for n in numbers)
    return (size or len(body) + 4).to_bytes(2, "little") + b"\x01\x09" + body


def _fill(table: ctypes.Structure, given: Mapping[str, object]) -> bytes:
    fields = {name for name, *_ in table._fields_}
    for name, value in given.items():
        if name in fields:
            setattr(table, name, type(getattr(table, name))(*value) if isinstance(value, list) else value)
    return bytes(table)


_IB_COUNTERS = (
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
    "local_link_integrity_errors", "port_rcv_constraint_errors", "port_rcv_data", "port_rcv_errors", "port_rcv_packets",
    "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_xmit_data",
    "port_xmit_discards", "port_xmit_packets", "port_xmit_wait", "symbol_error",
)  # fmt: skip
_HW_COUNTERS = {
    "mlx5": (
        "duplicate_request", "implied_nak_seq_err", "local_ack_timeout_err", "np_cnp_sent",
        "np_ecn_marked_roce_packets",
        "out_of_buffer", "out_of_sequence", "packet_seq_err", "req_cqe_error", "req_cqe_flush_error",
        "req_rnr_retries_exceeded", "req_transport_retries_exceeded", "resp_cqe_error", "rnr_nak_retry_err",
        "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart", "rp_cnp_handled", "rp_cnp_ignored",
        "rx_icrc_encapsulated", "rx_read_requests", "rx_write_requests",
    ),
    "bnxt_en": (
        "active_qps", "dup_req", "max_retry_exceeded", "missing_resp", "oos_drop_count", "recoverable_errors",
        "rnr_naks_rcvd", "rx_bytes", "rx_cnp_pkts", "rx_ecn_marked_pkts", "rx_out_of_buffer", "rx_pkts",
        "rx_roce_discards", "rx_roce_errors", "rx_roce_good_bytes", "seq_err_naks_rcvd", "to_retransmits", "tx_bytes",
        "tx_cnp_pkts", "tx_pkts", "tx_roce_discards", "tx_roce_errors", "unrecoverable_err",
    ),
    "ionic": (
        "req_rx_cqe_err", "req_rx_dup_response", "req_rx_impl_nak_seq_err", "req_rx_pkt_seq_err",
        "req_rx_rnr_retry_err",
        "req_tx_retry_excd_err", "resp_rx_cqe_err", "resp_rx_dup_request", "resp_rx_outof_buf", "resp_rx_outouf_seq",
        "resp_tx_pkt_seq_err", "rx_rdma_ccl_cts_bytes", "rx_rdma_ccl_cts_pkts", "rx_rdma_cnp_pkts", "rx_rdma_ecn_pkts",
        "rx_rdma_mtu_discard_pkts", "rx_rdma_ucast_bytes", "rx_rdma_ucast_pkts", "tx_rdma_ack_timeout",
        "tx_rdma_ccl_cts_ack_timeout", "tx_rdma_ccl_cts_bytes", "tx_rdma_ccl_cts_pkts", "tx_rdma_ccl_cts_retx_bytes",
        "tx_rdma_ccl_cts_retx_pkts", "tx_rdma_cnp_pkts", "tx_rdma_retx_bytes", "tx_rdma_retx_pkts",
        "tx_rdma_ucast_bytes", "tx_rdma_ucast_pkts",
    ),
}  # fmt: skip


def adapter(root: Path, number: int, kind: str, *, ports: int = 1) -> Path:
    """An RDMA adapter: kind mlx5, bnxt_en, ionic, or ib (an InfiniBand card with the standard counters only)."""
    driver = {"mlx5": "mlx5_core", "ib": "mlx4_core"}.get(kind, kind)
    stem = {"bnxt_en": "bnxt_re", "mlx5": "mlx5_", "ionic": "ionic_", "ib": "mlx4_"}[kind]
    name, netdev = f"{stem}{number}", f"{'ib' if kind == 'ib' else 'ens'}{number}"
    card = pci_card(root, f"0000:{0x0C + number:02x}:00.0", driver, generation="16.0" if kind == "ib" else "32.0")
    device = card / "infiniband" / name
    link(root / "class" / "infiniband" / name, device)
    link(device / "device", card)
    put(device, {"node_guid": f"506b:4b03:00fe:{number:04x}", "fw_ver": "28.39.1002"})
    put(card / "net" / netdev, {"carrier_changes": 3 + number})
    link(root / "class" / "net" / netdev, card / "net" / netdev)
    for port in range(1, ports + 1):
        folder = device / "ports" / str(port)
        put(folder, {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"})
        put(folder, {"link_layer": "InfiniBand" if kind == "ib" else "Ethernet"})
        if kind != "ib":
            put(folder / "gid_attrs" / "ndevs", {"0": netdev})
        if kind in ("ib", "mlx5"):
            put(folder / "counters", {c: 1000 * (n + 1) + port for n, c in enumerate(_IB_COUNTERS)})
        if kind != "ib":
            put(folder / "hw_counters", {c: 100 * (n + 1) + number for n, c in enumerate(_HW_COUNTERS[kind])})
            put(folder / "hw_counters", {"lifespan": 10})
    return device


_WORDS = {
    "4: ACTIVE": "1: DOWN",
    "5: LinkUp": "3: Disabled",
    "400 Gb/sec (4X NDR)": "200 Gb/sec (4X HDR)",
    "up": "down",
}
_AS_THEY_ARE = re.compile(
    r".*_label|name|vendor|device|unique_id|product_name|serial_number|vbios_version|features|0|lifespan|node_guid|fw_ver|link_layer"
)


def mutate(root: Path) -> None:
    """Give every number in the tree another value, in place; identities stay."""
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_file() or _AS_THEY_ARE.fullmatch(path.name) or path.name == "gpu_metrics":
            continue
        text = path.read_text().rstrip("\n")
        if path.name.endswith("_link_speed"):
            text = "8.0 GT/s PCIe"
        elif path.name.endswith("_link_width"):
            text = "8"
        elif path.name == "gpu_vram_bad_pages":
            text += "\n0x00000008 : 0x00001000 : R\n0x00000009 : 0x00001000 : P\n0x0000000a : 0x00001000 : F"
            text = text.lstrip("\n")
        else:
            text = _WORDS.get(text) or re.sub(r"\b\d+\b", lambda m: str(int(m[0]) + 7), text)
        path.write_text(text + "\n")
