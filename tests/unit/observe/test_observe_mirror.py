"""The mirror: whole at every moment, whatever happens to either side."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trackwalker.errors import TrackwalkerError
from trackwalker.observe import mirror as module
from trackwalker.observe.live import LiveDir
from trackwalker.observe.mirror import Mirror, seed
from trackwalker.observe.tsdb import list_parts

OLD_A, OLD_B, MERGED = "01AAAAAAAAAAAAAAAAAAAAAAAA", "01BBBBBBBBBBBBBBBBBBBBBBBB", "01CCCCCCCCCCCCCCCCCCCCCCCC"


class Bench:
    """A pretended live database beside its mirror."""

    def __init__(self, root: Path) -> None:
        self.live, self.job = root / "live", root / "job"
        self.copy = self.job / "prometheus"
        self.log = root / "prometheus.log"
        (self.live / "wal").mkdir(parents=True)
        self.job.mkdir()
        self.log.write_bytes(b"")
        self.said: list[str] = []
        self.mirror = self.another()

    def another(self) -> Mirror:
        return Mirror(self.live, self.copy, self.log, self.said.append)

    def segment(self, number: int, data: bytes) -> None:
        with (self.live / "wal" / f"{number:08d}").open("ab") as f:
            f.write(data)

    def block(self, name: str, parents: tuple[str, ...] = ()) -> None:
        (self.live / name / "chunks").mkdir(parents=True)
        (self.live / name / "chunks" / "000001").write_bytes(b"c" * 5000)
        (self.live / name / "index").write_bytes(b"i" * 5000)
        meta = {"ulid": name, "version": 1, "minTime": 0, "maxTime": 1}
        meta["compaction"] = {"level": 1, "sources": [name], "parents": [{"ulid": p} for p in parents]}
        (self.live / name / "meta.json").write_text(json.dumps(meta))

    def checkpoint(self, number: int) -> None:
        folder = self.live / "wal" / f"checkpoint.{number:08d}"
        folder.mkdir()
        (folder / "00000000").write_bytes(b"k" * 100)
        for n in range(number + 1):
            (self.live / "wal" / f"{n:08d}").unlink(missing_ok=True)

    def same(self) -> bool:
        return tree(self.live) == {k: v for k, v in tree(self.copy).items() if k != self.log.name}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_segments_are_continued_by_offset_not_copied_again(bench: Bench) -> None:
    bench.segment(0, b"a" * 1000)
    assert bench.mirror.sync()
    inode = (bench.copy / "wal" / "00000000").stat().st_ino
    bench.segment(0, b"b" * 500)
    bench.segment(1, b"c")
    bench.log.write_bytes(b"a log line\n")
    assert bench.mirror.sync()
    assert bench.same()
    assert (bench.copy / "wal" / "00000000").stat().st_ino == inode
    assert (bench.copy / "prometheus.log").read_bytes() == b"a log line\n"


def test_a_new_recorder_goes_on_where_the_killed_one_stopped(bench: Bench) -> None:
    bench.segment(0, b"a" * 1000)
    bench.mirror.sync()
    inode = (bench.copy / "wal" / "00000000").stat().st_ino
    bench.segment(0, b"b" * 10)
    (bench.copy / "wal" / "checkpoint.00000009.tmp-for-creation").mkdir()  # it was killed at work
    assert bench.another().sync()
    assert bench.same()
    assert (bench.copy / "wal" / "00000000").stat().st_ino == inode
    assert not list(bench.copy.rglob("*.tmp*"))


def test_a_segment_that_prometheus_repaired_is_taken_anew(bench: Bench) -> None:
    bench.segment(0, b"good" * 100 + b"torn")
    bench.mirror.sync()
    path = bench.live / "wal" / "00000000"
    path.rename(path.with_suffix(".repair"))
    path.write_bytes(b"GOOD" * 200)  # longer than what was copied, so the size alone would not tell
    path.with_suffix(".repair").unlink()
    assert bench.mirror.sync()
    assert bench.same()


def test_a_partial_append_is_continued_from_the_real_size(bench: Bench) -> None:
    bench.segment(0, b"a" * 1000)
    bench.mirror.sync()
    bench.segment(0, b"b" * 5000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))  # as a disk that fills up: takes a part, then refuses
    try:
        assert not bench.mirror.sync()
        assert not bench.mirror.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (bench.copy / "wal" / "00000000").read_bytes() == b"a" * 1000 + b"b" * 2000
    assert len(bench.said) == 1, "told once, not at every try"
    assert bench.mirror.sync()
    assert bench.same()
    assert bench.said[1] == "mirror: working again"


def test_a_vanished_job_directory_is_contained_and_not_made_anew(bench: Bench) -> None:
    bench.segment(0, b"a" * 1000)
    bench.mirror.sync()
    bench.job.rename(bench.job.with_name("away"))
    bench.segment(0, b"b")
    assert not bench.mirror.sync()
    assert not bench.job.exists()
    bench.job.with_name("away").rename(bench.job)
    assert bench.mirror.sync()
    assert bench.same()


def test_what_was_merged_and_truncated_goes_only_after_its_successor_is_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.block(OLD_A)
    bench.block(OLD_B)
    for n in range(4):
        bench.segment(n, b"s" * 100)
    assert bench.mirror.sync()
    before = tree(bench.copy)
    shutil.rmtree(bench.live / OLD_A)
    shutil.rmtree(bench.live / OLD_B)
    bench.block(MERGED, (OLD_A, OLD_B))
    bench.checkpoint(2)

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(module, "_copy_tree", full)
        assert not bench.mirror.sync()
        assert tree(bench.copy) == before
    assert bench.mirror.sync()
    assert bench.same()


def test_what_vanished_without_a_successor_is_kept(bench: Bench) -> None:
    bench.block(OLD_A)
    bench.segment(0, b"a")
    bench.segment(1, b"b")
    bench.mirror.sync()
    before = tree(bench.copy)
    shutil.rmtree(bench.live / OLD_A)  # a cleaner of /tmp went by
    (bench.live / "wal" / "00000000").unlink()
    assert bench.mirror.sync()
    assert tree(bench.copy) == before


def test_a_block_that_goes_while_it_is_copied_is_left_to_the_next_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.block(OLD_A)
    bench.segment(0, b"a")
    original: Callable[[Path, Path], None] = module._copy_durably

    def slow(source: Path, target: Path) -> None:
        if OLD_A in str(source):
            shutil.rmtree(bench.live / OLD_A)
            bench.block(MERGED, (OLD_A,))
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_copy_durably", slow)
        assert not bench.mirror.sync()
    assert bench.said == []
    assert bench.mirror.sync()
    assert list_parts(bench.copy).blocks == (MERGED,)
    assert not list(bench.copy.rglob("*.tmp*"))


def test_a_run_that_moves_goes_on_from_the_mirror_and_the_old_machine_cannot_undo_it(bench: Bench) -> None:
    shutil.rmtree(bench.live)
    seed(bench.copy, bench.live, bench.log)
    bench.segment(0, b"first machine")
    assert bench.mirror.sync()
    second = Bench(bench.live.parent / "second")
    shutil.rmtree(second.live)
    seed(bench.copy, second.live, second.log)
    elsewhere = Mirror(second.live, bench.copy, second.log, print)
    second.segment(0, b", second machine")
    assert elsewhere.sync()
    assert (bench.copy / "wal" / "00000000").read_bytes() == b"first machine, second machine"
    bench.segment(0, b", old data again")
    assert not bench.mirror.sync()
    assert "follows another database" in bench.said[0]
    assert (bench.copy / "wal" / "00000000").read_bytes() == b"first machine, second machine"


def test_local_data_older_than_the_mirror_are_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKWALKER_LOCAL", str(tmp_path / "local"))
    job = tmp_path / "job"
    (job / "prometheus" / "wal").mkdir(parents=True)
    here = LiveDir(job, "7/1")
    here.claim()
    assert here.root.name.startswith("7_1-")
    assert here.root.stat().st_mode & 0o777 == 0o700
    here.prepare(print)
    (here.data / "wal" / "00000000").write_bytes(b"old")
    (job / "prometheus" / "mirror-of").write_text("somebody-else")
    (job / "prometheus" / "wal" / "00000000").write_bytes(b"newer")
    here.prepare(print)
    assert (here.data / "wal" / "00000000").read_bytes() == b"newer"
    assert [p.read_bytes() for p in here.root.glob("stale-*/wal/00000000")] == [b"old"]


def test_two_recorders_of_one_job_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKWALKER_LOCAL", str(tmp_path / "local"))
    first = LiveDir(tmp_path, "1")
    first.claim()
    with pytest.raises(TrackwalkerError, match="another recorder"):
        LiveDir(tmp_path, "1").claim()
    first.remove()
    LiveDir(tmp_path, "1").claim()


def test_a_local_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACKWALKER_LOCAL", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"trackwalker-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(TrackwalkerError, match="belongs to somebody else"):
        LiveDir(tmp_path, "1").claim()
