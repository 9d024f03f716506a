"""Whose lines are whose in forms of other launchers, and what a rank says of itself before what the others say."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import triage_text

from trackwalker.logs.failures.kinds import kind_of, kind_of_cause
from trackwalker.logs.failures.structure import read
from trackwalker.logs.scanning.lines import Body

STEPS = [f"step {s} loss {9.1 - s / 20:.4f} lr 1.0e-4 tok/s 48121" for s in range(12)]
SAID = "slab server turned the request for 96 MiB down"
LOST = "exchange: lost rank 5, leaving the ring"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"


def _first(tmp_path: Path, lines: list[str]) -> tuple[str, int | None, str | None]:
    found = triage_text(tmp_path, "\n".join(lines) + "\n").primary
    assert found is not None
    return found.cause, found.rank, found.host


def test_lines_below_a_heading_are_the_ranks_it_names(tmp_path: Path) -> None:
    lines = [f"[gpu-{i}] composer launcher: ranks {4 * i}-{4 * i + 3}" for i in range(4)] + STEPS
    lines += ["ERROR:composer.cli.launcher:Rank 5 crashed with exit code 1."]
    for rank, said in ((1, RESET), (5, SAID), (9, RESET), (14, RESET)):
        lines += [f"----------Begin global rank {rank} STDERR----------", said]
        lines += [f"----------End global rank {rank} STDERR----------"]
    assert _first(tmp_path, lines) == ("unclassified", 5, "gpu-1")


def test_a_process_of_a_journal_is_the_rank_it_says_it_is(tmp_path: Path) -> None:
    def wrote(rank: int, text: str) -> str:
        return f"Nov 14 09:00:{rank:02d} node{rank // 4:02d} trainer[{4000 + rank}]: {text}"

    lines = [wrote(r, f"starting rank {r} of 16") for r in range(16)] + [wrote(0, s) for s in STEPS]
    lines += [wrote(2, RESET), wrote(7, RESET), wrote(5, f"ERROR pool: {SAID}"), wrote(11, RESET)]
    assert _first(tmp_path, lines) == ("unclassified", 5, "node01")


@pytest.mark.parametrize("label", ["[1,mpirank:{0},algo-{1}]<stderr>:", "Sat Nov 14 09:00:00 2026[{0}]<stderr>:"])
def test_labels_of_horovod_and_sagemaker(tmp_path: Path, label: str) -> None:
    lines = [label.format(0, 1) + s for s in STEPS]
    lines += [label.format(r, r // 4 + 1) + t for r, t in ((3, RESET), (5, f"ERROR {SAID}"), (8, RESET), (9, RESET))]
    assert _first(tmp_path, lines)[:2] == ("unclassified", 5)


def test_files_of_ranks_that_one_file_holds(tmp_path: Path) -> None:
    lines = []
    for rank in range(6):
        lines += [f"==> logs/rank_{rank:02d}.err <==", f"hostname: node{rank:02d}", *STEPS]
        lines += [SAID if rank == 5 else RESET, ""]
    assert _first(tmp_path, lines) == ("unclassified", 5, "node05")


def test_the_signal_that_the_launcher_sends_is_no_cancel_by_a_user(tmp_path: Path) -> None:
    lines = [f"[rank{r}]: host node{r // 4:02d}" for r in range(16)] + [f"[rank0]: {s}" for s in STEPS]
    told = "Received signal 15, shutting down"
    lines += [f"[rank2]: {told}", f"[rank5]: ERROR pool: {SAID}", f"[rank7]: {told}", f"[rank9]: {told}"]
    assert _first(tmp_path, lines)[:2] == ("unclassified", 5)


def test_an_exception_says_what_the_line_above_it_announces(tmp_path: Path) -> None:
    lines = [f"{r}: task {r} on node{r // 4:02d}" for r in range(16)] + [f"0: {s}" for s in STEPS]
    lines += ["5: ERROR trainer: unhandled error, leaving the training loop", "5: Traceback (most recent call last):"]
    lines += ['5:   File "/opt/x/train.py", line 9, in main', "5:     go()", f"5: pool.slab.SlabRefused: {SAID}"]
    lines += [f"{r}: {RESET}" for r in (2, 7, 9)] + ["srun: error: node01: task 5: Exited with exit code 1"]
    found = triage_text(tmp_path, "\n".join(lines) + "\n").primary
    assert found is not None
    assert (found.cause, found.rank, found.kind) == ("python-exception", 5, "memory")


def test_what_came_after_the_scheduler_said_why_is_its_consequence(tmp_path: Path) -> None:
    lines = ["slurmstepd: error: *** JOB 91 ON node01 CANCELLED AT 2026-08-02T21:40:12 DUE TO PREEMPTION ***"]
    lines += ["[rank5]: [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)"]
    assert _first(tmp_path, lines)[0] == "preempted"


def test_steps_that_wait_for_their_data(tmp_path: Path) -> None:
    lines = [f"Train Epoch: 0 [{n}/9000] Data (t): 9.{n} Batch (t): 10.{n}, 31/s Loss: 3.1" for n in range(1, 7)]
    assert _first(tmp_path, lines)[0] == "input-stall"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("asked for 805306368 bytes, zone 1 has 2 MiB left", "memory"),
        ("step took 412 s, allowed are 120 s", "time"),
        ("roll call ended with 15 names, 16 were invited", "rendezvous"),
        ("pipeline depth 5 cannot split 48 layers evenly", "configuration"),
        ("lane 2 to 10.9.1.14 went dark in the middle of bucket 33", "network"),
    ],
)
def test_the_class_is_that_of_verbs_sizes_and_durations(text: str, kind: str) -> None:
    assert kind_of([text]) == kind


def test_a_hosts_name_is_no_word() -> None:
    assert kind_of(["stream to gpu-a3-195 said goodbye"], hosts=["gpu-a3-195"]) == "network"


def test_words_choose_among_the_classes_of_a_cause() -> None:
    assert kind_of_cause("peer-died", "A worker died by an unexpected system error") == "program"
    assert kind_of_cause("peer-died", "Connection closed by peer [10.0.0.1]:4000, network error") == "network"


def test_what_could_not_be_done_is_no_end() -> None:
    told = read(Body("could not seal segment 44, filer returned code 71", 5, None, False, None))
    assert told is not None
    assert not told.is_end
    assert read(Body("roll call ended with 15 names", 5, None, False, None)) is None
