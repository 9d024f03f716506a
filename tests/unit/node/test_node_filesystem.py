"""The file-system probe: real operations in a real child, and a mount that hangs costs nobody else."""
# ruff: noqa: F811 - a fixture is imported, and then asked for by name

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dead_mount import dead_mount  # noqa: F401
from sysfs_trees import Sample, put, samples, series

from trackwalker.job.processes import read_stat
from trackwalker.node.collectors import filesystem
from trackwalker.node.collectors.filesystem import METRICS, FilesystemCollector
from trackwalker.node.exporter.exposition import Family

pytestmark = pytest.mark.starts_processes

OPERATIONS = {"create", "write", "read", "rename", "stat", "unlink"}
Make = Callable[..., FilesystemCollector]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[FilesystemCollector] = []

    def collector(*directories: Path, **options: float) -> FilesystemCollector:
        options = {"interval": 0.05, "deadline": 10.0, "patience": 5.0, **options}
        made.append(FilesystemCollector("n1", [str(d) for d in directories], **options))
        return made[-1]

    yield collector
    for one in made:
        one.close()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """File systems on which fsync does not return while there is a file `hang`."""
    source = filesystem.fsprobe_source()
    stuck = b"[time.sleep(0.01) for _ in iter(lambda: os.path.exists(os.path.dirname(path) + '/hang'), False)]"
    monkeypatch.setattr(filesystem, "fsprobe_source", lambda: source.replace(b"os.fsync(fd)", stuck))
    yield
    for file in tmp_path.rglob("hang"):
        file.unlink()


def until(collector: FilesystemCollector, good: Callable[[dict[Sample, float]], bool]) -> dict[Sample, float]:
    """Collect until the samples are as wanted."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        got = samples(collector.collect())
        if good(got):
            return got
        time.sleep(0.01)
    raise AssertionError(f"never: {got}")


def server(collector: FilesystemCollector) -> int:
    process = collector._server._process
    assert process is not None
    return process.pid


def children(pid: int) -> list[int]:
    """Living child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def hopeless(collector: FilesystemCollector) -> None:
    """Give up on the first directory's child that is under way now; later ones have the usual time."""
    collector._probes["0"]._began -= 3600


def states(pid: int) -> str:
    """The states of a process' children, a letter each."""
    return "".join(stat.state for stat in map(read_stat, children(pid)) if stat)


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z"


def is_wedged(directory: Path, value: int) -> Callable[[dict[Sample, float]], bool]:
    return lambda got: got.get(series("hw_fs_probe_wedged", mount=str(directory))) == value


def test_every_operation_is_timed_and_no_file_stays(tmp_path: Path, make: Make) -> None:
    (tmp_path / "mine").write_text("stays")
    collector = make(tmp_path)
    got = samples(collector.collect())
    times = {dict(labels)["op"]: value for (name, labels), value in got.items() if name == "hw_fs_probe_seconds"}
    assert times.keys() == OPERATIONS
    assert all(0 < seconds < 5 for seconds in times.values())
    assert got[series("hw_fs_probe_wedged", mount=str(tmp_path))] == 0
    size = shutil.disk_usage(tmp_path).total
    assert got[series("hw_fs_size_bytes", mount=str(tmp_path))] == size
    assert 0 < got[series("hw_fs_free_bytes", mount=str(tmp_path))] < size
    assert os.listdir(tmp_path) == ["mine"]
    until(collector, lambda again: again.keys() == got.keys() and again != got)  # measured anew


def test_an_operation_that_fails_is_named_and_those_after_it_are_absent(tmp_path: Path, make: Make) -> None:
    got = samples(make(tmp_path / "missing", interval=60).collect())
    mount = str(tmp_path / "missing")
    assert got[series("hw_fs_probe_errors_total", mount=mount, op="create", error="ENOENT")] == 1
    assert got[series("hw_fs_probe_wedged", mount=mount)] == 0
    assert not any(name == "hw_fs_probe_seconds" for name, _ in got)


def test_a_mount_that_hangs_is_wedged_and_delays_no_other(tmp_path: Path, make: Make, hanging: None) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    put(bad, {"hang": ""})
    good.mkdir()
    collector = make(bad, good, patience=0.2)
    begin = time.monotonic()
    first = samples(collector.collect())
    assert time.monotonic() - begin < 5
    assert first.get(series("hw_fs_probe_pending_seconds", mount=str(bad)), 0) > 0
    until(collector, is_wedged(good, 0))
    hopeless(collector)
    got = until(collector, is_wedged(bad, 1))
    assert {dict(labels)["mount"] for name, labels in got if name == "hw_fs_probe_seconds"} == {str(good)}
    assert got[series("hw_fs_probe_wedged", mount=str(good))] == 0
    before = children(server(collector))
    until(collector, lambda got: not children(server(collector)))  # it was killed, and could be
    assert len(before) <= 2
    (bad / "hang").unlink()
    got = until(collector, is_wedged(bad, 0))
    assert series("hw_fs_probe_seconds", mount=str(bad), op="write") in got
    until(collector, lambda got: not os.listdir(bad))  # the killed child's file is gone too


def test_a_child_that_is_stopped_is_killed_and_replaced(tmp_path: Path, make: Make, hanging: None) -> None:
    put(tmp_path, {"hang": ""})
    collector = make(tmp_path, patience=0)
    until(collector, lambda got: len(os.listdir(tmp_path)) == 2)
    (child,) = children(server(collector))
    os.kill(child, signal.SIGSTOP)
    (tmp_path / "hang").unlink()
    hopeless(collector)
    until(collector, is_wedged(tmp_path, 1))
    until(collector, is_wedged(tmp_path, 0))
    assert child not in children(server(collector))


def test_a_child_that_cannot_die_gets_no_sibling(tmp_path: Path, make: Make, hanging: None) -> None:
    put(tmp_path, {"hang": ""})
    collector = make(tmp_path, patience=0)
    until(collector, lambda got: len(os.listdir(tmp_path)) == 2)
    (child,) = children(server(collector))
    os.kill(server(collector), signal.SIGSTOP)  # nobody carries out the kill, as in uninterruptible sleep
    hopeless(collector)
    until(collector, is_wedged(tmp_path, 1))
    collector._probes["0"]._next = 0
    for _ in range(20):
        collector.collect()
        assert children(server(collector)) == [child]
        time.sleep(0.01)
    (tmp_path / "hang").unlink()
    os.kill(server(collector), signal.SIGCONT)
    until(collector, is_wedged(tmp_path, 0))


def test_each_further_attempt_on_a_wedged_mount_waits_longer(tmp_path: Path, make: Make, hanging: None) -> None:
    put(tmp_path, {"hang": ""})
    collector = make(tmp_path, interval=0.01, deadline=0.02, patience=0)
    probe = collector._probes["0"]
    pauses = set()
    until(collector, lambda got: pauses.add(probe._pause) or len(pauses) >= 5)  # type: ignore[func-returns-value]
    assert sorted(pauses) == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16])


def test_a_result_too_old_is_withheld(tmp_path: Path, make: Make) -> None:
    collector = make(tmp_path, interval=60)
    assert any(name == "hw_fs_probe_seconds" for name, _ in samples(collector.collect()))
    assert any(name == "hw_fs_probe_seconds" for name, _ in samples(collector.collect()))  # not due, still fresh
    collector._probes["0"]._measured -= 121
    assert not any(name == "hw_fs_probe_seconds" for name, _ in samples(collector.collect()))


def test_close_ends_all_processes_and_a_killed_child_leaves_no_file(tmp_path: Path, make: Make, hanging: None) -> None:
    put(tmp_path, {"hang": ""})
    collector = make(tmp_path, interval=60, patience=0)
    until(collector, lambda got: len(os.listdir(tmp_path)) == 2)
    hopeless(collector)
    until(collector, is_wedged(tmp_path, 1))
    until(collector, lambda got: not children(server(collector)))
    assert len(os.listdir(tmp_path)) == 2  # hang, and what the killed child left
    pid = server(collector)
    collector.close()
    assert not Path(f"/proc/{pid}").exists()
    end = time.monotonic() + 10
    while os.listdir(tmp_path) != ["hang"]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_when_the_agent_dies_its_probes_do_too(tmp_path: Path, make: Make, hanging: None) -> None:
    put(tmp_path, {"hang": ""})
    collector = make(tmp_path, patience=0)
    until(collector, lambda got: bool(children(server(collector))))
    pid = server(collector)
    (child,) = children(pid)
    process = collector._server._process
    assert process
    assert process.stdin
    assert process.stdout
    process.stdin.close()  # what a death of the agent looks like from there
    process.stdout.close()
    process.wait(10)
    (tmp_path / "hang").unlink()  # and the server comes back
    end = time.monotonic() + 10
    while runs(child) or os.listdir(tmp_path):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_server_that_dies_is_replaced_a_few_times_only(tmp_path: Path, make: Make) -> None:
    collector = make(tmp_path, interval=0.0, patience=0.5)
    pids = []
    for _ in range(4):
        collector.collect()
        pids.append(server(collector))
        os.kill(pids[-1], signal.SIGKILL)
        os.waitid(os.P_PID, pids[-1], os.WEXITED | os.WNOWAIT)
    collector.collect()
    assert collector._server._process is None
    assert len(set(pids)) == 4


def test_a_child_in_uninterruptible_sleep_gets_no_sibling_and_stops_nobody(
    dead_mount: tuple[Path, int], tmp_path: Path, make: Make
) -> None:
    place, device = dead_mount
    good = tmp_path / "good"
    good.mkdir()
    collector = make(place, good, interval=60, patience=0)
    collector.collect()
    os.read(device, 1 << 17)  # the mount's server takes the child's request, and that is all
    hopeless(collector)
    until(collector, is_wedged(place, 1))
    until(collector, is_wedged(good, 0))
    until(collector, lambda got: states(server(collector)) == "D")  # killed, and still there
    stuck = children(server(collector))
    for _ in range(20):
        collector._probes["0"]._next = 0  # it would be time for the next
        begin = time.monotonic()
        assert is_wedged(place, 1)(samples(collector.collect()))
        assert time.monotonic() - begin < 1
        assert children(server(collector)) == stuck
        time.sleep(0.01)
    write = series("hw_fs_probe_seconds", mount=str(good), op="write")
    before = samples(collector.collect())[write]
    collector._probes["1"]._next = 0
    until(collector, lambda got: got.get(write, before) != before)  # the other mount is probed as ever
    begin = time.monotonic()
    collector.close()
    assert time.monotonic() - begin < 5


def test_no_directories_no_process(make: Make) -> None:
    collector = make()
    assert samples(collector.collect()) == {}
    assert collector._server._process is None


def test_all_declared_metrics_are_known(tmp_path: Path, make: Make, hanging: None) -> None:
    bad = tmp_path / "bad"
    put(bad, {"hang": ""})
    collector = make(bad, tmp_path, tmp_path / "missing", patience=1.0, interval=60)
    families: list[Family] = collector.collect()
    assert {family.name for family in families if family.samples} == set(METRICS)
