"""Who stays when a node's agent dies: ends what it left behind on the node, and tells the others.

The scheduler starts this process, and it starts the agent. It knows nothing of training, holds no log and serves
nothing, so there is little that could end it; what the agent starts, however far it forks, is never out of its sight.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackwalker.job.journal import Journal, event_record, read
from trackwalker.job.processes import all_pids, read_stat
from trackwalker.node.agent.jobdir import job_dir_of, log_of, share_of
from trackwalker.node.agent.outcome import Course, judge
from trackwalker.node.agent.output import Sink, complain
from trackwalker.node.agent.peers import Head, Member, RankEnd, rank_end
from trackwalker.node.agent.ranks import describe_exit
from trackwalker.node.runtimes.containers import Containers
from trackwalker.node.stages.order import Order, Seat
from trackwalker.node.stages.rendezvous import Rendezvous

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_GRACE_S = 5.0  # for what the agent left behind: a recorder has samples to put away
_LOOK_S = 0.05
_SAID = b"."  # the agent came to its end and reported


def keep(order: Order, seat: Seat, work: Callable[[], int]) -> int:
    """Run `work` in a process of its own; the exit code is its own, or, if it died, that of the job it left behind."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    told, tell = os.pipe()
    agent = os.fork()
    if agent == 0:
        os.close(told)
        _work(work, tell)
    os.close(tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: _send(agent, number))
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: None)
    began = time.time()
    status = _reap(agent)
    with os.fdopen(told, "rb") as said:
        reported = said.read(1) == _SAID
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    if reported:
        end_descendants()
        return code
    return speak_for(order, seat, code, began, end_descendants)


def end_descendants(grace_s: float = _GRACE_S) -> None:
    """End every process below this one: told first, killed after the grace."""
    number, deadline = signal.SIGTERM, time.monotonic() + grace_s
    told: set[int] = set()
    while left := descendants(os.getpid()):
        if time.monotonic() > deadline:
            if number == signal.SIGKILL:
                return  # in the kernel's hands; it cannot be ended from here
            number, deadline, told = signal.SIGKILL, time.monotonic() + grace_s, set()
        for pid in left - told:
            _send(pid, number)
            _send(pid, signal.SIGCONT)
        told |= left
        _bury()
        time.sleep(_LOOK_S)


def descendants(ancestor: int) -> set[int]:
    """Living processes below a process; what was orphaned among them is below the nearest reaper."""
    parents = {}
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is not None and stat.state not in "ZX":
            parents[pid] = stat.parent
    found: set[int] = set()
    new = {ancestor}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found - {ancestor}


def _work(work: Callable[[], int], tell: int) -> None:
    code = 1
    try:
        code = work()
        os.write(tell, _SAID)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def _reap(agent: int) -> int:
    """Wait for the agent; orphans that come to us are buried on the way."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            return status


def _bury() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


_GROUP_LOOK_S = 0.2
_BEFORE_TRAINING = ("preflight", "pull", "health")


def speak_for(order: Order, seat: Seat, code: int, began: float, end_ranks: Callable[[], None]) -> int:
    """Tell the other nodes that this one's agent is gone, as it would have told of a rank; returns our exit code."""
    job_dir = job_dir_of(order, seat)
    attempt = job_dir / "agent" / f"attempt-{seat.attempt}"
    died = f"its agent was {describe_exit(code)}" if code > 128 else f"its agent ended with code {code}"
    complain(f"FATAL: {seat.host}: {died}")
    first = seat.node_rank * order.procs
    ends = [RankEnd(rank, seat.host, code or 1, time.time(), died) for rank in range(first, first + order.procs)]
    meeting = Rendezvous(attempt, seat.node_rank, order.nodes, lambda: False)
    crew: Head | Member = Member(meeting)
    if seat.is_head:
        plan = meeting.decided("plan") or {}
        crew = Head(meeting, dict(enumerate(plan.get("hosts") or [seat.host])), [], order.grace_s)
    note = meeting.decided("stop")
    with contextlib.suppress(OSError):
        _end_stages(meeting, seat, died)
        if note is None:
            own = job_dir if seat.is_head else attempt / str(seat.node_rank)
            _event(own, seat, "first-failure", ends[0].rank, exit=ends[0].exit, cause=died)
            crew.tell(ends[0])
    end_ranks()
    if order.container:
        Containers(order, seat, job_dir, attempt / str(seat.node_rank)).end_left_behind()
    with contextlib.suppress(OSError):
        while not crew.finish(ends, stopping=True):
            time.sleep(_GROUP_LOOK_S)
    if not seat.is_head:
        return 0
    closed = _closed(job_dir)
    if closed is not None:
        return closed
    all_ends = [*ends, *crew.all_ends()]
    course = Course(
        all_ends,
        rank_end(note["failure"]) if note and note["failure"] else ends[0],
        None,
        False,
        False,
        crew.missing(),
        int(time.time() - began),
    )
    return _close(order, seat, job_dir, course)


def _end_stages(meeting: Rendezvous, seat: Seat, died: str) -> None:
    """Nobody is to wait for this node in a stage that it did not live to see."""
    for stage in _BEFORE_TRAINING:
        if seat.is_head and meeting.decided(stage) is None:
            meeting.decide(stage, {"ok": False, "exit": 1, "reason": died})
        elif not seat.is_head and seat.node_rank not in meeting.posted(stage):
            note = {"host": seat.host, "ok": False, "results": [], "written_at": time.time(), "digest": ""}
            meeting.post(stage, note)
    if seat.is_head and meeting.decided("plan") is None:
        meeting.decide("plan", {"failed": died})


def _closed(job_dir: Path) -> int | None:
    """The exit code, where the agent died only after it had written the job's summary."""
    for event in reversed(read(job_dir / "events.jsonl").items):
        if event.get("kind") == "attempt-begin":
            return None
        if event.get("kind") == "run-end":
            return int(event["data"]["exit"])
    return None


def _close(order: Order, seat: Seat, job_dir: Path, course: Course) -> int:
    """Write the summary that the first node owes."""
    outcome = judge(share_of(order, seat), course)
    Sink(log_of(order, seat)).write(outcome.text.encode())
    told: dict[str, Any] = {
        "exit": outcome.code,
        "reason": outcome.reason,
        "seconds": course.seconds,
        "missing": course.missing,
    }
    told["first"] = dataclasses.asdict(outcome.first) if outcome.first else None
    with contextlib.suppress(OSError):
        _event(job_dir, seat, "run-end", None, **told)
    return outcome.code


def _event(folder: Path, seat: Seat, kind: str, rank: int | None, **data: Any) -> None:
    host = None if rank is None else seat.host
    Journal(folder / "events.jsonl").append(event_record(kind, seat.host, data, rank=rank, host=host))
