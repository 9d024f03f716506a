"""A real node_exporter and a stand-in for dcgm-exporter, scraped by a real Prometheus and a real VictoriaMetrics."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_here import call_here
from ports import free_ports
from victoria import PASSWORD, USER, Victoria, unpacked

from trackwalker.observe.prometheus import find_prometheus
from trackwalker.observe.server import Server
from trackwalker.telemetry.foreign.borrowed import Borrowed, borrow
from trackwalker.telemetry.foreign.names import load_maps
from trackwalker.telemetry.foreign.remote import Access, RemoteStore
from trackwalker.telemetry.store import open_database

WAIT_S = 12.0
# The default counters of dcgm-exporter as its documentation names them; the third card has no memory sensor.
GPU = {
    "DCGM_FI_DEV_SM_CLOCK": "1980",
    "DCGM_FI_DEV_MEM_CLOCK": "2619",
    "DCGM_FI_DEV_GPU_TEMP": "61",
    "DCGM_FI_DEV_MEMORY_TEMP": "9223372036854775794",
    "DCGM_FI_DEV_POWER_USAGE": "652.118",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "1234567890",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "0",
    "DCGM_FI_DEV_GPU_UTIL": "99",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "31",
    "DCGM_FI_DEV_XID_ERRORS": "0",
    "DCGM_FI_DEV_FB_FREE": "10000",
    "DCGM_FI_DEV_FB_USED": "71000",
}


def page() -> bytes:
    lines = []
    for name, value in GPU.items():
        lines += [f"# HELP {name} as documented", f"# TYPE {name} gauge"]
        for gpu in range(4):
            about = f'gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",modelName="NVIDIA H100",Hostname="n1"'
            lines.append(f"{name}{{{about}}} {value}")
    return "\n".join([*lines, ""]).encode()


class Dcgm(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(page())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def scrape_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Both exporters run; a configuration that scrapes them every second."""
    folder = tmp_path_factory.mktemp("exporters")
    port = free_ports(1)[0]
    argv = [unpacked("prometheus-node-exporter"), f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "node.log").open("wb") as out:
        node = subprocess.Popen(argv, stdout=out, stderr=out)
    dcgm = ThreadingHTTPServer(("127.0.0.1", 0), Dcgm)
    threading.Thread(target=dcgm.serve_forever, daemon=True).start()
    targets = {"node": ("n1:9100", port), "dcgm": ("n1:9400", dcgm.server_address[1])}
    jobs = "".join(
        f"- job_name: {name}\n  static_configs:\n  - targets: ['127.0.0.1:{at}']\n"
        f"    labels: {{instance: '{called}'}}\n"
        for name, (called, at) in targets.items()
    )
    path = folder / "scrape.yml"
    path.write_text("global: {scrape_interval: 1s}\nscrape_configs:\n" + jobs)
    try:
        yield path
    finally:
        node.kill()
        node.wait()
        dcgm.shutdown()


@pytest.fixture(scope="module")
def scraped(scrape_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    binary = find_prometheus()
    if binary is None:
        pytest.skip("Prometheus is not installed: trackwalker setup")
    folder = tmp_path_factory.mktemp("prometheus")
    server = Server(binary, folder / "data", scrape_config, folder / "log")
    try:
        assert server.wait_ready(20)
        time.sleep(WAIT_S)  # the wait is the subject: the store fills at its own pace
        yield Access(server.url)
    finally:
        server.stop()


def borrowed(access: Access, into: Path) -> Borrowed:
    store = RemoteStore(access)
    try:
        return borrow(store, load_maps(), ["n1"], time.time() - WAIT_S + 2, time.time(), into)
    finally:
        store.close()


def check(found: Borrowed, into: Path) -> None:
    assert found.hosts == {"n1"}
    assert found.exporters["dcgm-exporter"] >= 9
    assert found.exporters["node_exporter"] >= 12
    with open_database(into) as telemetry:
        begin, end = telemetry.range()
        last = {s.labels.get("gpu"): s.value for s in telemetry.instant("hw_gpu_power_watts", end)}
        assert last == {str(gpu): 652.118 for gpu in range(4)}
        assert {s.labels["host"] for s in telemetry.instant("hw_procs_running", end)} == {"n1"}
        memory = next(s.value for s in telemetry.instant("hw_mem_total_bytes", end))
        told = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
        assert memory == 1024 * int(told.split()[1]), "the kernel's own figure"
        assert "hw_gpu_memory_temperature_celsius" not in telemetry.metrics(), "no sensor, no number"
        assert end > begin


def test_what_a_prometheus_scraped_from_real_exporters_is_read_in_our_names(scraped: Access, tmp_path: Path) -> None:
    into = tmp_path / "db"
    check(borrowed(scraped, into), into)


def test_the_doctor_says_what_is_there_at_what_interval_and_what_is_not(scraped: Access) -> None:
    said = json.loads(call_here(os.environ, "tsdb", "doctor", scraped.url, "--json").stdout)
    node, dcgm = said["exporters"]["node_exporter"], said["exporters"]["dcgm-exporter"]
    assert "node_procs_running" in node["there"]
    assert (dcgm["series"], round(dcgm["interval_s"])) == (4, 1)
    assert "DCGM_FI_DEV_ROW_REMAP_PENDING" in dcgm["lacking"]
    assert "gpu-thermal-throttle" not in said["untestable"]
    assert said["untestable"]["rdma-degradation"]
    text = call_here(os.environ, "tsdb", "doctor", scraped.url).stdout
    assert "dcgm-exporter: 11 metrics, 4 series of the first, every 1 s" in text
    assert "cost to the store: " in text


@pytest.mark.long(reason="VictoriaMetrics is fetched from the distribution")
def test_the_same_from_a_victoria_metrics_that_scrapes_itself(scrape_config: Path, tmp_path: Path) -> None:
    store = Victoria(unpacked("victoria-metrics"), tmp_path, free_ports(1)[0])
    (tmp_path / "auth").write_text(f"basic {USER}:{PASSWORD}\n")
    (tmp_path / "auth").chmod(0o600)
    store.start(f"-promscrape.config={scrape_config}", "-search.latencyOffset=0s")
    try:
        time.sleep(WAIT_S)  # the wait is the subject: the store fills at its own pace
        into = tmp_path / "db"
        check(borrowed(Access(store.url, tmp_path / "auth"), into), into)
    finally:
        store.stop()
