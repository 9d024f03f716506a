"""The same incidents from a store of foreign names (DCGM, node_exporter): the same root or none, never a wrong one."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled_store import prometheus_with
from ports import free_ports
from victoria import PASSWORD, USER, Victoria, find_victoria

from trackwalker.diagnose import engine
from trackwalker.diagnose.elsewhere import with_metrics
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import simulate
from trackwalker.telemetry.blocks import BlockWriter, labels
from trackwalker.telemetry.foreign.names import load_maps
from trackwalker.telemetry.foreign.remote import Access
from trackwalker.telemetry.store import open_database

# Ours -> theirs, written down here on its own: name, factor. What is not here such a cluster does not collect.
DCGM = {
    "hw_gpu_power_watts": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "hw_gpu_temperature_celsius": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "hw_gpu_clock_mhz": ("DCGM_FI_DEV_SM_CLOCK", 1.0),
    "hw_gpu_vram_used_bytes": ("DCGM_FI_DEV_FB_USED", 1 / 1048576),
    "hw_gpu_pcie_replay_total": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1.0),
}
NODE = {
    "hw_procs_running": ("node_procs_running", 1.0),
    "hw_procs_blocked": ("node_procs_blocked", 1.0),
    "hw_tcp_retransmits_total": ("node_netstat_Tcp_RetransSegs", 1.0),
    "hw_oom_kills_total": ("node_vmstat_oom_kill", 1.0),
    "hw_context_switches_total": ("node_context_switches_total", 1.0),
    "hw_mem_dirty_bytes": ("node_memory_Dirty_bytes", 1.0),
    "hw_mem_writeback_bytes": ("node_memory_Writeback_bytes", 1.0),
    "hw_rdma_tx_bytes_total": ("node_infiniband_port_data_transmitted_bytes_total", 1.0),
    "hw_rdma_rx_bytes_total": ("node_infiniband_port_data_received_bytes_total", 1.0),
    "hw_rdma_tx_pkts_total": ("node_infiniband_port_packets_transmitted_total", 1.0),
    "hw_net_rx_bytes_total": ("node_network_receive_bytes_total", 1.0),
    "hw_net_tx_bytes_total": ("node_network_transmit_bytes_total", 1.0),
    "hw_net_rx_errors_total": ("node_network_receive_errs_total", 1.0),
    "hw_net_tx_errors_total": ("node_network_transmit_errs_total", 1.0),
    "hw_net_rx_drop_total": ("node_network_receive_drop_total", 1.0),
    "hw_net_tx_drop_total": ("node_network_transmit_drop_total", 1.0),
}
PRESSURE = {  # ours is a percentage, theirs counts seconds
    "hw_io_pressure_full_pct": "node_pressure_io_stalled_seconds_total",
    "hw_io_pressure_some_pct": "node_pressure_io_waiting_seconds_total",
}
MANY = (
    "gpu-thermal-throttle", "cpu-contention", "node-death", "healthy-plain", "input-stall", "expected-checkpoint",
    "collective-hang", "oom-gpu", "rdma-retry-exhaustion", "pre-existing-counters",
    "healthy-spread", "rdma-from-start", "warm-rack", "psu-brake", "left-locked", "forgotten-clock-lock",
    "rack-warms-up", "pinned-clock", "rack-power", "scan-every-host", "noisy-but-fine",
)  # fmt: skip


def foreign(native: Path, into: Path) -> None:
    """The samples of a recorded job under the names of other exporters, with their labels and units."""
    writer = BlockWriter(into)
    with open_database(native) as telemetry:
        begin, end = telemetry.range()
        for name in sorted({*DCGM, *NODE, *PRESSURE, "hw_rdma_port_state", "up"} & telemetry.metrics()):
            for ours, times, values in telemetry.raw(name, begin, end):
                theirs, changed = _renamed(name, ours, times, values)
                if theirs is not None:
                    writer.add([theirs], np.rint(times * 1000).astype(np.int64), changed[None, :])
        # A sensor that this card does not have, as NVIDIA's library says it.
        hosts = {s.labels["host"] for s in telemetry.instant("hw_procs_running", (begin + end) / 2)}
        at = np.arange(begin, end, 30.0)
        for host in hosts:
            absent = labels("DCGM_FI_DEV_MEMORY_TEMP", Hostname=host, gpu="0", instance=f"{host}:9400", job="dcgm")
            writer.add([absent], np.rint(at * 1000).astype(np.int64), np.full((1, len(at)), 9223372036854775794.0))
    writer.close()


def _renamed(name: str, ours: dict[str, str], times: Any, values: Any) -> tuple[Any, Any]:
    host = ours.get("host") or re.sub(r":\d+$", "", ours.get("instance", ""))
    if name in DCGM:
        if ours.get("type", "sclk") != "sclk":
            return None, None
        to, factor = DCGM[name]
        gpu = ours.get("gpu", "0")
        about = {
            "Hostname": f"{host}.cluster.local",
            "gpu": gpu,
            "modelName": "NVIDIA H100",
            "UUID": f"GPU-{host}-{gpu}",
        }
        return labels(to, **about, instance="10.0.0.1:9400", job="dcgm", hpc_job="1"), values * factor
    who = {"instance": f"{host}:9100", "job": "node"}
    device = {"device": ours["device"]} if "device" in ours else {}
    if name == "up":
        return (labels("up", **who), values) if ours.get("job") != "ray" else (None, None)
    if name == "hw_rdma_port_state":
        return labels("node_infiniband_state_id", **who, **device, port="1"), np.where(values > 0, 4.0, 1.0)
    if name in PRESSURE:
        stalled = np.concatenate([[0.0], np.cumsum(values[1:] / 100 * np.diff(times))])
        return labels(PRESSURE[name], **who), 1000.0 + stalled
    to, factor = NODE[name]
    port = {"port": "1"} if "infiniband" in to else {}
    return labels(to, **who, **device, **port), values * factor


def answers(found: Job) -> dict[str, Any]:
    return json.loads(engine.diagnose(found).verdict.to_json())


def roots(verdict: dict[str, Any]) -> set[tuple[str, tuple[str, ...]]]:
    return {(c["cause"], tuple(sorted(c["hosts"]))) for c in verdict["causes"] if c["role"] == "root"}


def compare(family: str, where: Path, access_of: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """How a verdict from a foreign store stands to the native one: same, abstains, untestable, wrong.

    Untestable: what the native one found needs metrics that the store lacks, the verdict says so by name, and what it
    concludes otherwise the log says by itself.
    """
    job = simulate(load_scenario(family), where / "jobs", seed=3).job
    native = answers(resolve(str(job), where))
    bare = where / "bare"
    bare.mkdir()
    log = bare / f"{job.name}.log"
    shutil.copy(resolve(str(job), where).log or "", log)
    blocks = where / "foreign"
    foreign(job / "prometheus", blocks)
    with open_database(job / "prometheus") as telemetry:
        span = telemetry.range()
    with (
        access_of(blocks, where) as access,
        with_metrics(resolve(str(log), where), access, None, (span[0], span[1] + 1), load_maps()) as borrowed,
    ):
        theirs = answers(borrowed.job)
        assert "queries" in borrowed.says
    if roots(theirs) == roots(native) and theirs["outcome"] == native["outcome"]:
        return "same", native, theirs
    if not roots(theirs) - roots(native):
        return "abstains", native, theirs
    named = {u["cause"] for u in theirs["untestable"]}
    alone = answers(resolve(str(log), where))
    lacking = {cause for cause, _ in roots(native) - roots(theirs)} <= named
    return ("untestable" if lacking and roots(theirs) <= roots(alone) else "wrong"), native, theirs


def test_from_a_prometheus_of_foreign_names(tmp_path: Path) -> None:
    how, native, theirs = compare("gpu-thermal-throttle", tmp_path, prometheus_with)
    assert how == "same", (roots(native), roots(theirs), theirs["summary"])


def test_a_store_that_is_said_once_needs_no_more_than_the_jobs_number(tmp_path: Path) -> None:
    job = simulate(load_scenario("cpu-contention"), tmp_path / "jobs", seed=3).job
    here, blocks = tmp_path / "here", tmp_path / "foreign"
    (here / "trackwalker").mkdir(parents=True)
    shutil.copy(resolve(str(job), tmp_path).log or "", here / "slurm-8308.out")
    foreign(job / "prometheus", blocks)
    with open_database(job / "prometheus") as telemetry:
        begin, end = telemetry.range()
    with prometheus_with(blocks, tmp_path) as access:
        (here / "trackwalker" / "config.toml").write_text(f'metrics = "{access.url}"\n')
        argv = [sys.executable, "-m", "trackwalker", "diagnose", "8308", "--json"]
        argv += ["--since", f"{begin:.0f}", "--until", f"{end + 1:.0f}"]  # this log has no times
        env = {k: v for k, v in os.environ.items() if k != "SLURM_CONF"} | {"XDG_CONFIG_HOME": str(here)}
        done = subprocess.run(argv, cwd=here, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert roots(json.loads(done.stdout)) == roots(answers(resolve(str(job), tmp_path)))
    assert "cost to the store: " in done.stderr


@pytest.mark.long(reason="twenty incidents, each made, recorded twice and diagnosed twice")
@pytest.mark.parametrize("family", MANY)
def test_never_a_wrong_one(family: str, tmp_path: Path) -> None:
    how, native, theirs = compare(family, tmp_path, prometheus_with)
    print(f"{family}: {how}: {sorted(roots(native))} -> {sorted(roots(theirs))} {theirs['outcome']}")
    print("untestable:", [u["cause"] for u in theirs["untestable"]])
    assert how != "wrong", (roots(native), roots(theirs), theirs["summary"])


@pytest.mark.long(reason="VictoriaMetrics is fetched from the distribution")
def test_from_victoria_metrics(tmp_path: Path) -> None:
    how, native, theirs = compare("gpu-thermal-throttle", tmp_path, victoria_with)
    assert how == "same", (roots(native), roots(theirs), theirs["summary"])


@contextmanager
def victoria_with(blocks: Path, where: Path) -> Iterator[Access]:
    """A real VictoriaMetrics, behind a password, that was given them."""
    store = Victoria(find_victoria(), where, free_ports(1)[0])
    (where / "auth").write_text(f"basic {USER}:{PASSWORD}\n")
    (where / "auth").chmod(0o600)
    store.start()
    try:
        with open_database(blocks) as telemetry:
            begin, end = telemetry.range()
            for name in sorted(telemetry.metrics()):
                rows = [
                    json.dumps({"metric": {"__name__": name, **about}, "values": list(values), "timestamps": stamps})
                    for about, times, values in telemetry.raw(name, begin, end)
                    for stamps in [[int(t) for t in np.rint(times * 1000)]]
                ]
                _post(f"{store.url}/api/v1/import", "\n".join(rows).encode())
        _post(f"{store.url}/internal/force_flush", b"")
        yield Access(store.url, where / "auth")
    finally:
        store.stop()


def _post(url: str, body: bytes) -> None:
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    asked = urllib.request.Request(url, data=body, headers={"Authorization": f"Basic {login}"})  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(asked, timeout=60) as answer:
        answer.read()
