"""NFS: the right columns for each mount and operation."""

from __future__ import annotations

from pathlib import Path

import pytest
from sysfs_trees import Sample, mutate, put, samples, series

from trackwalker.node.collectors.filesystem import NFS_METRICS, NfsCollector

STATS = """\
device proc mounted on /proc with fstype proc
device srv:/export mounted on /shared\\040data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp
\tage:\t3600
\tbytes:\t1 2 3 4 5 6 7 8
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 2 0 0 1234 1234 0 1234 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 100 103 1 12000 8192000 50 2500 2600 4
\t       WRITE: 200 200 0 8192000 24000 60 9000 9100 0
\t   LAYOUTGET: 9 9 0 1 1 1 1 1 0
device /dev/vda mounted on / with fstype ext4
"""


def nfs(root: Path, text: str) -> dict[Sample, float]:
    put(root / "self", {"mountstats": text.rstrip("\n")})
    return samples(NfsCollector("n1", str(root)).collect())


def test_nfs_counters(tmp_path: Path) -> None:
    names = ("ops", "retrans", "timeouts", "rtt_seconds", "queue_seconds", "exec_seconds", "errors")
    rows = {"READ": (100, 3, 1, 2.5, 0.05, 2.6, 4), "WRITE": (200, 0, 0, 9.0, 0.06, 9.1, 0)}
    expected = {
        series(f"hw_nfs_{name}_total", mount="/shared data", op=op): value
        for op, values in rows.items()
        for name, value in zip(names, values, strict=True)
    }
    assert nfs(tmp_path, STATS) == expected
    assert {name for name, _ in expected} == set(NFS_METRICS)


def test_nfs_counters_follow_their_source(tmp_path: Path) -> None:
    before = nfs(tmp_path, STATS)
    collector = NfsCollector("n1", str(tmp_path))
    mutate(tmp_path)
    moved = samples(collector.collect())
    assert moved.keys() == before.keys()
    changed = {key for key in before if before[key] != moved[key]}
    assert {name for name, _ in before} - {name for name, _ in changed} == {"hw_nfs_retrans_total"}  # both sides moved
    put(tmp_path / "self", {"mountstats": STATS.replace("100 103", "100 150")})
    assert samples(collector.collect())[series("hw_nfs_retrans_total", mount="/shared data", op="READ")] == 50


@pytest.mark.parametrize("bad", ["READ: 100 103", "READ: 1 2 3 4 5 6 7 x 9", "READ:", "READ 1"])
def test_a_damaged_nfs_line_costs_itself_only(tmp_path: Path, bad: str) -> None:
    whole = nfs(tmp_path, STATS)
    got = nfs(tmp_path, STATS.replace("READ: 100 103 1 12000 8192000 50 2500 2600 4", bad))
    assert got == {key: value for key, value in whole.items() if ("op", "READ") not in key[1]}


def test_a_kernel_without_the_error_column(tmp_path: Path) -> None:
    got = nfs(tmp_path, STATS.replace("2600 4", "2600"))
    assert series("hw_nfs_errors_total", mount="/shared data", op="READ") not in got
    assert got[series("hw_nfs_ops_total", mount="/shared data", op="READ")] == 100


def test_a_mount_over_a_mount_counts_once(tmp_path: Path) -> None:
    got = nfs(tmp_path, STATS + STATS.replace("READ: 100", "READ: 77"))
    assert got[series("hw_nfs_ops_total", mount="/shared data", op="READ")] == 77


def test_without_nfs_there_is_nothing(tmp_path: Path) -> None:
    assert samples(NfsCollector("n1", str(tmp_path)).collect()) == {}
    assert nfs(tmp_path, "device /dev/vda mounted on / with fstype ext4\n") == {}
