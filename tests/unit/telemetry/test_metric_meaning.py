"""What a metric means to a comparison: by the catalogue, and by its name where the catalogue does not know it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trackwalker.diagnose.causes.states import graph
from trackwalker.job.yaml_files import shipped
from trackwalker.telemetry.meaning import meaning_of, place_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
DECLARED = dict(re.findall(r"^\| `(\w+)` \| (counter|gauge)", PAGE, re.M))


def test_every_collected_metric_is_catalogued_as_what_its_collector_declares() -> None:
    found = {metric: meaning_of(metric) for metric in DECLARED}
    assert [metric for metric, meaning in found.items() if not meaning.known] == [], "add it to telemetry/metrics.yml"
    counting = {metric for metric, meaning in found.items() if meaning.kind in ("counter", "windowed")}
    assert counting == {metric for metric, kind in DECLARED.items() if kind == "counter"}


def test_a_label_can_say_that_a_series_tells_the_opposite_of_its_siblings() -> None:
    idle, hot = (meaning_of("hw_gpu_throttle_active", (("reason", r),)) for r in ("gpu_idle", "hw_thermal"))
    assert (idle.quantity, idle.bad, hot.quantity, hot.bad) == ("gpu-idle", "none", "gpu-throttle", "up")
    modes = ("idle", "iowait", "steal", "user")
    told = [meaning_of("hw_node_cpu_seconds_total", (("mode", m),)).quantity for m in modes]
    assert told == ["cpu-idle", "io-wait", "cpu-taken", "cpu-use"]


def test_the_causal_graph_and_the_catalogue_speak_of_the_same_quantities() -> None:
    known = {meaning_of(m).quantity for m in DECLARED} | {"cpu-taken", "peer-wait"}  # of virtual machines, of plugins
    known |= {m["quantity"] for m in shipped("telemetry", "metrics.yml")["metrics"] if "where" in m}
    arrows = graph()
    named = {*arrows.here, *arrows.there, *arrows.waiting, *arrows.shared, *arrows.never_the_reason}
    named |= {q for effects in (*arrows.here.values(), *arrows.there.values()) for q in effects}
    assert named - known == set()
    assert known - named - {"storage-space"} == set(), "nothing leads there and it leads nowhere"


@pytest.mark.parametrize(
    ("metric", "kind", "layer", "bad"),
    [
        ("nvme_media_errors_total", "counter", "error", "up"),
        ("nic_crc_drops_total", "counter", "error", "up"),
        ("dns_lookup_latency_seconds", "gauge", "resource", "up"),
        ("node_cpu_steal_seconds_total", "counter", "resource", "up"),
        ("fan_rpm", "gauge", "resource", "either"),
        ("switch_asic_ok", "state", "health", "down"),
        ("lustre_read_bytes_total", "counter", "activity", "none"),
        ("job:gpu_power_watts:max", "gauge", "resource", "either"),
        ("bmc_boot_timestamp_seconds", "timestamp", "identity", "none"),
    ],
)
def test_a_metric_nobody_described_takes_part_by_its_name(metric: str, kind: str, layer: str, bad: str) -> None:
    meaning = meaning_of(metric)
    assert (meaning.kind, meaning.layer, meaning.bad) == (kind, layer, bad)


def test_recording_rules_and_what_is_constant_by_nature_are_not_compared() -> None:
    compared = [m for m in ("job:gpu_power_watts:max", "hw_gpu_info", "hw_mem_total_bytes") if meaning_of(m).compared]
    assert compared == []


def test_units_of_rates_are_per_second() -> None:
    assert meaning_of("hw_net_rx_errors_total").shown_unit == "1/s"
    assert meaning_of("hw_rdma_tx_bytes_total").shown_unit == "bytes/s"
    assert meaning_of("hw_gpu_power_watts").shown_unit == "watts"


def test_a_series_belongs_to_a_host_a_gpu_or_a_device_and_the_rest_tells_it_apart() -> None:
    clock = place_of({"__name__": "hw_gpu_clock_mhz", "host": "n1", "gpu": "3", "type": "sclk", "instance": "n1:9400"})
    assert (clock.host, clock.gpu, clock.device, clock.aspect) == ("n1", "3", None, (("type", "sclk"),))
    busy = place_of(
        {"instance": "n2:55080", "GpuIndex": "5", "SessionName": "s", "GpuDeviceName": "x", "ip": "10.0.0.1"}
    )
    assert (busy.host, busy.gpu, busy.aspect) == ("n2", "5", ())
    port = place_of({"host": "n1", "device": "mlx5_2", "port": "1"})
    assert port.device == "mlx5_2"


def test_what_another_exporter_calls_it_means_the_same() -> None:
    theirs = meaning_of("DCGM_FI_DEV_SM_CLOCK")
    assert (theirs.quantity, theirs.layer, theirs.bad, theirs.known) == ("gpu-clock", "resource", "down", True)
    assert meaning_of("node_netstat_Tcp_RetransSegs").counts  # its name does not say so


def test_a_node_that_is_a_number_is_a_part_of_its_host_and_a_cards_papers_are_not() -> None:
    host = {"__name__": "m", "host": "n1", "UUID": "GPU-1", "modelName": "H100"}
    assert place_of({**host, "node": "1"}).aspect == (("node", "1"),)
    assert place_of({**host, "node": "n1"}).aspect == ()
