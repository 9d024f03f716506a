"""The NVIDIA collector when the driver fails, hangs, loses a GPU or reports an XID."""
# ruff: noqa: F401, F811 - fixtures are imported, and then asked for by name

from __future__ import annotations

import time

import pytest
from nvml_driver import (
    HANGS,
    LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    Driver,
    Opened,
    built,
    driver,
    eventually,
    flat,
    of_gpu,
    opened,
)

from trackwalker.node.collectors.gpu_nvidia import NvidiaCollector
from trackwalker.node.sensors.nvml_gpu import SLOW

pytestmark = pytest.mark.starts_processes


def test_a_failed_read_leaves_out_its_sample_and_is_counted(driver: Driver, opened: Opened) -> None:
    collector = opened()
    whole = set(flat(collector.collect()))
    for call in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryErrorCounter.1.0.2", "field.82"):
        driver.fail(call, UNKNOWN, gpu=1)
    driver.fail("nvmlDeviceGetUtilizationRates", NO_PERMISSION, gpu=1)
    got = flat(collector.collect())
    gone = {"power_watts", "ras_umc_ue_total", "memory_temperature_celsius", "utilization_percent",
            "memory_utilization_percent"}  # fmt: skip
    assert whole - set(got) == {f"hw_gpu_{g}{{gpu=1}}" for g in gone}
    assert got["hw_gpu_read_errors_total{gpu=1,error=unknown}"] == 3
    assert got["hw_gpu_read_errors_total{gpu=1,error=no_permission}"] == 1
    assert got["hw_gpu_up{gpu=1,uuid=GPU-0000-1}"] == 1
    for call in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryErrorCounter.1.0.2", "field.82"):
        driver.fail(call, 0, gpu=1)
    assert flat(collector.collect())["hw_gpu_power_watts{gpu=1}"] == 75.123  # a failure is tried again


def test_what_is_not_supported_is_asked_once_for_each_gpu(driver: Driver, opened: Opened) -> None:
    driver.fail("nvmlDeviceGetRemappedRows", NOT_SUPPORTED, gpu=1)
    driver.fail("field.82", NOT_SUPPORTED, gpu=1)
    collector = opened()
    for _ in range(5):
        got = flat(collector.collect())
    assert driver.calls("nvmlDeviceGetRemappedRows", 1) == 1
    assert driver.calls("nvmlDeviceGetRemappedRows", 0) == 5
    assert "hw_gpu_row_remap_pending{gpu=0}" in got
    assert "hw_gpu_row_remap_pending{gpu=1}" not in got
    assert driver.calls("field.82", 1) == 1
    assert driver.calls("field.82", 0) == 5
    assert "hw_gpu_throttle_seconds_total{gpu=1,reason=power}" in got  # the other fields go on
    assert driver.calls("nvmlDeviceGetNvLinkState.4", 0) == 1  # the card has links 0 to 3
    assert driver.calls("nvmlDeviceGetMaxClockInfo.1", 0) == 1  # what never changes is read once
    assert driver.calls("nvmlDeviceGetHandleByIndex_v2", 0) <= 2  # the reader and the XID watch
    assert not any("read_errors" in k for k in got)


def test_a_counter_that_costs_milliseconds_is_read_every_few_seconds(
    driver: Driver, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = opened()
    slow = ["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPcieReplayCounter", "field.74",
            "nvmlDeviceGetNvLinkState.0", "nvmlDeviceGetNvLinkErrorCounter.0.0"]  # fmt: skip
    for _ in range(3):
        assert flat(collector.collect())["hw_gpu_energy_joules_total{gpu=0}"] == 5_000_000_000.123
    assert [driver.calls(call, 0) for call in slow] == [1] * len(slow)
    assert driver.calls("nvmlDeviceGetPowerUsage", 0) == 3
    driver.value("energy", 6_000_000_000_000)
    later = time.monotonic() + SLOW
    monkeypatch.setattr("trackwalker.node.sensors.nvml_gpu.time.monotonic", lambda: later)
    driver.fail("nvmlDeviceGetPcieReplayCounter", UNKNOWN, gpu=0)
    got = flat(collector.collect())
    assert got["hw_gpu_energy_joules_total{gpu=0}"] == 6_000_000_000
    assert "hw_gpu_pcie_replay_total{gpu=0}" not in got  # a failed read never falls back to the old value
    assert [driver.calls(call, 0) for call in slow] == [2] * len(slow)


@pytest.mark.parametrize("call", ["field.78", "nvmlDeviceGetFieldValues"])
def test_throttle_time_without_field_values_comes_by_its_own_call(driver: Driver, opened: Opened, call: str) -> None:
    driver.fail(call, NOT_SUPPORTED, gpu=0)
    driver.fail("nvmlDeviceGetViolationStatus.5", NOT_SUPPORTED, gpu=0)
    got = flat(opened().collect())
    assert got["hw_gpu_throttle_seconds_total{gpu=0,reason=low_utilization}"] == 1.5 + 4e-9
    assert driver.calls("nvmlDeviceGetViolationStatus.4", 0) == 1
    assert driver.calls("nvmlDeviceGetViolationStatus.4", 1) == 0
    everything = call == "nvmlDeviceGetFieldValues"
    assert ("hw_gpu_throttle_seconds_total{gpu=0,reason=reliability}" in got) != everything
    assert got["hw_gpu_throttle_seconds_total{gpu=0,reason=power}"] == 1.5


def test_a_gpu_lost_in_the_middle_of_its_first_reading(driver: Driver, opened: Opened) -> None:
    driver.fail("nvmlDeviceGetPciInfo_v3", LOST, gpu=0)
    collector = opened()
    assert flat(collector.collect())["hw_gpu_up{gpu=0,uuid=}"] == 0
    driver.fail("nvmlDeviceGetPciInfo_v3", 0, gpu=0)
    got = flat(collector.collect())
    assert got["hw_gpu_up{gpu=0,uuid=GPU-0000-0}"] == 1
    assert of_gpu(got, 0).keys() >= {"hw_gpu_power_watts{gpu=0}", "hw_gpu_temperature_celsius{gpu=0}"}


def test_a_lost_gpu_is_down_and_the_others_go_on(driver: Driver, opened: Opened) -> None:
    driver.lib.mock_gpus(8)
    collector = opened()
    before = flat(collector.collect())
    driver.fail("*", LOST, gpu=5)
    got = flat(collector.collect())
    assert got["hw_gpu_up{gpu=5,uuid=GPU-0000-5}"] == 0
    left = {k.split("{")[0] for k in of_gpu(got, 5)}
    assert left == {"hw_gpu_up", "hw_gpu_stalled", "hw_gpu_info", "hw_gpu_read_errors_total", "hw_gpu_xid_watched"}
    for gpu in (0, 1, 2, 3, 4, 6, 7):
        assert of_gpu(got, gpu) == of_gpu(before, gpu)
    assert "hw_gpu_user_processes{}" in before
    assert "hw_gpu_user_processes{}" not in got  # a part of them is not the total
    first = driver.calls("nvmlDeviceGetTemperature.0", 5)
    collector.collect()
    assert driver.calls("nvmlDeviceGetTemperature.0", 5) == first + 1
    assert driver.calls("nvmlDeviceGetPowerUsage", 5) == 1  # one call finds it lost, no more are sent after it
    driver.fail("*", 0, gpu=5)
    assert of_gpu(flat(collector.collect()), 5).keys() >= of_gpu(before, 5).keys()  # after a reset it is back


def test_a_gpu_lost_before_the_start_is_reported(driver: Driver, opened: Opened) -> None:
    driver.fail("nvmlDeviceGetHandleByIndex_v2", LOST, gpu=0)
    got = flat(opened().collect())
    assert got["hw_gpu_up{gpu=0,uuid=}"] == 0
    assert got["hw_gpu_up{gpu=1,uuid=GPU-0000-1}"] == 1
    assert "hw_gpu_power_watts{gpu=1}" in got


def test_a_gpu_we_may_not_open_is_not_called_lost(driver: Driver, opened: Opened) -> None:
    driver.fail("nvmlDeviceGetHandleByIndex_v2", NO_PERMISSION, gpu=0)
    got = flat(opened().collect())
    assert not any(k.startswith("hw_gpu_up{gpu=0") for k in got)
    assert got["hw_gpu_up{gpu=1,uuid=GPU-0000-1}"] == 1


def test_a_hung_call_costs_only_its_own_gpu_and_no_old_value_is_served(driver: Driver, opened: Opened) -> None:
    collector = opened(timeout=0.5)
    whole = of_gpu(flat(collector.collect()), 0)
    driver.fail("nvmlDeviceGetEnforcedPowerLimit", HANGS, gpu=0)
    got = flat(collector.collect())
    assert got["hw_gpu_stalled{gpu=0,uuid=GPU-0000-0}"] == 1
    assert {k.split("{")[0] for k in of_gpu(got, 0)} == {"hw_gpu_stalled", "hw_gpu_info", "hw_gpu_xid_watched"}
    assert "hw_gpu_power_watts{gpu=1}" in got
    begin = time.monotonic()
    for _ in range(5):
        got = flat(collector.collect())
    assert time.monotonic() - begin < 0.5  # nobody waits for it again
    assert driver.calls("nvmlDeviceGetEnforcedPowerLimit", 0) == 2  # and nothing more is sent into the hang
    driver.fail("nvmlDeviceGetEnforcedPowerLimit", 0, gpu=0)
    driver.value("power", 99_000, gpu=0)
    driver.lib.mock_release()
    eventually(lambda: flat(collector.collect()).get("hw_gpu_stalled{gpu=0,uuid=GPU-0000-0}") == 0)
    got = of_gpu(flat(collector.collect()), 0)
    assert got.pop("hw_gpu_power_watts{gpu=0}") == 99  # read anew, not what the hung round brought home late
    assert got == {k: v for k, v in whole.items() if "power_watts" not in k}


def test_a_hung_driver_does_not_hang_the_start(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackwalker.node.collectors.gpu_nvidia._OPEN_SECONDS", 0.2)
    driver.fail("nvmlDeviceGetCount_v2", HANGS)
    collector = NvidiaCollector("n1", library=str(driver.path))
    assert not collector.available()
    assert collector.reason == "the driver does not answer"
    assert collector.collect() == []
    driver.lib.mock_release()
    eventually(lambda: collector.reason != "the driver does not answer")
    collector.close()


def test_xid_events_are_counted(driver: Driver, opened: Opened) -> None:
    driver.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED, gpu=0)
    collector = opened()
    eventually(lambda: "hw_gpu_xid_watched{gpu=1}" in flat(collector.collect()))
    got = flat(collector.collect())
    assert "hw_gpu_xid_watched{gpu=0}" not in got
    assert not any("xid_total" in k for k in got)
    for data in (79, 31, 79):
        driver.event(1, data)
    driver.event(1, 5, kind=4)  # a P-state event is none
    driver.event(0, 48)
    eventually(lambda: flat(collector.collect()).get("hw_gpu_xid_total{gpu=0,xid=48}") == 1)
    got = flat(collector.collect())
    assert {k: v for k, v in got.items() if "xid_total" in k} == {
        "hw_gpu_xid_total{gpu=1,xid=79}": 2,
        "hw_gpu_xid_total{gpu=1,xid=31}": 1,
        "hw_gpu_xid_total{gpu=0,xid=48}": 1,
    }


def test_waiting_for_events_of_a_lost_gpu_does_not_spin(driver: Driver, opened: Opened) -> None:
    collector = opened()
    eventually(lambda: driver.calls("nvmlEventSetWait_v2") > 0)
    driver.fail("nvmlEventSetWait_v2", LOST)
    time.sleep(0.7)  # the wait is the subject: nothing may spin meanwhile
    before = driver.calls("nvmlEventSetWait_v2")
    time.sleep(1.0)  # the wait is the subject: calls in a second
    assert driver.calls("nvmlEventSetWait_v2") - before <= 3
    driver.fail("nvmlEventSetWait_v2", 0)
    driver.event(0, 13)
    eventually(lambda: "hw_gpu_xid_total{gpu=0,xid=13}" in flat(collector.collect()))
