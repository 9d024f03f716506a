"""The binary `gpu_metrics` table of amdgpu: named numbers for the revisions whose layout is public, else nothing.

The layouts are those of Linux' kgd_pp_interface.h. The same revision number has been published with different
contents (1.6 twice), so a layout is used only where the size in the table's own header is the one it was defined with.
"""

from __future__ import annotations

import struct
from typing import Optional

Values = dict[str, tuple[Optional[int], ...]]  # a field's instances; None where the firmware has no value

_HEADER = struct.Struct("<HBB")  # size, format revision, content revision

_SENSORS = (
    "temperature_hotspot:H temperature_mem:H temperature_vrsoc:H curr_socket_power:H average_gfx_activity:H"
    " average_umc_activity:H"
)
_ENGINES = f"{_SENSORS} vcn_activity:4H jpeg_activity:32H"
_CLOCKS = " energy_accumulator:Q system_clock_counter:Q"
_RESIDENCY = (
    " accumulation_counter:I prochot_residency_acc:I ppt_residency_acc:I socket_thm_residency_acc:I"
    " vr_thm_residency_acc:I hbm_thm_residency_acc:I"
)
_LINKS = (
    " gfxclk_lock_status:I pcie_link_width:H pcie_link_speed:H xgmi_link_width:H xgmi_link_speed:H gfx_activity_acc:I"
    " mem_activity_acc:I pcie_bandwidth_acc:Q pcie_bandwidth_inst:Q pcie_l0_to_recov_count_acc:Q"
    " pcie_replay_count_acc:Q pcie_replay_rover_count_acc:Q"
)
_NAK = " pcie_nak_sent_count_acc:I pcie_nak_rcvd_count_acc:I"
_XGMI = " xgmi_read_data_acc:8Q xgmi_write_data_acc:8Q"
_V1_3 = (
    "temperature_edge:H temperature_hotspot:H temperature_mem:H temperature_vrgfx:H temperature_vrsoc:H"
    " temperature_vrmem:H average_gfx_activity:H average_umc_activity:H average_mm_activity:H curr_socket_power:H"
    " raw_energy_accumulator:Q system_clock_counter:Q average_clocks:7H current_clocks:7H throttle_status:I fan:H"
    " pcie_link_width:H pcie_link_speed:H pad:H gfx_activity_acc:I mem_activity_acc:I temperature_hbm:4H"
    " firmware_timestamp:Q voltages:3H pad1:H indep_throttle_status:Q"
)
_V1_7 = f"{_SENSORS} mem_max_bandwidth:Q{_CLOCKS}{_RESIDENCY}{_LINKS}{_NAK}{_XGMI} xgmi_link_status:8H"
_LAYOUTS = {  # (content revision, size): the fields up to the last one that is used
    (3, 120): _V1_3,
    (4, 288): f"{_SENSORS} vcn_activity:4H{_CLOCKS} throttle_status:I{_LINKS}{_XGMI}",
    (5, 360): f"{_ENGINES}{_CLOCKS} throttle_status:I{_LINKS}{_NAK}{_XGMI}",
    (6, 384): f"{_ENGINES}{_CLOCKS}{_RESIDENCY} throttle_status:I{_LINKS}{_NAK}{_XGMI}",
    (6, 1664): f"{_SENSORS}{_CLOCKS}{_RESIDENCY}{_LINKS}{_NAK}{_XGMI}",
    (7, 2208): _V1_7,
    (8, 3360): _V1_7,
}
# Revision 1.9 describes itself: each value follows a word with its unit, type, id and number of instances. The ids
# number the fields of 1.7 in their order.
_ATTRIBUTES = [field.partition(":")[0] for field in _V1_7.split()]
_TYPES = "BbHhIiQq"


class _Layout:
    """A compiled layout: one unpack for the whole table, aligned as the compiler aligns it."""

    def __init__(self, text: str) -> None:
        fields = [field.split(":") for field in text.split()]
        self._struct = struct.Struct("@HBB" + "".join(code for _, code in fields))
        self._slices: list[tuple[str, int, int, int]] = []
        at = 3
        for name, code in fields:
            count = int(code[:-1] or 1)
            self._slices.append((name, at, at + count, (1 << 8 * struct.calcsize(code[-1])) - 1))
            at += count

    def read(self, blob: bytes) -> Values:
        """All fields of a table."""
        raw = self._struct.unpack_from(blob)
        # The driver fills the table with ones before it writes the values that the firmware gave.
        return {name: _known(raw[a:b], unset) for name, a, b, unset in self._slices}


def _known(values: tuple[int, ...], unset: int) -> tuple[Optional[int], ...]:
    return values if unset not in values else tuple(None if v == unset else v for v in values)


_COMPILED = {key: _Layout(text) for key, text in _LAYOUTS.items()}


def parse(blob: bytes) -> Values:
    """The named values of a table; nothing for an unknown, short or damaged one."""
    if len(blob) < _HEADER.size:
        return {}
    size, revision, content = _HEADER.unpack_from(blob)
    if revision != 1 or len(blob) < size:
        return {}
    if content == 9:
        return _self_described(blob[:size])
    layout = _COMPILED.get((content, size))
    return layout.read(blob) if layout else {}


def _self_described(blob: bytes) -> Values:
    values: Values = {}
    try:
        (count,) = struct.unpack_from("<i", blob, 4)
        at = 8
        for _ in range(count):
            (word,) = struct.unpack_from("<Q", blob, at)
            code = _TYPES[word >> 20 & 0xF]
            form = struct.Struct(f"<{word & 0x3FF}{code}")
            identity = word >> 10 & 0x3FF
            if identity < len(_ATTRIBUTES):
                unset = (1 << 8 * struct.calcsize(code)) - 1
                values[_ATTRIBUTES[identity]] = _known(form.unpack_from(blob, at + 8), unset)
            at += 8 + form.size
    except (struct.error, IndexError):  # it does not hold what it says: none of it can be believed
        return {}
    return values
