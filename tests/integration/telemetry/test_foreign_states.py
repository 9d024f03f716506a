"""Node states of Slurm's and Kubernetes' exporters and Lustre clients, from a real Prometheus, in our names."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from filled_store import prometheus_with

from trackwalker.telemetry.blocks import BlockWriter, labels
from trackwalker.telemetry.foreign.borrowed import borrow
from trackwalker.telemetry.foreign.names import load_maps
from trackwalker.telemetry.foreign.remote import RemoteStore
from trackwalker.telemetry.store import open_database

EVERY_S, LONG_S = 30.0, 1800.0


def stored(into: Path, begin: float, scheduler: str) -> None:
    """n3 is lost after two thirds of the time; all others stay as they are."""
    writer = BlockWriter(into)
    times = np.arange(begin, begin + LONG_S, EVERY_S)
    stamps, lost = np.rint(1000 * times).astype(np.int64), times > begin + LONG_S * 2 / 3
    for host in ("n1", "n2", "n3", "n9"):
        gone = lost & (host == "n3")
        if scheduler == "slurm":  # one series for each state: the one ends where the other begins
            for state, when in (("mixed", ~gone), ("down*", gone)):
                about = {"node": host, "status": state, "instance": "ctl:8080", "partition": "main"}
                writer.add([labels("slurm_node_cpu_total", **about)], stamps[when], np.full((1, int(when.sum())), 64.0))
        else:
            for status, values in (("true", ~gone), ("false", np.zeros(len(times))), ("unknown", gone)):
                about = {"node": f"{host}.cluster.local", "condition": "Ready", "status": status, "job": "ksm"}
                writer.add([labels("kube_node_status_condition", **about)], stamps, values[None, :].astype(np.float64))
        for component in ("client", "ost"):
            about = {"component": component, "target": "scratch-ffff", "instance": f"{host}:9169"}
            writer.add([labels("lustre_available_kilobytes", **about)], stamps, np.full((1, len(times)), 1024.0))
    writer.close()


def test_a_node_that_its_scheduler_lost(tmp_path: Path) -> None:
    begin = (time.time() - LONG_S - 60) // 30 * 30
    for scheduler in ("slurm", "kubernetes"):
        place = tmp_path / scheduler
        place.mkdir()
        stored(place / "blocks", begin, scheduler)
        with prometheus_with(place / "blocks", place) as access:
            store = RemoteStore(access)
            found = borrow(store, load_maps(), ["n1", "n2", "n3"], begin - 1, begin + LONG_S, place / "ours")
            store.close()
        assert found.hosts == {"n1", "n2", "n3"}
        with open_database(place / "ours") as telemetry:
            for share, ready in ((0.5, {"n1": 1, "n2": 1, "n3": 1}), (0.9, {"n1": 1, "n2": 1, "n3": 0})):
                assert telemetry.by_host("hw_node_ready", begin + share * LONG_S) == ready, scheduler
            space = telemetry.instant("hw_fs_free_bytes", begin + LONG_S / 2)
            assert {s.value for s in space} == {1048576.0}
            assert [(s.labels["host"], s.labels["mount"]) for s in space] == [
                (host, "scratch-ffff") for host in ("n1", "n2", "n3")
            ]
