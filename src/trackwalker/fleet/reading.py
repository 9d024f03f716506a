"""Rows from logs: a few in this process, many in processes of their own, so that a server answers meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from itertools import chain, islice

from trackwalker.diagnose.triage import Triage, triage
from trackwalker.diagnose.verdict import Verdict
from trackwalker.errors import TrackwalkerError
from trackwalker.fleet.rows import JobRow, of_error, of_triage
from trackwalker.job.layout import Job
from trackwalker.record.accounting import ask
from trackwalker.record.read import Answer

Todo = tuple[Job, Verdict | None]
Read = tuple[Job, JobRow, float]  # and what it cost in seconds
Part = tuple[list[Todo], Answer]
_MANY = 200  # from here on the start of processes is worth it
_PART = 64  # jobs handed over at a time
_ASKED = 1000  # jobs in one question to the scheduler
_NICE = 5  # a third of an ordinary process's share: with 10 a list of 200 took over two minutes on a busy machine
_LOOK_S = 0.5  # how often a worker looks whether it is still wanted


def triaged(job: Job, answer: Answer) -> Triage:
    """What a job's log says; the scheduler was asked already."""
    return triage(job, sacct=answer)


def read_rows(
    todo: Iterable[Todo], count: int, over: threading.Event, how: Callable[[Job, Answer], Triage] = triaged
) -> Iterator[Read]:
    """The rows of jobs that have a log, in their order; it ends early when `over` is set.

    A few are read by `how`, which may know what a log says already.
    """
    if count >= _MANY:
        yield from _in_processes(todo, over)
        return
    for part in _parts(todo, _ASKED):
        answer = _asked(part)
        for each in part:
            if over.is_set():
                return
            yield read_row(*each, answer, how)


def read_row(job: Job, verdict: Verdict | None, answer: Answer, how: Callable[[Job, Answer], Triage] = triaged) -> Read:
    """One job; whatever its log does, it breaks its own line and not the list."""
    began = time.monotonic()
    try:
        row = of_triage(how(job, answer), verdict)
    except TrackwalkerError as e:
        row = of_error(job, str(e))
    except OSError as e:
        row = of_error(job, f"it cannot be read: {e.strerror}")
    except Exception as e:
        row = of_error(job, f"its log cannot be understood ({type(e).__name__}); 'trackwalker triage' says more")
    return job, row, time.monotonic() - began


def _in_processes(todo: Iterable[Todo], over: threading.Event) -> Iterator[Read]:
    parts: Iterator[Part] = (part for asked in _parts(todo, _ASKED) for part in _with_answer(asked))
    workers = max(1, min(len(os.sched_getaffinity(0)), 8))
    while not over.is_set():
        ahead: list[tuple[Part, Future[list[Read]] | None]] = []
        # Spawned: a fork of a server with threads may inherit a lock that nobody will ever open.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(os.getpid(),)) as pool:
            try:
                while not over.is_set():
                    ahead += [(part, _handed(pool, part)) for part in islice(parts, 2 * workers - len(ahead))]
                    if not ahead:
                        return
                    part, promise = ahead[0]
                    rows = promise.result() if promise is not None else _read_part(*part)
                    ahead.pop(0)
                    yield from rows
            except BrokenExecutor:  # one of them was killed, as for want of memory: whose log it was is not known
                again = [([each], answer) for (part, answer), _ in ahead for each in part]
                if len(again) > len(ahead):  # one by one, so that few of the innocent are given up with it
                    parts = chain(again, parts)
                else:
                    yield from (_given_up(job) for [(job, _)], _ in again)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int) -> None:
    """A worker stands back behind the server, and does not outlive it, however that ends."""
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the server, which tells us when it is over
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _handed(pool: ProcessPoolExecutor, part: Part) -> Future[list[Read]] | None:
    """None where no process can be started (a main program that is not made for it): it is read here."""
    try:
        return pool.submit(_read_part, *part)
    except BrokenExecutor:
        raise
    except RuntimeError:
        return None


def _given_up(job: Job) -> Read:
    return job, of_error(job, "its reader was killed while it was read; 'trackwalker triage' says more"), 0.0


def _with_answer(asked: list[Todo]) -> Iterator[tuple[list[Todo], Answer]]:
    answer = _asked(asked)
    for at in range(0, len(asked), _PART):
        yield asked[at : at + _PART], answer


def _read_part(part: list[Todo], answer: Answer) -> list[Read]:
    return [read_row(*each, answer) for each in part]


def _asked(part: list[Todo]) -> Answer:
    # Once for many: a scheduler is not to be asked a hundred times.
    return ask([job.id for job, _ in part])


def _parts(todo: Iterable[Todo], size: int) -> Iterator[list[Todo]]:
    rest = iter(todo)
    while part := list(islice(rest, size)):
        yield part
