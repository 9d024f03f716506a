"""The gpu_metrics table: every public layout reads back as the compiler lays it out."""

from __future__ import annotations

import ctypes

import pytest
from sysfs_trees import TABLES, V1_3, blob, blob_1_3, blob_1_9

from trackwalker.node.sensors import gpu_metrics


@pytest.mark.parametrize("content", [4, 5, 6, 60, 7, 8])
def test_each_known_table_reads_back(content: int) -> None:
    got = gpu_metrics.parse(blob(content, 3))
    sizes = {4: 288, 5: 360, 6: 1664, 60: 384, 7: 2208, 8: 3360}
    assert ctypes.sizeof(TABLES[content]) == sizes[content]
    ours = {
        "temperature_hotspot": 54, "temperature_vrsoc": 64, "curr_socket_power": 145, "average_gfx_activity": 93,
        "energy_accumulator": 1003 * 65536, "system_clock_counter": 10**12, "pcie_replay_count_acc": 5,
        "xgmi_link_width": 19, "pcie_l0_to_recov_count_acc": 4, "pcie_replay_rover_count_acc": 6,
        **({"pcie_nak_sent_count_acc": 7, "pcie_nak_rcvd_count_acc": 8} if content != 4 else {}),
        **({"accumulation_counter": 10**6, "ppt_residency_acc": 1003, "hbm_thm_residency_acc": 0}
           if content > 5 else {}),
    }  # fmt: skip
    assert {name: got[name] for name in ours} == {name: (value,) for name, value in ours.items()}
    assert got["xgmi_write_data_acc"] == tuple(1000 * link + 3 for link in range(8))
    assert got["gfxclk_lock_status"] == (None,)  # all ones: the firmware has no value
    assert ("xgmi_link_status" in got) == (content in (7, 8))


def test_the_table_of_an_mi250_reads_back() -> None:
    assert ctypes.sizeof(V1_3) == 120
    got = gpu_metrics.parse(blob_1_3(2, bits=1 << 36))
    assert got["average_gfx_activity"] == (33,)
    assert got["temperature_vrsoc"] == (35,)
    assert got["indep_throttle_status"] == (1 << 36,)
    assert "energy_accumulator" not in got  # its unit is not stated for this revision


def test_a_table_that_describes_itself_reads_back() -> None:
    table = blob_1_9([(0, "H", [42]), (3, "H", [194]), (9, "I", [54536484]), (11, "I", [633093]), (300, "B", [1, 2, 3]),
                      (29, "Q", [5, 2**64 - 1]), (4, "H", [0xFFFF])])  # fmt: skip
    assert gpu_metrics.parse(table) == {
        "temperature_hotspot": (42,), "curr_socket_power": (194,), "accumulation_counter": (54536484,),
        "ppt_residency_acc": (633093,), "xgmi_read_data_acc": (5, None), "average_gfx_activity": (None,),
    }  # fmt: skip
