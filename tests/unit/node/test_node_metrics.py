"""What /metrics says: valid text, honest about what failed, and never one bad source for all."""

from __future__ import annotations

import math
import os
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackwalker.node.collectors import lane as lane_module
from trackwalker.node.collectors.lane import Lane, LaneCollector
from trackwalker.node.collectors.machine import HostCollector
from trackwalker.node.exporter.exposition import Family, render
from trackwalker.node.exporter.server import Exporter, merge
from trackwalker.observe.prometheus import find_prometheus

LABEL = r'[a-zA-Z_]\w*="((?:[^"\\\n]|\\\\|\\n|\\")*)"'
SAMPLE = re.compile(rf"([a-z_:]\w*)\{{((?:{LABEL},?)*)\}} (\S+)(?: (-?\d+))?")


def parse(text: str) -> dict[str, list[tuple[dict[str, str], float, int | None]]]:
    """A strict reader of the exposition format: one HELP and TYPE per name, then its samples."""
    out: dict[str, list[tuple[dict[str, str], float, int | None]]] = {}
    current = ""
    assert text.endswith("\n")
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
            assert current not in out, f"{current} stands there twice"
            out[current] = []
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2:] in ([current, "gauge"], [current, "counter"])
        elif line:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == current
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
            plain = {k: re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), v) for k, v in labels.items()}
            out[current].append((plain, float(match[4]), int(match[5]) if match[5] else None))
    return out


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(), st.none() | st.floats(0, 4e9))
def test_any_sample_reads_back(value: str, number: float, time: float | None) -> None:
    family = Family("hw_x", "gauge", "Help.")
    family.add(number, time=time, host=value)
    family.add(None, host="absent")
    ((labels, back, stamp),) = parse(render([family, Family("hw_empty", "gauge", "No samples.")]))["hw_x"]
    assert labels == {"host": value}
    assert back == number or (math.isnan(back) and math.isnan(number))
    assert (stamp is None) == (time is None)
    assert time is None or stamp is None or abs(stamp / 1000 - time) <= 0.001


@pytest.mark.starts_processes
def test_promtool_agrees() -> None:
    prometheus = find_prometheus()
    promtool = prometheus.with_name("promtool") if prometheus else None
    if promtool is None or not promtool.is_file():
        pytest.skip("promtool is not installed here")
    text = Exporter('no"de\\', [HostCollector("box"), LaneCollector(list)]).text()
    answer = subprocess.run(
        [str(promtool), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert "error while linting" not in answer.stderr
    assert answer.returncode in (0, 3)  # 3: opinions on names, which are upstream's


def write_proc(root: Path, **changed: str | None) -> str:
    files = {
        "stat": "cpu  1 2 3\nctxt 1234\nprocs_running 3\nprocs_blocked 1\n",
        "meminfo": "MemTotal:  1000 kB\nMemAvailable: 500 kB\nDirty: 7 kB\nWriteback: 0 kB\nHugePages_Total: 0\n",
        "pressure/cpu": "some avg10=1.50 avg60=0 avg300=2.00 total=99\nfull avg10=0.00 avg60=0 avg300=0.00 total=0\n",
        "net/snmp": "Ip: A\nIp: 1\nTcp: RtoMin RetransSegs EstabResets\nTcp: 200 42 -1\n",
        "net/netstat": "TcpExt: ListenOverflows ListenDrops TCPAbortOnTimeout\nTcpExt: 1 2 3\n",
        "vmstat": "nr_free 1\noom_kill 4\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = changed.get(name.replace("/", "_"), text)
        if new is not None:
            path.write_text(new)
    return str(root)


OF_FILE = {
    "stat": ["hw_procs_running", "hw_procs_blocked", "hw_context_switches_total"],
    "meminfo": ["hw_mem_total_bytes", "hw_mem_available_bytes", "hw_mem_dirty_bytes", "hw_mem_writeback_bytes"],
    "pressure_cpu": ["hw_cpu_pressure_some_pct", "hw_cpu_pressure_full_total_us"],
    "net_snmp": ["hw_tcp_retransmits_total"],
    "vmstat": ["hw_oom_kills_total"],
}


def host_values(root: str) -> dict[str, float]:
    samples = parse(render(HostCollector("box", root).collect()))
    assert all(labels == {"host": "box"} for rows in samples.values() for labels, _, _ in rows)
    return {name: rows[0][1] for name, rows in samples.items()}


def test_host_metrics_of_a_known_machine(tmp_path: Path) -> None:
    values = host_values(write_proc(tmp_path))
    assert values["hw_procs_running"] == 3
    assert values["hw_context_switches_total"] == 1234
    assert values["hw_mem_total_bytes"] == 1000 * 1024
    assert values["hw_cpu_pressure_some_pct"] == 1.5
    assert values["hw_cpu_pressure_some_avg300_pct"] == 2.0
    assert values["hw_cpu_pressure_some_total_us"] == 99
    assert values["hw_tcp_retransmits_total"] == 42
    assert values["hw_tcp_listen_drops_total"] == 2
    assert values["hw_oom_kills_total"] == 4
    assert "hw_io_pressure_some_pct" not in values, "a file that is not there is absent, not zero"


@pytest.mark.parametrize("bad", sorted(OF_FILE))
@pytest.mark.parametrize(
    "content", [None, "", "\n \n", "procs_running x\nMemTotal: y\nsome avg10 total\noom_kill z\n", "\0\xff"]
)
def test_a_bad_file_takes_only_its_own_metrics(tmp_path: Path, bad: str, content: str | None) -> None:
    values = host_values(write_proc(tmp_path, **{bad: content}))
    for name in OF_FILE[bad]:
        assert name not in values
    for other in OF_FILE.keys() - {bad}:
        for name in OF_FILE[other]:
            assert name in values, f"{name} went with {bad}"


class Fixed:
    def __init__(self, name: str, *families: Family, error: Exception | None = None) -> None:
        self.name, self._families, self._error = name, families, error

    def collect(self) -> list[Family]:
        if self._error:
            raise self._error
        return [Family(f.name, f.kind, f.help, list(f.samples)) for f in self._families]


def family(name: str, host: str) -> Family:
    return Family(name, "gauge", "Help.", [({"host": host}, 1.0, None)])


def test_a_raising_collector_is_contained_and_says_so() -> None:
    good = Fixed("good", family("hw_a", "n"))
    text = Exporter("n", [good, Fixed("bad", error=RuntimeError("x")), Fixed("late", family("hw_b", "n"))]).text()
    samples = parse(text)
    assert {"hw_a", "hw_b"} <= samples.keys()
    up = {labels["collector"]: value for labels, value, _ in samples["hw_collector_up"]}
    assert up == {"good": 1, "bad": 0, "late": 1}


def test_one_name_from_two_collectors_is_one_family() -> None:
    exporter = Exporter("n", [Fixed("machine", family("hw_a", "box")), Fixed("lanes", family("hw_a", "box-r0"))])
    for _ in range(2):  # and the second scrape does not pile up on the first
        assert [labels["host"] for labels, _, _ in parse(exporter.text())["hw_a"]] == ["box", "box-r0"]
    assert merge([]) == []


def test_served_over_http() -> None:
    exporter = Exporter("n", [Fixed("good", family("hw_a", "n"))])
    port = exporter.start()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "hw_a" in parse(answer.read().decode())
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz").read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other")
    finally:
        exporter.stop()


@pytest.mark.starts_processes
def test_a_lane_is_one_process_and_not_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["/bin/sh", "-c", "sleep 30 & wait"], start_new_session=True)
    try:
        lane = Lane(3, "box-r3", child.pid, child.pid)
        (up,) = [f for f in LaneCollector(lambda: [lane]).collect() if f.name == "hw_rank_up"]
        assert up.samples[0][:2] == ({"host": "box-r3", "rank": "3"}, 1.0)
        lane._start = (lane._start or 0) - 1  # as if the number had been given to someone else meanwhile
        families = {f.name: f.samples for f in LaneCollector(lambda: [lane]).collect()}
        assert families.pop("hw_rank_up")[0][1] == 0
        assert not any(families.values()), "a rank that is gone has no other samples"
    finally:
        os.killpg(child.pid, 9)
        child.wait()


@pytest.mark.parametrize("accounting", [True, False])
def test_without_scheduler_accounting_there_is_no_cpu_time_rather_than_zero(
    monkeypatch: pytest.MonkeyPatch, accounting: bool
) -> None:
    real = lane_module.read_bytes
    if not accounting:
        monkeypatch.setattr(lane_module, "read_bytes", lambda p: None if p.endswith("schedstat") else real(p))
    lane = Lane(0, "me", -1, os.getpid())
    monkeypatch.setattr(lane_module, "session_members", lambda session: [os.getpid()])
    families = {f.name: f.samples for f in LaneCollector(lambda: [lane]).collect()}
    assert families["hw_procs_running"][0][1] >= 1  # this very thread
    assert families["hw_mem_rss_bytes"][0][1] > 1_000_000
    assert bool(families["hw_cpu_seconds_total"]) == accounting
    assert bool(families["hw_cpu_wait_seconds_total"]) == accounting
