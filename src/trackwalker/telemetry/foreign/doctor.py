"""What a cluster's own store has for a diagnosis, at what interval, and what would have to be scraped besides."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from trackwalker.telemetry.foreign.names import Maps
from trackwalker.telemetry.foreign.remote import Cost, RemoteStore

_LOOK_S = 600.0
_LATELY_S = 10.0
# What each exporter is for, and the port it usually has.
SCRAPED = {
    "dcgm-exporter": ("temperatures, clocks, power, ECC and XID errors of NVIDIA GPUs", 9400),
    "amd-device-metrics-exporter": ("temperatures, clocks, power and ECC errors of AMD GPUs", 5000),
    "node_exporter": ("processes, pressure, memory, TCP, Ethernet and InfiniBand ports", 9100),
}
_FLAGS = "--collector.pressure --collector.infiniband --collector.ethtool"


@dataclass
class Found:
    """One exporter: which of the metrics that a map knows are there."""

    exporter: str
    there: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    series: int = 0
    interval: float = 0.0


@dataclass
class Examination:
    """The whole store."""

    exporters: list[Found]
    ours: frozenset[str]  # what of ours can be had from it
    cost: Cost

    def missing(self, wanted: Mapping[str, set[str]]) -> dict[str, list[str]]:
        """Of each cause, the metrics without which it is untestable; causes that need nothing are left out."""
        return {cause: sorted(need - self.ours) for cause, need in wanted.items() if need - self.ours}


def examine_store(store: RemoteStore, maps: Maps) -> Examination:
    """Ask the store what it has; one question for its names and one for each exporter's first metric."""
    now = time.time()
    names = store.names(now - _LOOK_S, now)
    found: dict[str, Found] = {}
    for rule in maps.rules:
        entry = found.setdefault(rule.exporter, Found(rule.exporter))
        (entry.there if rule.name in names else entry.lacking).append(rule.name)
    for entry in found.values():
        if entry.there:
            entry.series, entry.interval = store.count(entry.there[0], now, _LOOK_S)
            _, lately = store.count(entry.there[0], now, _LATELY_S)
            if 0 < lately <= _LATELY_S / 3:  # it may be scraped for a minute only: that is no long interval
                entry.interval = lately
    ours = frozenset(rule.to for rule in maps.known(names))
    return Examination(list(found.values()), ours | (names & {rule.to for rule in maps.rules}), store.cost)


def scrape_config(examined: Examination) -> str:
    """A scrape configuration for the exporters that are not there; empty when there is nothing to add."""
    has_gpus = any(name.startswith("hw_gpu_") for name in examined.ours)
    jobs: list[dict[str, Any]] = []
    for entry in examined.exporters:
        if entry.there or entry.exporter not in SCRAPED or (has_gpus and entry.exporter != "node_exporter"):
            continue
        _, port = SCRAPED[entry.exporter]
        targets = [{"targets": [f"NODE:{port}"]}]
        jobs.append({"job_name": entry.exporter, "scrape_interval": "15s", "static_configs": targets})
    if not jobs:
        return ""
    lines = [f"# {job['job_name']}: {SCRAPED[job['job_name']][0]}" for job in jobs]
    lines += [f"# node_exporter {_FLAGS}"] if any(job["job_name"] == "node_exporter" for job in jobs) else []
    return "\n".join([*lines, yaml.safe_dump({"scrape_configs": jobs}, sort_keys=False)])
