"""AMD GPUs: every metric exactly, every metric alive, and a bad file costs its own sample only."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from sysfs_trees import (
    Sample,
    blob,
    blob_1_3,
    blob_1_9,
    kfd,
    mi250,
    mi300x,
    mutate,
    put,
    samples,
    series,
)

from trackwalker.node.collectors.gpu_amd import BLOCKS, METRICS, RAS_METRICS, AmdGpuCollector, AmdRasCollector
from trackwalker.node.sensors import gpu_metrics
from trackwalker.node.sensors.sysfs import SysFile

PCIE = {
    "hw_gpu_pcie_link_width": 16, "hw_gpu_pcie_link_width_max": 16,
    "hw_gpu_pcie_link_generation": 5, "hw_gpu_pcie_link_generation_max": 5,
    "hw_gpu_pcie_correctable_total": 3, "hw_gpu_pcie_nonfatal_total": 1, "hw_gpu_pcie_fatal_total": 0,
}  # fmt: skip


def read(root: Path) -> dict[Sample, float]:
    """A first scrape of both collectors."""
    return samples([*AmdGpuCollector("n1", str(root)).collect(), *AmdRasCollector("n1", str(root)).collect()])


def expected_mi300x(g: int) -> dict[Sample, float]:
    gpu = {"gpu": str(g)}
    plain = {
        "hw_gpu_temperature_celsius": 51 + g, "hw_gpu_memory_temperature_celsius": 44 + g,
        "hw_gpu_power_watts": 142 + g, "hw_gpu_power_limit_watts": 750 + g, "hw_gpu_energy_joules_total": 1000 + g,
        "hw_gpu_vram_used_bytes": 297_000_000 + g, "hw_gpu_vram_total_bytes": 206_141_652_992 + g,
        "hw_gpu_utilization_percent": 90 + g, "hw_gpu_memory_utilization_percent": 40 + g, **PCIE,
        "hw_gpu_pcie_recovery_total": 1 + g, "hw_gpu_pcie_replay_total": 2 + g,
        "hw_gpu_pcie_replay_rollover_total": 3 + g, "hw_gpu_pcie_nak_sent_total": 4 + g,
        "hw_gpu_pcie_nak_received_total": 5 + g, "hw_gpu_xgmi_link_width": 16 + g,
        "hw_gpu_xgmi_link_speed_gbps": 32 + g,
    }  # fmt: skip
    out = {series(name, **gpu): float(value) for name, value in plain.items()}
    out[series("hw_gpu_up", **gpu, uuid=f"9d4f3a{g:010x}")] = 1
    out[series("hw_gpu_info", **gpu, pci=f"0000:{5 + 16 * g:02x}:00.0", uuid=f"9d4f3a{g:010x}",
               serial=f"69234000{g:04d}", name="AMD Instinct MI300X OAM", vbios="113-M3000100-102")] = 1  # fmt: skip
    for sensor, value in {"junction": 51, "mem": 44, "vrsoc": 61}.items():
        out[series("hw_gpu_sensor_celsius", **gpu, sensor=sensor)] = value + g
    for kind, value in {"sclk": 132, "mclk": 900}.items():
        out[series("hw_gpu_clock_mhz", **gpu, type=kind)] = value + g
    for link in range(8):
        out[series("hw_gpu_xgmi_read_bytes_total", **gpu, link=str(link))] = 1024 * (100 * link + g)
        out[series("hw_gpu_xgmi_write_bytes_total", **gpu, link=str(link))] = 1024 * (1000 * link + g)
        out[series("hw_gpu_xgmi_link_up", **gpu, link=str(link))] = float(link != 7)
    for reason in ("power", "thermal", "hbm_thermal", "vr_thermal", "prochot"):
        out[series("hw_gpu_throttle_seconds_total", **gpu, reason=reason)] = 0
    for n, block in enumerate(BLOCKS):
        for kind, start in {"ue": 0, "ce": 10, "de": 20}.items():
            out[series(f"hw_gpu_ras_{block}_{kind}_total", **gpu)] = start + n + g
    for state, count in {"retired": g, "pending": 0, "failed": 0}.items():
        out[series("hw_gpu_bad_pages", **gpu, state=state)] = count
    return out


def test_an_mi300x_node_gives_exactly_these_samples(tmp_path: Path) -> None:
    mi300x(tmp_path)
    expected = {series("hw_gpu_user_processes"): 8.0}
    for g in range(8):
        expected |= expected_mi300x(g)
    assert read(tmp_path) == expected


def test_an_mi250_node_gives_exactly_these_samples(tmp_path: Path) -> None:
    mi250(tmp_path)
    expected: dict[Sample, float] = {series("hw_gpu_user_processes"): 0}
    for g in range(2):
        gpu = {"gpu": str(g)}
        plain = {
            "hw_gpu_temperature_celsius": 40 + g, "hw_gpu_memory_temperature_celsius": 37 + g,
            "hw_gpu_power_watts": 92 + g, "hw_gpu_power_limit_watts": 560 + g, "hw_gpu_vram_used_bytes": 11_000_000 + g,
            "hw_gpu_vram_total_bytes": 68_702_699_520 + g, "hw_gpu_utilization_percent": 31 + g,
            "hw_gpu_memory_utilization_percent": 21 + g, "hw_gpu_pcie_replay_total": 4 + g, **PCIE,
        }  # fmt: skip
        expected |= {series(name, **gpu): value for name, value in plain.items()}
        expected[series("hw_gpu_up", **gpu, uuid=f"7c1f{g:012x}")] = 1
        expected[series("hw_gpu_info", **gpu, pci=f"0000:{0x31 + g:02x}:00.0", uuid=f"7c1f{g:012x}", serial="",
                        name="0x1002:0x740c", vbios="")] = 1  # fmt: skip
        for sensor, value in {"edge": 35, "junction": 40, "mem": 37, "vrsoc": 33}.items():
            expected[series("hw_gpu_sensor_celsius", **gpu, sensor=sensor)] = value + g
        for kind, value in {"sclk": 800, "mclk": 1600}.items():
            expected[series("hw_gpu_clock_mhz", **gpu, type=kind)] = value + g
        for reason in ("power", "current", "thermal", "hbm_thermal", "vr_thermal", "prochot"):
            expected[series("hw_gpu_throttle_active", **gpu, reason=reason)] = float(reason == "power")
        for n, block in enumerate(BLOCKS):
            for kind, start in {"ue": 0, "ce": 10}.items():
                expected[series(f"hw_gpu_ras_{block}_{kind}_total", **gpu)] = start + n + g
        for state, count in {"retired": 1, "pending": 1, "failed": 0}.items():
            expected[series("hw_gpu_bad_pages", **gpu, state=state)] = count
    assert read(tmp_path) == expected


def other_table(g: int) -> bytes:
    """A later table: everything has moved, 5 s have passed, and the power limit held for 4 of them."""
    return blob(
        8, g, hotspot=90, mem=80, vrsoc=99, gfx=11, umc=12, energy=2**16 * 5000, clock_ns=10**12 + 5 * 10**9,
        cycles=1_005_000, ppt=1000 + g + 4000, socket=2000 + 1000, prochot=500, vr=50, hbm=5, recovery=50, replay=51,
        rollover=52, nak_sent=53, nak_received=54, xgmi_width=8, xgmi_speed=16, xgmi_read=[9999] * 8,
        xgmi_write=[8888] * 8, xgmi_up=[2] * 7 + [1],
    )  # fmt: skip


@pytest.mark.parametrize("model", ["mi300x", "mi250"])
def test_every_metric_follows_its_source(tmp_path: Path, model: str) -> None:
    cards = mi300x(tmp_path, 2) if model == "mi300x" else mi250(tmp_path, 2)
    collectors = (AmdGpuCollector("n1", str(tmp_path)), AmdRasCollector("n1", str(tmp_path)))
    before = samples([f for c in collectors for f in c.collect()])
    mutate(tmp_path)
    kfd(tmp_path, 11)
    every_bit = sum(1 << bit for bit in (17, 36, 34, 39, 47))  # the power bit goes, one of each other limit comes
    for g, card in enumerate(cards):
        table = other_table(g) if model == "mi300x" else blob_1_3(g, gfx=77, umc=78, vrsoc=79, bits=every_bit)
        (card / "gpu_metrics").write_bytes(table)
    after = samples([f for c in collectors for f in c.collect()])
    assert before.keys() <= after.keys()
    constant = {key for key, value in before.items() if after[key] == value}
    assert {name for name, _ in constant} == {"hw_gpu_up", "hw_gpu_info"}
    if model == "mi300x":
        seconds = {r: after[series("hw_gpu_throttle_seconds_total", gpu="0", reason=r)] for r in ("power", "thermal")}
        assert seconds == pytest.approx({"power": 4.0, "thermal": 1.0})
        assert after[series("hw_gpu_throttle_active", gpu="0", reason="vr_thermal")] == 1


def test_every_declared_metric_is_given_by_some_card(tmp_path: Path) -> None:
    mi300x(tmp_path / "a", 1)
    mi250(tmp_path / "b", 1)
    given = {name for name, _ in (read(tmp_path / "a") | read(tmp_path / "b"))}
    assert given == {*METRICS, *RAS_METRICS}


def test_a_limit_that_no_longer_holds_is_said_to_be_off(tmp_path: Path) -> None:
    (card,) = mi300x(tmp_path, 1)
    collector = AmdGpuCollector("n1", str(tmp_path))
    for clock, cycles, ppt in ((0, 0, 0), (5, 5000, 5000), (10, 10_000, 5000)):
        table = blob(8, 0, clock_ns=clock * 10**9 + 1, cycles=cycles + 10**6, ppt=ppt + 7)
        (card / "gpu_metrics").write_bytes(table)
        out = samples(collector.collect())
    assert out[series("hw_gpu_throttle_active", gpu="0", reason="power")] == 0
    assert out[series("hw_gpu_throttle_seconds_total", gpu="0", reason="power")] == pytest.approx(5)


def test_residencies_wrap_and_a_reset_adds_no_more_than_the_time_between(tmp_path: Path) -> None:
    (card,) = mi300x(tmp_path, 1)
    collector = AmdGpuCollector("n1", str(tmp_path))
    total = series("hw_gpu_throttle_seconds_total", gpu="0", reason="power")
    steps = [(10, 2**32 - 1000, 2**32 - 500, 0.0), (15, 4000, 1500, 2.0), (20, 20, 10, 2.0 + 5)]
    for clock, cycles, ppt, most in steps:
        (card / "gpu_metrics").write_bytes(blob(8, 0, clock_ns=clock * 10**9, cycles=cycles, ppt=ppt))
        assert samples(collector.collect())[total] <= most + 1e-9
    assert samples(collector.collect())[total] >= 2.0 - 1e-9


def test_firmware_that_copies_the_cycle_counter_reports_no_throttling(tmp_path: Path) -> None:
    # As an MI300X with the ROCm 6.3 driver does at idle: three residencies equal the counter itself.
    table = blob(6, 0, cycles=10_657_785, ppt=10_657_785, socket=10_657_785, hbm=10_657_785)
    mi300x(tmp_path, 1, lambda g: table)
    reasons = {dict(labels)["reason"] for name, labels in read(tmp_path) if name == "hw_gpu_throttle_seconds_total"}
    assert reasons == {"vr_thermal", "prochot"}


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"\x78\x00\x01",
        blob(8, 0)[:-1],  # shorter than it says
        blob(6, 0)[:2] + b"\x01\x07" + blob(6, 0)[4:],  # a size that this revision never had
        blob(8, 0)[:3] + b"\x0a" + blob(8, 0)[4:],  # a revision of the future
        blob(8, 0)[:2] + b"\x03" + blob(8, 0)[3:],  # an APU's format
        blob_1_9([(0, "H", [42])])[:-1],
        blob_1_9([(0, "H", [42])], size=12),
        b"\x10\x00\x01\x09\x02\x00\x00\x00" + b"\x01\x00\xf0\x00" + b"\x00" * 4,  # no such type
        b"\xff" * 120,
        b"not a table at all" * 10,
    ],
)
def test_an_unknown_or_damaged_table_is_skipped_not_guessed(tmp_path: Path, table: bytes) -> None:
    assert gpu_metrics.parse(table) == {}
    mi300x(tmp_path, 1, lambda g: table)
    out = read(tmp_path)
    assert out[series("hw_gpu_power_watts", gpu="0")] == 142
    assert out[series("hw_gpu_utilization_percent", gpu="0")] == 0  # gpu_busy_percent stands in
    assert not any(name.startswith(("hw_gpu_xgmi", "hw_gpu_throttle", "hw_gpu_energy")) for name, _ in out)


def break_it(path: Path, how: str) -> None:
    """Make a file unreadable in one of the ways that files are."""
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "eio":
        path.symlink_to("/proc/self/mem")  # reading its first page is an input/output error
    elif how != "gone":
        path.write_text({"empty": "", "garbage": "n/a\n", "reset": "Query currently inaccessible\n"}[how])


SOURCES: dict[str, set[str]] = {
    "hwmon/hwmon9/temp2_input": {"hw_gpu_temperature_celsius", "hw_gpu_sensor_celsius"},
    "hwmon/hwmon9/temp3_input": {"hw_gpu_memory_temperature_celsius", "hw_gpu_sensor_celsius"},
    "hwmon/hwmon9/power1_input": {"hw_gpu_power_watts"},
    "hwmon/hwmon9/power1_cap": {"hw_gpu_power_limit_watts"},
    "hwmon/hwmon9/freq1_input": {"hw_gpu_clock_mhz"},
    "mem_info_vram_used": {"hw_gpu_vram_used_bytes"},
    "current_link_width": {"hw_gpu_pcie_link_width"},
    "max_link_speed": {"hw_gpu_pcie_link_generation_max"},
    "aer_dev_nonfatal": {"hw_gpu_pcie_nonfatal_total"},
    "ras/aca_umc": {"hw_gpu_ras_umc_ue_total", "hw_gpu_ras_umc_ce_total", "hw_gpu_ras_umc_de_total"},
}


@pytest.mark.parametrize("how", ["gone", "folder", "eio", "empty", "garbage", "reset"])
@pytest.mark.parametrize("file", SOURCES)
def test_a_bad_file_costs_its_own_samples_only(tmp_path: Path, file: str, how: str) -> None:
    card = mi300x(tmp_path, 2)[0]
    whole = read(tmp_path)
    break_it(card / file, how)
    got = read(tmp_path)
    lost = {key for key in whole if key not in got}
    if how == "gone" and file.endswith("temp2_input"):  # without a junction sensor, the HBM's is the GPU's temperature
        assert got.pop(series("hw_gpu_temperature_celsius", gpu="0")) == 44
        lost.add(series("hw_gpu_temperature_celsius", gpu="0"))
    assert {name for name, _ in lost} == SOURCES[file]
    assert {dict(labels)["gpu"] for _, labels in lost} == {"0"}
    assert {key: whole[key] for key in got} == got


@pytest.mark.parametrize("how", ["folder", "eio", "garbage"])
def test_bad_pages_that_cannot_be_read_are_not_none(tmp_path: Path, how: str) -> None:
    card = mi300x(tmp_path, 1)[0]
    break_it(card / "ras" / "gpu_vram_bad_pages", how)
    assert not any(name == "hw_gpu_bad_pages" for name, _ in read(tmp_path))


def failing(monkeypatch: pytest.MonkeyPatch, number: int, bad: Callable[[], bool]) -> None:
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        if bad():
            raise OSError(number, os.strerror(number))
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)


def test_a_counter_that_fails_once_is_left_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mi300x(tmp_path, 1)
    collector = AmdRasCollector("n1", str(tmp_path))
    whole = samples(collector.collect())
    broken = True
    failing(monkeypatch, errno.EIO, lambda: broken)
    assert {name for name, _ in samples(collector.collect())} == {"hw_gpu_bad_pages"}
    broken = False
    assert samples(collector.collect()) == whole


def test_an_attribute_behind_a_device_bound_anew_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "power1_input"
    path.write_text("1\n")
    file = SysFile(str(path))
    assert file.number() == 1
    put(tmp_path, {"new": "2"})
    (tmp_path / "new").rename(path)  # another inode under the same name, as after a rebind
    calls = iter([True, False])
    failing(monkeypatch, errno.ENODEV, lambda: next(calls, False))
    assert file.number() == 2


def test_with_no_descriptors_to_spare_files_are_opened_for_each_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mi300x(tmp_path, 1)
    whole = read(tmp_path)
    monkeypatch.setattr(SysFile, "room", 0)
    before = len(os.listdir("/proc/self/fd"))
    collector = AmdGpuCollector("n1", str(tmp_path))
    got = samples(collector.collect())
    assert len(os.listdir("/proc/self/fd")) == before
    assert got == {key: value for key, value in whole.items() if key[0] in METRICS}


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    mi300x(tmp_path, 2)
    before, room = len(os.listdir("/proc/self/fd")), SysFile.room
    collector = AmdGpuCollector("n1", str(tmp_path))
    collector.collect()
    assert len(os.listdir("/proc/self/fd")) > before
    del collector
    assert (len(os.listdir("/proc/self/fd")), SysFile.room) == (before, room)


def test_a_lost_gpu_is_down_and_renames_no_other(tmp_path: Path) -> None:
    mi300x(tmp_path, 3)
    collector = AmdGpuCollector("n1", str(tmp_path))
    collector.collect()
    (tmp_path / "class/hwmon/hwmon8").unlink()  # GPU 1
    got = samples(collector.collect())
    assert [got[series("hw_gpu_up", gpu=str(g), uuid=f"9d4f3a{g:010x}")] for g in range(3)] == [1, 0, 1]
    assert series("hw_gpu_power_watts", gpu="1") not in got
    assert got[series("hw_gpu_power_watts", gpu="2")] == 144


def test_a_gpu_whose_sensors_all_fail_is_down(tmp_path: Path) -> None:
    card = mi300x(tmp_path, 1)[0]
    for file in ("hwmon/hwmon9/temp2_input", "hwmon/hwmon9/temp3_input", "hwmon/hwmon9/power1_input", "gpu_metrics"):
        break_it(card / file, "eio")
    assert read(tmp_path)[series("hw_gpu_up", gpu="0", uuid=f"9d4f3a{0:010x}")] == 0


def test_a_card_that_fell_off_the_bus_has_no_link(tmp_path: Path) -> None:
    card = mi300x(tmp_path, 1)[0]
    put(card, {"current_link_width": 63, "current_link_speed": "Unknown"})
    got = read(tmp_path)
    assert series("hw_gpu_pcie_link_width", gpu="0") not in got
    assert series("hw_gpu_pcie_link_generation", gpu="0") not in got
    assert got[series("hw_gpu_pcie_link_width_max", gpu="0")] == 16


def test_a_sensor_that_reads_zero_gives_way_to_the_next(tmp_path: Path) -> None:
    card = mi250(tmp_path, 1)[0]
    put(card / "hwmon/hwmon1", {"temp2_input": 0, "temp3_input": 0})
    assert read(tmp_path)[series("hw_gpu_temperature_celsius", gpu="0")] == 35


def test_without_amd_gpus_there_is_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == {}
    put(tmp_path / "class/hwmon/hwmon0", {"name": "nvme"})
    assert read(tmp_path) == {}
