"""Stacks of many ranks: real outputs of three tools, equal ones together, and who is named or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conftest import ROOT
from trackwalker.logs.formats.flight_recorder import stragglers
from trackwalker.logs.formats.stacks import Frame, RankStack, group, main_thread, odd_ones, parse, place

REAL = ROOT / "tests" / "data" / "stacks"  # of a four-process run of the small trainer, rank 2 stopped by SIGSTOP

FAULTHANDLER = """\
Thread 0x00007f9c3effd6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/queue.py", line 140 in put
  File "/home/me/venv/lib/python3.11/site-packages/trackwalker/trainers/tiny/data.py", line 78 in _fill
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f9d55c1b740 (most recent call first):
  File "/home/me/venv/lib/python3.11/site-packages/jax/_src/array.py", line 623 in _value
  File "/home/me/venv/lib/python3.11/site-packages/jax/_src/array.py", line 300 in __float__
  File "/home/me/venv/lib/python3.11/site-packages/trackwalker/trainers/tiny/train.py", line 128 in train
  File "/home/me/venv/lib/python3.11/site-packages/trackwalker/trainers/tiny/__main__.py", line 44 in <module>
  File "<frozen runpy>", line 198 in _run_module_as_main
"""
GDB = """\
Thread 2 (Thread 0x7f9c3effd6c0 (LWP 31960) "data"):
#0  0x00007f94836a3f16 in ?? () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007f94836aed90 in sem_clockwait () from /lib/x86_64-linux-gnu/libc.so.6

Thread 1 (Thread 0x7f9d55c1b740 (LWP 31670) "python"):
#0  syscall () at ../sysdeps/unix/sysv/linux/x86_64/syscall.S:38
#1  0x00007f9d1c0de001 in ncclGroupEnd () from /usr/lib/libnccl.so.2
#2  0x00000000004a1b2c in main (argc=3, argv=0x7ffe9cd8b9d8) at ./Programs/python.c:15
"""
WAITS = (
    Frame("ArrayImpl._value", "jax/_src/array.py", 623),
    Frame("Trainer.train", "trackwalker/trainers/tiny/train.py", 128),
    Frame("<module>", "trackwalker/trainers/tiny/__main__.py", 44),
)
READS = (
    Frame("Queue.get", "queue.py", 171),
    Frame("Pipeline.take", "trackwalker/trainers/tiny/data.py", 70),
    *WAITS[1:],
)


def ranks(count: int, **odd: tuple[Frame, ...]) -> list[RankStack]:
    """Ranks that wait in a collective; `r2=frames` stands elsewhere."""
    return [RankStack(r, f"n{r}", "S", odd.get(f"r{r}", WAITS), later="S") for r in range(count)]


@pytest.mark.parametrize("name", ["rank-0.py-spy.txt", "rank-0.native.txt"])
def test_a_real_dump_of_pyspy_is_read(name: str) -> None:
    threads = parse((REAL / name).read_text())
    assert [t.name for t in threads][:2] == ["MainThread", "data"]
    main = main_thread(threads)
    assert main is not None
    assert main.frames[-1] == Frame("_run_module_as_main", "<frozen runpy>", 198)
    assert "Trainer.train (trackwalker/trainers/tiny/train.py:128)" in [str(f) for f in main.frames]
    assert RankStack(0, "n0", frames=main.frames).waits


def test_the_real_stopped_rank_stands_where_the_others_wait_and_only_its_state_tells() -> None:
    frames = [main_thread(parse((REAL / f"rank-{r}.py-spy.txt").read_text())) for r in (0, 2)]
    assert frames[0] is not None
    assert frames[1] is not None
    assert [f.key for f in frames[0].frames] == [f.key for f in frames[1].frames]
    stacks = [replace(stack, frames=frames[0].frames) for stack in ranks(4)]
    assert odd_ones(stacks) == []
    stacks[2] = replace(stacks[2], state="T", later="T")
    (odd,) = odd_ones(stacks)
    assert (odd.rank, odd.host) == (2, "n2")
    assert odd.why == "its process is stopped (state T) in ArrayImpl._value (jax/_src/array.py:623)"


def test_faulthandler_and_pyspy_agree_on_the_main_thread() -> None:
    main = main_thread(parse(FAULTHANDLER))
    assert main is not None
    assert str(main.frames[0]) == "_value (jax/_src/array.py:623)"
    assert RankStack(0, "n0", frames=main.frames).waits
    assert len(parse(FAULTHANDLER)) == 2


def test_a_gdb_backtrace_is_read_and_nccl_is_a_wait() -> None:
    main = main_thread(parse(GDB))
    assert main is not None
    assert [f.function for f in main.frames] == ["syscall", "ncclGroupEnd", "main"]
    assert RankStack(0, "n0", frames=main.frames).waits


def test_a_real_rank_whose_batch_does_not_come_stands_in_the_data_code() -> None:
    main = main_thread(parse((REAL / "rank-1.no-data.py-spy.txt").read_text()))
    assert main is not None
    stack = RankStack(1, "n1", "S", main.frames, later="S")
    assert (stack.waits, stack.in_data) == (False, True)
    assert place(stack) == " in Pipeline.take (trackwalker/trainers/tiny/data.py:70)", "Python's own files tell nothing"
    assert not RankStack(0, "n0", "S", WAITS).in_data


@pytest.mark.parametrize(
    "text", ["", "Thread", "Thread 1 (idle)\n" * 3, "    a (b:1)\n", "\0\xff\n#0 \n", "Thread x (("]
)
def test_foreign_text_gives_no_frames(text: str) -> None:
    assert not any(thread.frames for thread in parse(text))


def test_lines_do_not_part_a_group_but_calls_do() -> None:
    other_line = (replace(WAITS[0], line=700), *WAITS[1:])
    stacks = [*ranks(3, r1=other_line, r2=READS), RankStack(3, "n3")]
    together, alone = group(stacks)
    assert (together.ranks, together.waits) == ((0, 1), True)
    assert (alone.ranks, alone.place) == ((2,), "Pipeline.take (trackwalker/trainers/tiny/data.py:70)")


def test_who_is_not_in_the_collective_holds_the_others_up() -> None:
    assert [odd.rank for odd in odd_ones(ranks(4, r3=READS))] == [3]
    (odd,) = odd_ones([replace(s, later_frames=s.frames) for s in ranks(4, r3=READS)])
    assert odd.rank == 3
    assert "not in the collective that the others wait in, but in Pipeline.take" in odd.why


@pytest.mark.parametrize(
    "stacks",
    [
        ranks(4),  # all wait: the network, or somebody outside
        ranks(4, r0=READS, r1=READS),  # half of them elsewhere
        ranks(4, r0=READS, r1=READS, r2=READS),  # the one that waits is a witness
        [RankStack(r, f"n{r}") for r in range(4)],  # nothing was read
        [RankStack(0, "n0", "T", later="T")],  # alone there is nobody to compare with
        [replace(s, state="T", later="T") for s in ranks(4)],  # somebody stopped the whole job
        [replace(s, state="D", later="S") if s.rank == 1 else s for s in ranks(4)],  # reading a file for a moment
        [replace(s, state="T", later="S") if s.rank == 1 else s for s in ranks(4)],  # continued meanwhile
        [replace(s, later_frames=WAITS) for s in ranks(4, r3=READS)],  # it came later: a run that goes on
        [],
    ],
)
def test_nobody_is_named_when_it_is_not_clear_who_waits_for_whom(stacks: list[RankStack]) -> None:
    assert odd_ones(stacks) == []


def test_a_rank_that_stays_in_the_kernel_is_named_with_where() -> None:
    stacks = ranks(4)
    stacks[1] = replace(stacks[1], state="D", later="D", wchan="nfs_wait_bit_killable")
    (odd,) = odd_ones(stacks)
    assert odd.rank == 1
    assert "hangs in the kernel (nfs_wait_bit_killable)" in odd.why


def test_ras_names_who_is_behind_silent_or_dead() -> None:
    one_behind = """
#0-0 (1f) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 12
  Rank 1 has launched up to operation 9 -- GPU 1 managed by process 401 on node n2
"""
    (one,) = stragglers(one_behind)
    assert (one.pid, one.node, one.why) == (401, "n2", "has launched 9 operations, the others 12")
    dead = """
DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 77 on node n3 managing GPU 0

#0-0 (1f) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 3
"""
    assert [(s.pid, s.why) for s in stragglers(dead)] == [(77, "is considered dead by NCCL")]
    two_behind = """
#0-0 (2e) MISMATCH
  6 ranks have launched up to operation 30
  2 ranks have launched up to operation 29
  Rank 4 -- GPU 0 managed by process 41 on node n2
  Rank 5 -- GPU 1 managed by process 43 on node n2
"""
    assert [s.pid for s in stragglers(two_behind)] == [41, 43]
    assert stragglers("Job summary\n===\n  0 1 1 4 4 4 RUNNING OK\n") == []
