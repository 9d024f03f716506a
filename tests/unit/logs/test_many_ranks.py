"""A file for each of very many ranks: who failed first is found among them, with bounded work and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers import step_line

from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.logs.failures.mined import _MOST_NEW, _MOST_RANKS, Mined, new_errors
from trackwalker.logs.failures.whereabouts import telling
from trackwalker.logs.scanning import shares
from trackwalker.logs.scanning.index import LogIndex, index_logs
from trackwalker.logs.scanning.lines import parse
from trackwalker.logs.scanning.steps import Steps, clocks_off

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
LOST = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"


def stamped(second: int, text: str) -> str:
    return f"2026-11-16 10:{second // 60:02d}:{second % 60:02d}.000 {text}"


def said(rank: int, steps: int, end: str, at: int) -> str:
    """One rank's file: where it runs, its steps, its last words."""
    lines = [f"gpu{rank // 8:05d}:88:99 [0] NCCL INFO comm 0x5 rank {rank} nranks 10000 cudaDev 0 - Init COMPLETE\n"]
    lines += [stamped(step, step_line(step) + "\n") for step in range(steps)]
    return "".join(lines) + (stamped(at, end) if end else "")


def a_job(tmp_path: Path, files: dict[int, str]) -> Job:
    log, folder = tmp_path / "7-JAX-m.log", tmp_path / "7-JAX-m"
    folder.mkdir()
    log.write_text(files[0])
    for rank, text in files.items():
        if rank:
            (folder / f"rank-{rank}.log").write_text(text)
    return Job("7", log, folder)


def test_the_first_failing_rank_may_have_any_number(tmp_path: Path) -> None:
    files = {rank: said(rank, 20, LOST, 50) for rank in (0, 7, 4095, 4096, 99_990)} | {9_000: said(9_000, 20, OOM, 40)}
    found = triage(a_job(tmp_path, files))
    assert (found.roles.first_rank, found.roles.first_host) == (9_000, "gpu01125")
    assert found.primary is not None
    assert (found.primary.cause, found.primary.file) == ("oom-gpu", "rank-9000.log")


def test_a_folder_of_rank_files_is_read_beyond_the_four_thousandth(tmp_path: Path) -> None:
    for rank in range(4200):
        (tmp_path / f"rank_{rank}.log").write_text("\n")
    job = resolve(str(tmp_path), tmp_path)
    assert len(job.more) == 4199


@pytest.mark.starts_processes
def test_processes_find_together_what_one_finds_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {r: said(r, 20 + r % 3, LOST if r % 4 else "RuntimeError: the odd flux is out\n", 50) for r in range(40)}
    files[31] = said(31, 20, OOM, 40)
    job = a_job(tmp_path, files)
    alone = triage(job)
    asked: list[int] = []
    real = shares.share_out
    monkeypatch.setattr(shares, "_WORTH", 0)
    monkeypatch.setattr(shares, "share_out", lambda work, parts: (asked.append(len(parts)), real(work, parts))[1])
    monkeypatch.setattr(shares.os, "sched_getaffinity", lambda _: {0, 1, 2})
    together = triage(job)
    assert asked == [3]
    assert plain(together.index) == plain(alone.index)
    assert together.to_dict() | {"cost": 0} == alone.to_dict() | {"cost": 0}


@pytest.mark.starts_processes
def test_processes_know_what_the_main_log_tells_of_who_is_who(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of whole nodes: how many ranks each holds stands in the main log only."""
    files = {node: f"[default{node % 8}]:{stamped(50, LOST)}" for node in range(1, 12)}
    files |= {0: "NPROC_PER_NODE=8\n" + said(0, 20, LOST, 50), 9: f"[default3]:{stamped(40, OOM)}"}
    job = a_job(tmp_path, files)
    assert job.log is not None
    assert job.dir is not None
    others = {node: job.dir / f"rank-{node}.log" for node in range(1, 12)}
    alone = index_logs(job.log, others)
    monkeypatch.setattr(shares, "_WORTH", 0)
    monkeypatch.setattr(shares.os, "sched_getaffinity", lambda _: {0, 1, 2})
    together = index_logs(job.log, others)
    assert {hit.rank for hit in together.hits if hit.signature.id == "oom-gpu"} == {9 * 8 + 3}
    assert plain(together) == plain(alone)


def test_what_is_tried_again_in_one_file_is_not_taken_from_another(tmp_path: Path) -> None:
    tried = stamped(50, OOM) + stamped(51, "Retrying in 5 seconds\n")
    job = a_job(tmp_path, {0: stamped(40, LOST), 1: stamped(50, OOM) + stamped(51, "ERROR the end\n"), 2: tried})
    assert job.log is not None
    assert job.dir is not None
    index = index_logs(job.log, {rank: job.dir / f"rank-{rank}.log" for rank in (1, 2)})
    assert {hit.rank for hit in index.hits if hit.signature.id == "oom-gpu"} == {1}


def plain(index: LogIndex) -> LogIndex:
    """Without what is only remembered between questions."""
    return replace(index, facts=None, _timed=(-1, False), _tasks=(-1, -1))  # type: ignore[arg-type]


def test_of_a_rank_file_the_last_step_counts(tmp_path: Path) -> None:
    huge = said(2, 30_000, "", 0)  # several pieces
    cut = said(3, 11, "", 0)[:-4]  # the last line lacks its end, its step does not
    job = a_job(tmp_path, {0: said(0, 12, "", 0), 1: said(1, 9, "", 0), 2: huge, 3: cut})
    assert job.log is not None
    assert job.dir is not None
    index = index_logs(job.log, {r: job.dir / f"rank-{r}.log" for r in (1, 2, 3)})
    assert index.steps.last_by_rank == {0: 11, 1: 8, 2: 29_999, 3: 10}


def test_steps_that_are_not_numbered_are_counted(tmp_path: Path) -> None:
    line = "{{'loss': {0}.5, 'grad_norm': 1.25, 'learning_rate': 2e-05, 'epoch': 0.{0}}}\n"
    files = {r: "".join(line.format(i) for i in range(5 + r)) for r in range(2)}
    job = a_job(tmp_path, files)
    assert job.log is not None
    assert job.dir is not None
    index = index_logs(job.log, {1: job.dir / "rank-1.log"})
    assert index.steps.last_by_rank == {0: 5, 1: 6}  # so many lines


def test_a_clock_that_is_seconds_off_misleads_nobody(tmp_path: Path) -> None:
    """All fail in the same words; rank 9 was first, on a host whose clock is five seconds ahead."""

    def file(rank: int) -> str:
        ahead, ends = 5 if rank // 8 == 1 else 0, 40 if rank == 9 else 43
        lines = [f"gpu{rank // 8:05d}:88:99 [0] NCCL INFO comm 0x5 rank {rank} nranks 24 cudaDev 0 - Init COMPLETE\n"]
        # Rank 9 did not live to complete the last step.
        lines += [stamped(step + ahead, step_line(step) + "\n") for step in range(20 - (rank == 9))]
        return "".join(lines) + stamped(ends + ahead, OOM)

    found = triage(a_job(tmp_path, {rank: file(rank) for rank in range(24)}))
    assert found.index.clocks_off.keys() == set(range(8, 16))
    assert (found.roles.first_rank, found.roles.first_host) == (9, "gpu00001")


@pytest.mark.parametrize("off", [0.0, 0.9])
def test_clocks_that_are_right_to_a_second_are_left_alone(off: float) -> None:
    seen = {rank: (7, 100.0 + (off if rank == 3 else 0.0)) for rank in range(6)}
    assert clocks_off(seen, {}) == {}
    assert clocks_off({0: (7, 1.0), 1: (7, 90.0)}, {}) == {}, "two do not tell who is right"


def mined(lines: list[tuple[int, str]]) -> Mined:
    kept = Mined()
    for rank, text in lines:
        body = parse(text.encode(), b"", rank)
        assert body is not None
        kept.take(body, f"rank-{rank}.log", 9)
    return kept


def test_ten_thousand_complaints_leave_room_for_the_odd_one() -> None:
    everyone = [
        (rank, stamped(60 + rank % 30, f"ERROR: {words}\n"))
        for words in ("the flux is gone", "giving up on the barrier", "queue drained", "no reply from the hub", "ended")
        for rank in range(600)
    ]
    kept = mined([*everyone, (5000, stamped(50, "ERROR: the muon counter jammed\n"))])
    found = new_errors(kept, Steps(), "rank-0.log")
    assert len(found) == _MOST_NEW
    assert min(found, key=lambda s: s.clock or 0.0).rank == 5000


def test_of_many_who_complain_alike_the_first_in_time_are_kept() -> None:
    lines = [(rank, stamped(500 - (rank == 3000), "ERROR: the flux is gone\n")) for rank in range(3001)]
    kept = mined(lines).all()
    assert len(kept) == _MOST_RANKS
    assert 3000 in {s.rank for s in kept}


def test_only_lines_with_a_telling_word_are_looked_at() -> None:
    text = b"a\nrank 1 on gpu1\nb\nhost gpu2 rank\n\nlast kernel"
    assert telling(text, b"", of_one_rank=False) == [b"rank 1 on gpu1", b"host gpu2 rank", b"last kernel"]
    assert len(telling(b"rank 1\n" * 5000, b"rank 2\n" * 5000, of_one_rank=True)) == 200
