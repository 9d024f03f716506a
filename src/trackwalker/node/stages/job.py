"""A job on one of its nodes, from the scheduler's start to the last word: checks, image, health, training.

Every stage is a meeting: each node does its part and posts what came of it, the first node decides for all, within the
stage's time. The log of a stage reads as upstream's does; what it names besides is who was missing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trackwalker.job.journal import Journal, event_record, read
from trackwalker.job.shards import node_of
from trackwalker.node.agent.agent import Agent
from trackwalker.node.agent.jobdir import job_dir_of, log_of, open_job, place_ranks, share_of
from trackwalker.node.agent.outcome import TIMED_OUT, cancelled, summary_block, why_ended
from trackwalker.node.agent.output import Sink, complain, limit_text
from trackwalker.node.agent.peers import Crew, Head, Member, RankEnd
from trackwalker.node.agent.services import Services
from trackwalker.node.agent.spec import AgentSpec, RankSpec
from trackwalker.node.evidence.cores import Cores
from trackwalker.node.stages.incidents import Scribe
from trackwalker.node.stages.order import STAGES, Order, Seat, slurm_hosts
from trackwalker.node.stages.rendezvous import Absent, Note, Rendezvous, Stopped
from trackwalker.node.stages.stage_work import Parts, Unfit

_T = TypeVar("_T")
_SLACK_S = 30.0  # how much longer the others wait for the first node's word than it waits for theirs


class Failed(Exception):
    """A stage ended the job; the first node has said why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Conductor:
    """One node's part of a job."""

    def __init__(self, order: Order, seat: Seat, submission: Path) -> None:
        self._order, self._seat = order, seat
        self._job_dir = job_dir_of(order, seat)
        self._attempt = self._job_dir / "agent" / f"attempt-{seat.attempt}"
        self._signal: int | None = None
        self._warning = submission / f"time-limit-{seat.attempt}"  # both written by the batch script
        self._stop_note = submission / f"stop-{seat.attempt}"
        self._began = time.time()
        self._submission = submission
        self._meeting = Rendezvous(self._attempt, seat.node_rank, order.nodes, self._stopped)
        self._parts = Parts(order, seat, self._job_dir, self._attempt / str(seat.node_rank))
        self._hosts: list[str] = []
        self._keeper = os.getppid()
        self._scribe = Scribe(order.workspace, seat.job_id, seat.attempt)

    def run(self) -> int:
        """Go through the stages; the exit code is the job's on the first node, elsewhere whether we could report."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        try:
            open_job(self._order, self._seat, self._submission)
        except OSError as e:
            complain(f"FATAL: {self._seat.host} cannot write the job directory {self._job_dir}: {e.strerror}")
            return 1
        self._log = Sink(log_of(self._order, self._seat))
        self._events = Journal(self._own("events.jsonl"))
        if self._seat.is_head:
            self._say(*self._header())
            self._event("attempt-begin", attempt=self._seat.attempt, nodes=self._order.nodes)
        try:
            for stage in self._parts.stages():
                self._stage(stage)
            return self._train()
        except Stopped:
            word = why_ended() if self._seat.is_head else ""
            code, reason = cancelled(self._signal or signal.SIGTERM, word, self._warning.exists())
            self._dismiss(code, reason)
            return self._close(code, reason)
        except Failed as e:
            return self._close(e.code, e.reason)
        finally:
            self._parts.close()

    def _stage(self, name: str) -> None:
        limit = self._order.timeouts.get(name)
        began = time.monotonic()
        deadline = None if limit is None else began + limit
        title = STAGES[name]
        if self._seat.is_head:
            self._say(f"== {title} BEGIN ({limit_text(limit)}) ==")
            self._event("stage-begin", stage=name, name=title)
        note = self._parts.do(name, deadline)
        if self._stopped():
            raise Stopped  # what a check said while its commands were being ended is not to be believed
        for line in note.pop("lines", []):
            self._say(line)
        self._meeting.post(name, note)
        verdict = self._judge(name, began, deadline, limit) if self._seat.is_head else self._hear(name, deadline)
        if not verdict["ok"]:
            raise Failed(int(verdict["exit"]), str(verdict["reason"]))

    def _judge(self, name: str, began: float, deadline: float | None, limit: float | None) -> Note:
        title = STAGES[name]
        try:
            notes = self._meeting.gather(name, deadline)
            verdict = self._parts.judge(name, notes, self._say)
            hosts = [str(notes[int(rank)]["host"]) for rank in verdict.get("exits", {})]
            if not verdict["ok"]:
                self._scribe.stage_failed(notes)
        except Absent as absent:
            seconds = int(time.monotonic() - began)
            hosts = [self._host(rank) for rank in absent.nodes]
            missing = ", ".join(hosts)
            self._scribe.no_word(name, hosts)
            reason = f"{title} TIMEOUT ({seconds}s/{limit or 0:.0f}s)"
            self._say(f"FATAL: {title}: no word from {missing}", f"== {reason} ==")
            self._say(f'  Hint: STAGE_TIMEOUTS="{name}:<seconds>" to adjust.')
            verdict = {"ok": False, "exit": TIMED_OUT, "reason": reason, "missing": missing}
        seconds = int(time.monotonic() - began)
        if verdict["ok"]:
            self._say(f"== {title} END ({seconds}s) ==")
        elif "missing" not in verdict:
            verdict = {**verdict, "reason": f"{title} FAILED (exit={verdict['exit']})"}
            for rank, code in verdict.get("exits", {}).items():
                self._say(f"{rank}: NODE_EXIT host={self._host(int(rank))} exit={code}")
            self._say(f"== {title} FAILED (exit={verdict['exit']}, {seconds}s) ==")
        place = {"hosts": hosts, "nodes": self._order.nodes}  # who is to blame, of how many
        self._event("stage-end", stage=name, name=title, seconds=seconds, **verdict, **place)
        self._meeting.decide(name, verdict)
        return verdict

    def _dismiss(self, code: int, reason: str) -> None:
        """A word to end may have reached this node alone: the others wait for what it says of the next stages."""
        if not self._seat.is_head:
            return
        for name in [*self._parts.stages(), "plan"]:
            if self._meeting.decided(name) is None:
                self._meeting.decide(name, {"ok": False, "exit": code, "reason": reason, "failed": reason})

    def _hear(self, name: str, deadline: float | None) -> Note:
        try:
            return self._meeting.await_decision(name, None if deadline is None else deadline + _SLACK_S)
        except Absent:
            complain(f"{self._seat.host}: the first node never said how {STAGES[name]} ended")
            return {"ok": False, "exit": 1, "reason": "the first node is gone"}

    def _train(self) -> int:
        order, seat = self._order, self._seat
        if seat.is_head:
            notes = self._meeting.gather("preflight", None)
            self._hosts = [str(notes[rank]["host"]) for rank in range(order.nodes)]
            plan = {**self._fit(lambda: self._parts.network(notes, self._say)), "hosts": self._hosts}
            place_ranks(self._job_dir, self._hosts, order.procs, self._parts.image_digest)
            if self._stopped():
                raise Stopped  # as long as nobody else has begun
            self._meeting.decide("plan", plan)
        else:
            plan = self._meeting.await_decision("plan", None)
            if "failed" in plan:
                raise Failed(1, plan["failed"])
            self._hosts = list(plan["hosts"])
        spec = self._spec(plan)
        mine = {name: argv for name, argv in order.services.items() if node_of(name, order.nodes) == seat.node_rank}
        services = Services(mine, self._job_dir, seat, self._say)
        services.start()
        if self._stopped() and (order.nodes == 1 or not seat.is_head):
            raise Stopped
        self._parts.release()
        cores = Cores(self._job_dir, seat, "" if order.container else order.workdir, self._say)
        cores.enable()
        # The others begin by now: told to end, the first node begins too, because its agent is whom they hear it from.
        code = Agent(spec, self._crew()).run(adopt=False, stop=self._stopped())
        events = self._events_of_this_attempt()
        cores.collect(events, self._began)
        if seat.is_head:
            self._scribe.run_ended(events)
        services.close()
        return code

    def _events_of_this_attempt(self) -> list[dict[str, Any]]:
        events = read(self._own("events.jsonl")).items
        begins = [at for at, event in enumerate(events) if event.get("kind") == "attempt-begin"]
        return events[begins[-1] :] if begins else events

    def _fit(self, what: Callable[[], _T]) -> _T:
        """What cannot be had on the first node ends the job for all."""
        try:
            return what()
        except Unfit as e:
            self._say(str(e), "== Training FAILED (exit=1, 0s) ==")
            reason = "Training FAILED (exit=1)"
            if self._seat.is_head:
                self._meeting.decide("plan", {"failed": reason})
            else:
                end = RankEnd(self._seat.node_rank * self._order.procs, self._seat.host, 1, time.time(), str(e))
                Member(self._meeting).tell(end)
                Member(self._meeting).finish([end], stopping=True)
            raise Failed(1, reason) from e

    def _crew(self) -> Crew:
        if not self._seat.is_head:
            return Member(self._meeting, self._orphaned)
        files = [("events.jsonl", self._events), ("progress.jsonl", Journal(self._job_dir / "progress.jsonl"))]
        others = range(1, self._order.nodes)
        journals = [(self._attempt / str(rank) / name, journal) for rank in others for name, journal in files]
        return Head(self._meeting, dict(enumerate(self._hosts)), journals, self._order.grace_s, self._orphaned)

    def _orphaned(self) -> RankEnd | None:
        """The end of this node's part once its keeper is gone: what stays would outlive the job unseen."""
        if os.getppid() == self._keeper:
            return None
        rank = self._seat.node_rank * self._order.procs
        return RankEnd(rank, self._seat.host, 128 + signal.SIGKILL, time.time(), "its agent's keeper was killed")

    def _spec(self, plan: Note) -> AgentSpec:
        order, seat = self._order, self._seat
        commands = self._fit(lambda: self._parts.rank_commands(plan, self._say))
        cwd = "" if order.container else order.workdir  # a container starts there by itself
        ranks = [RankSpec(rank, seat.host, argv, env, cwd) for rank, argv, env in commands]
        board = Path(order.tensorboard) if order.tensorboard else None
        return share_of(
            order,
            seat,
            ranks,
            grace_s=order.grace_s,
            limit_s=order.timeouts.get("train"),
            steps=order.steps,
            own=self._attempt / str(seat.node_rank),
            tensorboard=self._job_dir / board if board else None,
            listen=order.listen,
            warning=self._warning,
            stop_note=self._stop_note,
        )

    def _close(self, code: int, reason: str) -> int:
        """The job ends before training: the first node writes the summary, the others have nothing to add."""
        if not self._seat.is_head:
            return 0
        seconds = int(time.time() - self._began)
        self._say(summary_block(share_of(self._order, self._seat), seconds, code, reason).rstrip("\n"))
        self._event("run-end", exit=code, reason=reason, seconds=seconds)
        return code

    def _header(self) -> list[str]:
        order, seat = self._order, self._seat
        nodes = os.environ.get("SLURM_JOB_NODELIST") or seat.host
        return [
            f"JOB_ID={seat.job_id}",
            f"JOB_NAME={order.name}",
            f"NNODES={order.nodes}",
            f"JOB_NODELIST={nodes}",
            *order.header,
            '==STAGE TIMEOUTS (override: STAGE_TIMEOUTS="stage:seconds,...")==',
            *(f"  {name:<12} {_seconds(order.timeouts.get(name))}" for name in STAGES),
            "=" * 65,
        ]

    def _own(self, name: str) -> Path:
        return self._job_dir / name if self._seat.is_head else self._attempt / str(self._seat.node_rank) / name

    def _host(self, rank: int) -> str:
        self._hosts = self._hosts or slurm_hosts(os.environ)
        return self._hosts[rank] if rank < len(self._hosts) else f"node {rank}"

    def _say(self, *lines: str) -> None:
        self._log.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))

    def _event(self, kind: str, stage: str = "launch", **data: Any) -> None:
        try:
            self._events.append(event_record(kind, self._seat.host, data, stage))
        except OSError as e:
            complain(f"cannot write events.jsonl: {e.strerror}")

    def _stopped(self) -> bool:
        return self._signal is not None or (self._seat.is_head and self._stop_note.exists())

    def _on_signal(self, number: int, frame: object) -> None:
        self._signal = number


def _seconds(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:.0f}s"
