"""A job as a watcher sees it, under a clock of the test's own: its files grow, its scheduler says what it is told."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackwalker.job.journal import encode
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord
from trackwalker.job.slurm.states import JobState
from trackwalker.launch.job_state import Standing
from trackwalker.watch.asking import Background
from trackwalker.watch.daemon import Daemon
from trackwalker.watch.detect.confirm import Second
from trackwalker.watch.jobs import Jobs, Watched
from trackwalker.watch.memory import Memory
from trackwalker.watch.notify.message import Message
from trackwalker.watch.supervise.resume_policy import ResumePolicy

T0 = 1_800_000_000.0
RUNNING = Standing("running", False, meaning="runs")


class SimJob:
    """A job directory of ours, or (`upstream`) a log alone."""

    def __init__(self, workspace: Path, job_id: str = "77", ranks: int = 2, upstream: bool = False) -> None:
        self.id, self.ranks, self.upstream = job_id, ranks, upstream
        self.dir, self.log = workspace / f"{job_id}-JAX-x", workspace / f"{job_id}-JAX-x.log"
        workspace.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        os.utime(self.log, (T0, T0))
        self.step = -1
        if upstream:
            return
        self.dir.mkdir()
        (self.dir / "log").symlink_to(f"../{self.log.name}")
        RunRecord(
            id=job_id, name="JAX-x", model="x", scheduler="slurm", trainer="tiny", created=0, argv=[], command=[],
            workspace=".",
        ).save(self.dir / "run.json")  # fmt: skip

    def record(self, t: float, phase: str, ranks: Iterable[int] | None = None, **fields: Any) -> None:
        with (self.dir / "progress.jsonl").open("ab") as out:
            for rank in range(self.ranks) if ranks is None else ranks:
                out.write(encode({"t": t, "rank": rank, "host": f"n{rank}", "phase": phase, **fields}))

    def event(self, t: float, kind: str, rank: int | None = None, **data: Any) -> None:
        where = {"stage": "train", "node": "n0", "rank": rank, "host": None if rank is None else f"n{rank}"}
        with (self.dir / "events.jsonl").open("ab") as out:
            out.write(encode({"t": t, **where, "kind": kind, "data": data}))

    def steps(self, t: float, seconds: float, count: int = 1, **fields: Any) -> float:
        """So many steps from a moment on; when the last one ended."""
        for _ in range(count):
            t += seconds
            self.step += 1
            if self.upstream:
                with self.log.open("a") as out:
                    for rank in range(self.ranks):
                        loss = fields.get("loss", 2.0)
                        out.write(f"{rank}: completed step: {self.step}, seconds: {seconds:.3f}, loss: {loss}\n")
                os.utime(self.log, (t, t))
            else:
                usual = {"loss": 2.0, "data_wait_s": 0.001}
                self.record(t, "train", step=self.step, seconds=seconds, **{**usual, **fields})
        return t


class SaidStanding:
    """Stands for schedulers and Prometheus: says what the test says."""

    def __init__(self) -> None:
        self.now: dict[str, Standing | None] = {}
        self.alerts: list[Any] = []
        self.queue: list[JobState] = []
        self.curious = False

    def begin(self, watched: Iterable[Watched], now: float) -> None:
        for each in watched:
            said = self.now.get(each.job.id, RUNNING)
            each.standing = said or each.standing
            each.signs.alerts = list(self.alerts)

    def take(self, watched: dict[str, Watched], now: float) -> list[JobState]:
        return self.queue

    def close(self) -> None:
        pass


class NoDiagnoses:
    """No diagnosis, or always the same one at the next look."""

    idle = True

    def __init__(self, verdict: dict[str, Any] | None = None) -> None:
        self._verdict, self._asked = verdict, list[str]()

    def ask(self, incident: str, job: Path, first: bool = True) -> None:
        self._asked.append(incident)

    def step(self) -> list[tuple[str, dict[str, Any] | None]]:
        done, self._asked = [(name, self._verdict) for name in self._asked], []
        return done

    def close(self) -> None:
        pass


class Box:
    """An outbox that outlives the watcher: a key is taken once."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.refused = 0

    def put(self, message: Message) -> bool:
        if message.key in self.messages:
            self.refused += 1
            return False
        self.messages[message.key] = message
        return True

    def titles(self, kind: str | None = None) -> list[str]:
        return [m.title.partition(": ")[2] for m in self.messages.values() if kind in (None, m.kind)]


class Night:
    """A watcher of one workspace that can be killed and started again."""

    def __init__(self, workspace: Path, second: Second | None = None, verdict: dict[str, Any] | None = None) -> None:
        self.workspace, self.box, self.asker = workspace, Box(), SaidStanding()
        self.second = second or Second(True, "rank 1: the process is stopped (state T)", (1,))
        self.verdict = verdict
        self.daemon: Daemon | None = None
        self.memory_type = Memory
        self.warn = lambda text: None
        self.policy: ResumePolicy | None = None

    def start(self, now: float) -> Daemon:
        memory = self.memory_type(self.workspace / ".watch", now)
        self.daemon = Daemon(
            Jobs(self.workspace), memory, self.box.put, self.asker, Background(0), NoDiagnoses(self.verdict),
            confirm=self._confirm, warn=self.warn, policy=self.policy,
        )  # type: ignore[arg-type]  # fmt: skip
        return self.daemon

    def stop(self) -> None:
        if self.daemon is not None:
            self.daemon.close()
            self.daemon = None

    def look(self, *times: float) -> None:
        """Look at these moments."""
        for now in times:
            daemon = self.daemon or self.start(now)
            daemon.look(now)

    def _confirm(self, job: Job) -> Second:
        return self.second


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    made = Night(tmp_path / "outputs")
    yield made
    made.stop()


def begun(night: Night, job: SimJob, seconds: float = 1.0, steps: int = 60) -> float:
    """A job that has trained for a while, and a watcher that saw it."""
    night.start(T0)
    at = job.steps(T0, seconds, steps)
    night.look(at)
    return at


def until_told(night: Night, kind: str, begin: float, most: float, every: float = 1.0) -> float | None:
    """Seconds after `begin` at which an incident of a kind was opened."""
    for now in np.arange(begin, begin + most, every):
        night.look(float(now))
        assert night.daemon is not None
        found = [i for i in night.daemon.memory.incidents.values() if i.kind == kind]
        if found:
            return found[-1].opened - begin
    return None
