"""Upstream's written rules as a program, mistakes included: they are what a reader who follows them does.

Triage from the log in table order; "hang" by the wall-time gap; throughput as last ten steps against steps 5 to 15;
then the playbook that triage hands to, with its fixed thresholds on averages over the whole job.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError
from trackwalker.lab.baselines.signatures import Hit, first_class, read_log, status_of
from trackwalker.lab.baselines.verdict import Claim, verdict
from trackwalker.telemetry.store import Telemetry, open_database

# The rank-0 filter as upstream prints it: on a log of ten tasks and more it also takes the tasks 10, 20 …, below ten
# it takes nothing, and then everything is read.
_RANK0 = re.compile(r"^.0: .*completed step: (\d+), seconds: ([\d.]+).*Tokens/s/device: ([\d.]+)", re.MULTILINE)
_ANY = re.compile(r"^\s*0: .*completed step: (\d+), seconds: ([\d.]+).*Tokens/s/device: ([\d.]+)", re.MULTILINE)
_WALL = re.compile(r"Wall:\s*(\d+)h (\d+)m (\d+)s")
_SETUP_S = 1800.0  # "15 to 30 minutes of setup and compilation"
_DROP = 0.10
_IDLE_W = 300.0  # "260 to 300 W" of the one GPU it knows


def upstream_rules(job: Path) -> dict[str, Any]:
    """A verdict by upstream's rules."""
    text = read_log(job)
    status = status_of(text)
    steps = [(int(a), float(b), float(c)) for a, b, c in _RANK0.findall(text) or _ANY.findall(text)]
    hit = first_class(text)
    wall = _WALL.search(text)
    trained = sum(s[1] for s in steps)
    spent = int(wall[1]) * 3600 + int(wall[2]) * 60 + int(wall[3]) if wall else 0
    stalled = bool(wall) and spent - trained > _SETUP_S and status != "completed"
    try:
        with open_database(job / "prometheus") as telemetry:
            return _judge(job, status, steps, hit, stalled, telemetry)
    except TrackwalkerError:
        return _judge(job, status, steps, hit, stalled, None)


def _judge(
    job: Path,
    status: str,
    steps: list[tuple[int, float, float]],
    hit: Hit | None,
    stalled: bool,
    data: Telemetry | None,
) -> dict[str, Any]:
    claim = Claim(hit.cause, f"{job.name}.log:{hit.line}", hit.text) if hit else None
    kind = hit.name if hit else ""
    if kind in ("cancelled", "train-timeout") and stalled:
        return verdict(status, "incident", [_hang(job, data)])
    if kind == "heartbeat-timeout" and data is not None:
        busy = _means(data, "ray_node_gpus_utilization", "instance")
        if busy and min(busy.values()) < 50:  # utilisation, which a hang keeps at 100 %
            return verdict(status, "incident", [Claim("node-death", "ray_node_gpus_utilization", "low", kind="metric")])
    if kind in ("nccl-timeout", "node-fail", "signal-kill") and data is not None:
        found = _hardware(data) or _network(data)
        if found:
            return verdict(status, "incident", [found])
    if claim is not None and kind != "cancelled":
        return verdict(status, "incident", [claim])
    if _slower(steps):
        if data is None:
            return verdict(status, "insufficient-evidence")
        for found in (_network(data), _hardware(data), _gpu(data), _contention(data)):
            if found:
                return verdict(status, "incident", [found])
        return verdict(status, "insufficient-evidence")
    if claim is not None:
        return verdict(status, "incident", [claim])
    found = _gpu(data) if data is not None else None  # the health check is run "always"
    return verdict(status, "incident", [found]) if found else verdict(status, "healthy")


def _slower(steps: list[tuple[int, float, float]]) -> bool:
    early = [s[2] for s in steps if 5 <= s[0] <= 15]
    late = [s[2] for s in steps[-10:]]
    return bool(early and late) and sum(late) / len(late) < (1 - _DROP) * sum(early) / len(early)


def _hang(job: Path, data: Telemetry | None) -> Claim:
    if data is not None:
        power = data.by_host("avg by (host) (hw_gpu_power_watts)", data.range()[1])
        dead = sorted(h for h, v in power.items() if v == 0)  # "0 W": no dead node ever shows it
        if dead:
            return Claim("node-death", "hw_gpu_power_watts", f"{dead} at 0 W", dead, "metric")
        if power and max(power.values()) > _IDLE_W * 2:
            return Claim("user-cancel", "hw_gpu_power_watts", "active power: not a hang", kind="metric")
    return Claim("collective-hang", f"{job.name}.log", "steps stopped long before the end")


def _means(data: Telemetry, metric: str, label: str = "host") -> dict[str, float]:
    begin, end = data.range()
    return data.by(f"avg by ({label}) (avg_over_time({metric}[{end - begin:.0f}s]))", end, label)


def _rising(data: Telemetry, metric: str, above: float = 0.0) -> list[str]:
    """Hosts whose five-minute rate was ever above a limit."""
    begin, end = data.range()
    query = f"max by (host) (max_over_time(rate({metric}[5m])[{end - begin:.0f}s:1m]))"
    return sorted(h for h, v in data.by_host(query, end).items() if v > above)


def _network(data: Telemetry) -> Claim | None:
    for metric, cause in (
        ("hw_rdma_req_tx_retry_excd_err_total", "rdma-degradation"),
        ("hw_rdma_tx_retx_pkts_total", "rdma-degradation"),
    ):
        bad = _rising(data, metric)
        if bad:
            return Claim(cause, f"rate({metric}[5m])", f"above 0 on {', '.join(bad)}", bad, "metric", "exclude-nodes")
    down = sorted(h for h, v in data.by_host("min by (host) (hw_rdma_port_state)", data.range()[1]).items() if v == 0)
    if down:
        return Claim("rdma-link-failure", "hw_rdma_port_state", f"0 on {', '.join(down)}", down, "metric")
    if len(_rising(data, "hw_rdma_rx_cnp_pkts_total", 10.0)) > 3:
        return Claim("fabric-congestion", "rate(hw_rdma_rx_cnp_pkts_total[5m])", "on many hosts", kind="metric")
    return None


def _hardware(data: Telemetry) -> Claim | None:
    """Raw totals, as written: what was counted before the job counts too."""
    end = data.range()[1]
    query = 'max by (host) ({__name__=~"hw_gpu_ras_(umc|xgmi|gfx)_ue_total|hw_gpu_pcie_fatal_total"})'
    bad = sorted(h for h, v in data.by_host(query, end).items() if v > 0)
    return Claim("gpu-hardware-fault", query, f"above 0 on {bad}", bad, "metric", "drain-node") if bad else None


def _gpu(data: Telemetry) -> Claim | None:
    begin, end = data.range()
    hot = data.by_host(f"max by (host) (max_over_time(hw_gpu_temperature_celsius[{end - begin:.0f}s]))", end)
    over = sorted(h for h, v in hot.items() if v > 90)
    if over:
        return Claim("gpu-thermal-throttle", "hw_gpu_temperature_celsius", f"above 90 C on {over}", over, "metric")
    errors = data.by_host("max by (host) (hw_gpu_ras_umc_ce_total)", end)
    bad = sorted(h for h, v in errors.items() if v > 0)
    if bad:
        return Claim("gpu-hardware-fault", "hw_gpu_ras_umc_ce_total", f"above 0 on {bad}", bad, "metric", "drain-node")
    return None


def _contention(data: Telemetry) -> Claim | None:
    load = _means(data, "hw_procs_running")
    if load and max(load.values()) > 2 * sorted(load.values())[len(load) // 2]:
        worst = max(load, key=lambda h: load[h])
        return Claim("cpu-contention", "hw_procs_running", f"most on {worst}", [worst], "metric")
    begin, end = data.range()
    series = f"tb_learning_moe_lb_loss[{end - begin:.0f}s]"
    query = f"max(max_over_time({series})) / min(min_over_time({series}))"
    if any(s.value > 1.3 for s in data.instant(query, end)):
        return Claim("moe-routing-shift", query, "the balance loss rose", kind="metric")
    return None
