"""A real Prometheus that holds given blocks, as a cluster's own store for a test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trackwalker.observe.prometheus import find_prometheus
from trackwalker.observe.server import Server
from trackwalker.telemetry.foreign.remote import Access


@contextmanager
def prometheus_with(blocks: Path, where: Path) -> Iterator[Access]:
    """A real Prometheus that holds them."""
    binary = find_prometheus()
    if binary is None:
        pytest.skip("Prometheus is not installed: trackwalker setup")
    config = where / "prometheus.yml"
    config.write_text("global: {scrape_interval: 30s}\n")
    flags = ("--storage.tsdb.retention.time=100y",)
    server = Server(binary, blocks, config, where / "prometheus.log", flags, {})
    try:
        for _ in range(600):
            if server.ready():
                break
            time.sleep(0.1)
        yield Access(server.url)
    finally:
        server.stop()
