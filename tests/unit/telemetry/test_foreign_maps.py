"""Foreign metrics as ours: names, units, labels, and what means "not available"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackwalker.errors import UsageError
from trackwalker.telemetry.blocks import BlockWriter
from trackwalker.telemetry.foreign.borrowed import Borrowed, own_rules, selector, write_rows
from trackwalker.telemetry.foreign.names import Rule, host_in, load_maps, translated
from trackwalker.telemetry.foreign.remote import Access, Cost, RemoteStore
from trackwalker.telemetry.meaning import meaning_of

TIMES = np.array([0.0, 30.0, 60.0, 90.0])


def rule(name: str) -> Rule:
    return next(r for r in load_maps().rules if r.name == name)


def ours(name: str, values: list[float], **labels: str) -> list[tuple[dict[str, str], list[float]]]:
    found = translated(rule(name), dict(labels), TIMES[: len(values)], np.array(values))
    return [(told, [float(v) for v in value]) for told, _, value in found]


def test_units_are_ours() -> None:
    assert ours("DCGM_FI_DEV_FB_USED", [2.0], gpu="3", UUID="x") == [({"gpu": "3"}, [2097152.0])]
    assert ours("DCGM_FI_DEV_SM_CLOCK", [1980.0], gpu="0")[0][0] == {"gpu": "0", "type": "sclk"}
    (told, (value,)) = ours("nvidia_smi_clocks_current_sm_clock_hz", [1.98e9], uuid="u")[0]
    assert (told["gpu"], value) == ("u", pytest.approx(1980.0))


def test_a_counter_of_theirs_is_a_gauge_of_ours_and_a_restart_no_fall() -> None:
    (_, rates) = ours("node_pressure_io_stalled_seconds_total", [100.0, 103.0, 103.0, 1.5])[0]
    assert rates == [pytest.approx(10.0), 0.0, pytest.approx(5.0)]


def test_the_last_xid_counts_once_each_time_it_comes() -> None:
    found = ours("DCGM_FI_DEV_XID_ERRORS", [0.0, 79.0, 79.0, 48.0], gpu="1")
    assert found == [({"gpu": "1", "xid": "48"}, [0, 0, 0, 1]), ({"gpu": "1", "xid": "79"}, [0, 1, 1, 1])]
    assert ours("DCGM_FI_DEV_XID_ERRORS", [0.0, 0.0], gpu="1") == []


def test_bits_and_states() -> None:
    found = {told["reason"]: values for told, values in ours("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", [0.0, 68.0])}
    assert found["sw_power_cap"] == [0, 1]
    assert found["hw_thermal"] == [0, 1]
    assert found["hw_slowdown"] == [0, 0]
    assert ours("node_infiniband_state_id", [4.0, 1.0], device="mlx5_0", port="1")[0][1] == [1, 0]


def test_a_state_that_is_a_label() -> None:
    """Names and labels as prometheus-slurm-exporter's documents give them."""
    for name in ("slurm_node_status", "slurm_node_cpu_total"):
        for state in ("allocated", "mixed", "idle", "completing", "mixed-", "planned"):
            assert ours(name, [64.0, 64.0], node="n1", status=state) == [({}, [1, 1])], state
        for state in ("down", "down*", "allocated*", "drained", "draining", "idle~", "fail", ""):
            assert ours(name, [64.0, 64.0], node="n1", status=state) == [({}, [0, 0])], state


def test_conditions_of_a_kubernetes_node() -> None:
    """Names and labels as kube-state-metrics' documents give them; one of theirs is several of ours."""
    rules = [r for r in load_maps().rules if r.name == "kube_node_status_condition"]
    assert [(r.to, r.only["condition"]) for r in rules] == [
        ("hw_node_ready", "Ready"),
        ("hw_node_short_of_memory", "MemoryPressure"),
        ("hw_node_short_of_disk", "DiskPressure"),
    ]
    text = selector(rules[0], "node", ["n1"])
    assert text.endswith(',condition=~"Ready",status=~"true"}')
    assert [meaning_of(r.to).bad for r in rules] == ["down", "up", "up"]
    assert len(load_maps().known(frozenset({"kube_node_status_condition"}))) == 3


def test_lustre_of_the_client_and_not_of_the_servers() -> None:
    assert ours("lustre_available_kilobytes", [2.0], target="scratch-ffff", component="client") == [
        ({"mount": "scratch-ffff"}, [2048.0])
    ]
    for each in load_maps().rules:
        if each.exporter == "lustre_exporter":
            assert dict(each.only) == {"component": "client"}


def test_a_node_that_goes_down_is_one_series_of_ours(tmp_path: Path) -> None:
    about = {"node": "n1", "instance": "ctl:8080"}
    early, late = TIMES[:3], TIMES[2:]  # the scrape in which it changes may show both, in two partitions
    rows = [
        ({**about, "status": "allocated", "partition": "a"}, early, np.full(3, 64.0)),
        ({**about, "status": "down*", "partition": "b"}, late, np.full(2, 64.0)),
    ]
    writer, out = BlockWriter(tmp_path), Borrowed(Cost())
    added: list[tuple[list[Any], Any]] = []
    writer.add = lambda names, times, values: added.append((names, values.tolist()))  # type: ignore[assignment]
    assert write_rows(writer, load_maps(), rule("slurm_node_cpu_total"), rows, {"n1"}, out) == 1
    ((names, values),) = added
    assert dict(names[0]) == {"__name__": "hw_node_ready", "host": "n1"}
    assert values == [[1, 1, 0, 0]]


def test_what_nvidia_calls_not_available_is_no_number() -> None:
    values = np.array([9223372036854775794.0, 61.0, 2147483632.0, np.nan, np.inf])
    assert load_maps().clean(values).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("labels", "host"),
    [
        ({"Hostname": "n1.cluster.local", "instance": "10.0.0.1:9400"}, "n1"),
        ({"instance": "n1:9100"}, "n1"),
        ({"instance": "10.0.0.7:9100"}, "10.0.0.7"),
        ({"instance": "n1"}, "n1"),
        ({}, ""),
    ],
)
def test_hosts_are_called_as_the_scheduler_does(labels: dict[str, str], host: str) -> None:
    assert host_in(labels, ("Hostname", "instance")) == host


def test_a_selector_takes_hosts_with_domain_and_port_and_no_others() -> None:
    text = selector(rule("node_procs_running"), "instance", ["n1", "gpu-2"])
    assert text == r'node_procs_running{instance=~"(n1|gpu-2)(\\..*)?(:[0-9]+)?"}'


def test_every_name_of_ours_has_a_meaning() -> None:
    for each in load_maps().rules:
        assert meaning_of(each.to).quantity, each.to


def test_one_exporter_for_one_of_ours() -> None:
    both = frozenset({"DCGM_FI_DEV_POWER_USAGE", "nvidia_smi_power_draw_watts", "gpu_package_power"})
    assert [r.exporter for r in load_maps().known(both)] == ["dcgm-exporter"]


def test_a_map_of_ones_own_comes_first_and_is_checked(tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    own.write_text("exporters: {site: {host: [box], metrics: {site_watts: {to: hw_gpu_power_watts}}}}")
    assert load_maps(own).rules[0].name == "site_watts"
    own2 = tmp_path / "own2.yml"
    own2.write_text("exporters: {site: {host: [box], metrics: {site_watts: {too: x}}}}")
    with pytest.raises(UsageError, match="unknown too"):
        load_maps(own2)


@pytest.mark.parametrize("url", ["mimir", "ftp://x", "http://me:secret@x/"])
def test_an_address_that_is_none_is_refused_without_repeating_a_secret(url: str) -> None:
    with pytest.raises(UsageError) as error:
        RemoteStore(Access(url))
    assert "secret" not in str(error.value)


def test_the_cost_is_told() -> None:
    assert Cost(3, 1200, 2_000_000, 1.5).text() == "3 queries, 1,200 samples, 2.0 MB, 1.5 s"


def test_our_own_names_in_a_store_are_read_as_they_are() -> None:
    """What recorders sent with --remote-write was invisible to `diagnose --metrics`: only others' names were known."""
    names = frozenset({"hw_gpu_power_watts", "ray_node_mem_used", "up", "job:gpu_power:avg", "DCGM_FI_DEV_GPU_TEMP"})
    maps = load_maps()
    found = {rule.name: rule for rule in own_rules(names, maps)}
    assert "hw_gpu_power_watts" in found
    assert not {"up", "job:gpu_power:avg", "DCGM_FI_DEV_GPU_TEMP", *(r.to for r in maps.known(names))} & found.keys()
    told = {"__name__": "hw_gpu_power_watts", "host": "n1", "instance": "n1:9400", "gpu": "3"}
    [(labels, _, values)] = translated(found["hw_gpu_power_watts"], told, np.array([1.0]), np.array([2147483647.0]))
    assert labels == {"instance": "n1:9400", "gpu": "3"}
    assert values.tolist() == [2147483647.0]
