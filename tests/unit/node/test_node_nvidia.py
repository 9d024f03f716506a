"""The NVIDIA collector against a stand-in driver with the real ABI: values, layouts, what there is to collect."""
# ruff: noqa: F401, F811 - fixtures are imported, and then asked for by name

from __future__ import annotations

import ast
import ctypes
import subprocess
import threading
from pathlib import Path

import pytest
from nvml_driver import (
    GIB,
    NOT_SUPPORTED,
    UNKNOWN,
    Driver,
    Opened,
    built,
    compile_mock,
    driver,
    eventually,
    flat,
    of_gpu,
    opened,
)

from trackwalker.node.collectors.gpu_nvidia import NvidiaCollector
from trackwalker.node.exporter.exposition import render
from trackwalker.node.exporter.server import Exporter
from trackwalker.node.sensors import nvml
from trackwalker.node.sensors.nvml_gpu import METRICS
from trackwalker.observe.prometheus import find_promtool

pytestmark = pytest.mark.starts_processes

ROOT = Path(__file__).parents[3]


def test_layouts_are_those_of_nvml_h(driver: Driver) -> None:
    fields = [
        nvml.MemoryV2.total, nvml.MemoryV2.used, nvml.FieldValue.type, nvml.FieldValue.value, nvml.PciInfo.domain,
        nvml.PciInfo.bus_id, nvml.ProcessInfo.gpu_instance, nvml.EventData.data, nvml.EventData.gpu_instance,
        nvml.ViolationTime.violation,
    ]  # fmt: skip
    assert [f.offset for f in fields] == [driver.lib.mock_layout(i) for i in range(len(fields))]
    assert driver.lib.mock_layout(len(fields)) == -1
    sizes = (
        nvml.Memory,
        nvml.MemoryV2,
        nvml.FieldValue,
        nvml.PciInfo,
        nvml.ProcessInfo,
        nvml.EventData,
        nvml.ProcessUtilization,
    )
    assert [ctypes.sizeof(s) for s in sizes] == [24, 40, 40, 68, 24, 32, 32]


def test_every_value_has_the_right_unit_and_place(driver: Driver, opened: Opened, tmp_path: Path) -> None:
    driver.value("power", 701_250, gpu=1)
    driver.value("processes", 3, gpu=1)  # 1000, 1001 on GPU 0 and 1000, 1001, 1002 on GPU 1 are three processes
    driver.value("link.2", 0, gpu=1)
    aer = tmp_path / "bus/pci/devices/0000:3a:00.0"
    aer.mkdir(parents=True)
    (aer / "aer_dev_correctable").write_text("RxErr 1\nBadTLP 6\nTOTAL_ERR_COR 7\n")
    (aer / "aer_dev_fatal").write_text("Undefined 0\nTOTAL_ERR_FATAL 0\n")
    got = flat(opened().collect())
    gpu0 = {
        "hw_gpu_up{gpu=0,uuid=GPU-0000-0}": 1,
        "hw_gpu_stalled{gpu=0,uuid=GPU-0000-0}": 0,
        'hw_gpu_info{gpu=0,uuid=GPU-0000-0,serial=165400000,name=NVIDIA "H200",vbios=96.00.00,pci=0000:3a:00.0,'
        "driver=580.1.2}": 1,
        "hw_gpu_temperature_celsius{gpu=0}": 40,
        "hw_gpu_memory_temperature_celsius{gpu=0}": 55,
        "hw_gpu_power_watts{gpu=0}": 75.123,
        "hw_gpu_power_limit_watts{gpu=0}": 700,
        "hw_gpu_power_limit_default_watts{gpu=0}": 700,
        "hw_gpu_temperature_limit_celsius{gpu=0,limit=slowdown}": 88,
        "hw_gpu_energy_joules_total{gpu=0}": 5_000_000_000.123,
        "hw_gpu_clock_mhz{gpu=0,type=sclk}": 1980,
        "hw_gpu_clock_mhz{gpu=0,type=mclk}": 3201,
        "hw_gpu_clock_max_mhz{gpu=0,type=sclk}": 1981,
        "hw_gpu_clock_max_mhz{gpu=0,type=mclk}": 3202,
        "hw_gpu_utilization_percent{gpu=0}": 97,
        "hw_gpu_memory_utilization_percent{gpu=0}": 31,
        "hw_gpu_vram_used_bytes{gpu=0}": 50 * GIB,
        "hw_gpu_vram_total_bytes{gpu=0}": 150 * GIB,
        "hw_gpu_ras_umc_ue_total{gpu=0}": 100_020,  # type 1, volatile 0, location 2
        "hw_gpu_ras_umc_ce_total{gpu=0}": 20,
        "hw_gpu_ras_gfx_ue_total{gpu=0}": 100_070,
        "hw_gpu_ras_gfx_ce_total{gpu=0}": 70,
        "hw_gpu_ecc_uncorrectable_total{gpu=0}": 2**32 + 11,  # all 64 bits are read
        "hw_gpu_ecc_correctable_total{gpu=0}": 2**32 + 1,
        "hw_gpu_row_remap_correctable_total{gpu=0}": 1,
        "hw_gpu_row_remap_uncorrectable_total{gpu=0}": 2,
        "hw_gpu_row_remap_pending{gpu=0}": 1,
        "hw_gpu_row_remap_failed{gpu=0}": 0,
        "hw_gpu_pcie_link_width{gpu=0}": 8,
        "hw_gpu_pcie_link_width_max{gpu=0}": 16,
        "hw_gpu_pcie_link_generation{gpu=0}": 4,
        "hw_gpu_pcie_link_generation_max{gpu=0}": 5,
        "hw_gpu_pcie_replay_total{gpu=0}": 3,
        "hw_gpu_pcie_correctable_total{gpu=0}": 7,
        "hw_gpu_pcie_fatal_total{gpu=0}": 0,
        "hw_gpu_processes{gpu=0,owner=unknown}": 2,  # nobody said which processes are the job's
        "hw_gpu_process_memory_bytes{gpu=0,owner=unknown}": 2 << 20,
        "hw_gpu_process_utilization_percent{gpu=0,owner=unknown}": 10 + 11,
    }
    active = {"sw_power_cap", "hw_thermal"}  # 0x44
    reasons = ["gpu_idle", "applications_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal",
               "hw_thermal", "hw_power_brake", "display"]  # fmt: skip
    gpu0 |= {f"hw_gpu_throttle_active{{gpu=0,reason={r}}}": int(r in active) for r in reasons}
    policies = ["power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability"]
    for number, reason in enumerate(policies):
        gpu0[f"hw_gpu_throttle_seconds_total{{gpu=0,reason={reason}}}"] = 1.5 + number * 1e-9
    for link in range(4):
        gpu0[f"hw_gpu_nvlink_up{{gpu=0,link={link}}}"] = 1
        for number, kind in enumerate(("replay", "recovery", "crc_flit", "crc_data", "ecc_data")):
            gpu0[f"hw_gpu_nvlink_errors_total{{gpu=0,link={link},kind={kind}}}"] = 100 * link + number
    seen = {k: v for k, v in of_gpu(got, 0).items() if "xid" not in k}
    assert seen == gpu0
    assert got["hw_gpu_power_watts{gpu=1}"] == 701.25
    assert got["hw_gpu_nvlink_up{gpu=1,link=2}"] == 0
    assert got["hw_gpu_user_processes{}"] == 3


def test_a_stranger_on_the_gpu_is_told_from_the_job(driver: Driver, tmp_path: Path) -> None:
    members: set[int] = set()
    collector = NvidiaCollector("n1", str(driver.path), timeout=5.0, sysfs=str(tmp_path), members=lambda: members)
    assert collector.available()
    driver.value("processes", 1, gpu=1)
    first = flat(collector.collect())
    assert first["hw_gpu_processes{gpu=0,owner=unknown}"] == 2  # none of these numbers is ours: another namespace's?
    members |= {1000, 5000}
    driver.value("pid.1", 5001, gpu=0)
    driver.value("sm.1", 60, gpu=0)
    got = flat(collector.collect())
    collector.close()
    assert got["hw_gpu_processes{gpu=0,owner=job}"] == got["hw_gpu_processes{gpu=0,owner=other}"] == 1
    assert got["hw_gpu_process_memory_bytes{gpu=0,owner=other}"] == 1 << 20
    assert got["hw_gpu_process_utilization_percent{gpu=0,owner=job}"] == 10
    assert got["hw_gpu_process_utilization_percent{gpu=0,owner=other}"] == 60
    assert got["hw_gpu_processes{gpu=1,owner=other}"] == 0


def test_slices_of_a_gpu_are_told_with_it(driver: Driver, opened: Opened) -> None:
    driver.value("slices", 2, gpu=1)
    told = [key for key in flat(opened().collect()) if key.startswith("hw_gpu_info")]
    assert "mig=MIG-1-0,MIG-1-1" in told[1]
    assert "mig" not in told[0]


def test_processes_of_a_gpu_in_slices_are_told_of_each_slice(driver: Driver) -> None:
    behind = 16 + 4  # where the stand-in keeps the slices of GPU 1
    driver.value("slices", 2, gpu=1)
    driver.value("processes", 1, gpu=behind)
    driver.value("pid.0", 700, gpu=behind)
    collector = NvidiaCollector("n1", str(driver.path), members=lambda: {1000, 700})
    got = {k: v for k, v in flat(collector.collect()).items() if k.startswith("hw_gpu_processes{")}
    collector.close()
    assert got == {
        "hw_gpu_processes{gpu=0,owner=job}": 1, "hw_gpu_processes{gpu=0,owner=other}": 1,
        "hw_gpu_processes{gpu=1:0,owner=job}": 1, "hw_gpu_processes{gpu=1:0,owner=other}": 0,
        "hw_gpu_processes{gpu=1:1,owner=job}": 1, "hw_gpu_processes{gpu=1:1,owner=other}": 1,
    }  # fmt: skip


def test_memory_that_the_driver_does_not_know_is_no_sample(driver: Driver, opened: Opened) -> None:
    driver.value("processmemory", nvml.NO_VALUE)
    driver.fail("nvmlDeviceGetProcessUtilization", NOT_SUPPORTED)
    got = flat(opened().collect())
    assert got["hw_gpu_processes{gpu=0,owner=unknown}"] == 2
    assert not any("process_memory" in k or "process_utilization" in k for k in got)


@pytest.mark.parametrize("kind", range(7))
def test_field_values_of_every_type(driver: Driver, kind: int) -> None:
    driver.value("fieldtype", kind)
    driver.value("field.82", 61)
    library = nvml.load(str(driver.path))
    assert library is not None
    library.init()
    assert library.fields(library.handle(0), nvml.FIELD_MEMORY_TEMPERATURE) == {82: 61}


def test_a_sensor_that_answers_nothing_gives_no_sample(driver: Driver, opened: Opened) -> None:
    driver.value("field.82", 0, gpu=0)
    driver.value("supported", 0x0FF, gpu=0)  # no display clock
    driver.value("fieldtype", 99, gpu=1)  # a type this nvml.h does not have
    got = flat(opened().collect())
    assert not any("memory_temperature" in k for k in got)
    assert "hw_gpu_throttle_active{gpu=0,reason=display}" not in got
    assert got["hw_gpu_throttle_active{gpu=1,reason=display}"] == 0
    assert got["hw_gpu_read_errors_total{gpu=1,error=unknown}"] == 1


def test_more_processes_than_there_was_room_for(driver: Driver, opened: Opened) -> None:
    driver.value("processes", 300, gpu=0)
    assert flat(opened().collect())["hw_gpu_user_processes{}"] == 300


def test_an_older_driver_answers_by_the_older_names(tmp_path: Path) -> None:
    driver = Driver(compile_mock(tmp_path / "old.so", "-DOLD_DRIVER"), 1)
    collector = NvidiaCollector("n1", library=str(driver.path), sysfs=str(tmp_path))
    for _ in range(3):
        got = flat(collector.collect())
    collector.close()
    assert got["hw_gpu_vram_used_bytes{gpu=0}"] == 51 * GIB  # with what the driver reserves: it cannot tell them apart
    assert got["hw_gpu_throttle_active{gpu=0,reason=sw_power_cap}"] == 1
    assert driver.calls("nvmlDeviceGetSupportedClocksThrottleReasons", 0) == 1


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_without_a_library_there_is_nothing_to_collect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    path = tmp_path / "none.so"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(nvml.ENV, str(path))
    collector = NvidiaCollector("n1")
    assert not collector.available()
    assert collector.reason == "no NVML library"
    assert collector.collect() == []
    assert 'hw_collector_up{host="n1",collector="gpu_nvidia"} 1' in Exporter("n1", [collector]).text()
    collector.close()


def test_the_library_is_named_by_the_environment(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nvml.ENV, str(driver.path))
    collector = NvidiaCollector("n1")
    assert collector.available()
    collector.close()


@pytest.mark.parametrize(
    ("call", "gpus", "reason"), [("nvmlInit_v2", 2, "nvmlInit_v2: driver_not_loaded"), ("", 0, "no GPU")]
)
def test_without_a_driver_or_gpus_there_is_nothing_to_collect(
    driver: Driver, call: str, gpus: int, reason: str
) -> None:
    driver.lib.mock_gpus(gpus)
    driver.fail(call, 9)
    collector = NvidiaCollector("n1", library=str(driver.path))
    assert not collector.available()
    assert collector.reason == reason
    assert collector.collect() == []
    collector.close()


def test_two_scrapes_at_once_and_then_closing(driver: Driver, opened: Opened) -> None:
    collector = opened()
    whole = len(flat(collector.collect()))
    sizes: list[int] = []
    threads = [threading.Thread(target=lambda: sizes.append(len(flat(collector.collect())))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [whole] * 8
    collector.close()
    assert collector.collect() == []
    assert driver.calls("nvmlEventSetFree") == 1
    assert not [t for t in threading.enumerate() if t.name in ("nvml-0", "nvml-1", "nvml-xid")]


def test_the_text_is_valid_exposition(driver: Driver, opened: Opened, prometheus: Path) -> None:
    driver.fail("nvmlDeviceGetPowerUsage", UNKNOWN, gpu=1)
    collector = opened()
    driver.event(1, 79)
    eventually(lambda: any("xid_total" in k for k in flat(collector.collect())))
    families = collector.collect()
    for family in families:
        kind, help = METRICS[family.name]
        assert (family.kind, family.help) == (kind, help)
        assert (family.name.endswith("_total")) == (kind == "counter")
    promtool = find_promtool(prometheus)
    if promtool is None:
        pytest.skip("this Prometheus came without promtool")
    text = render(families)
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert "error while linting" not in done.stderr, done.stderr
    # Megahertz and percent are upstream's names; everything else follows the conventions.
    complaints = [line for line in done.stderr.splitlines() if "_mhz" not in line and "_percent" not in line]
    assert complaints == [], done.stderr


def test_the_node_files_are_python_39() -> None:
    for name in ("sensors/nvml.py", "sensors/nvml_gpu.py", "collectors/gpu_nvidia.py"):
        ast.parse((ROOT / "src/trackwalker/node" / name).read_text(), feature_version=(3, 9))
