"""This machine as the scheduler: an agent and, when asked for, a recorder and Ray, each in a session of its own.

Nothing here is needed for training to go on: the ranks outlive the agent, the agent outlives this process, and
whoever is left ends when the run ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.job.journal import read
from trackwalker.job.processes import spawn
from trackwalker.job.trust import ours_alone
from trackwalker.launch.code.bundle import build_agent
from trackwalker.launch.plan import CONFIG, Plan, services
from trackwalker.node.agent.services import Services
from trackwalker.node.evidence import coredump
from trackwalker.node.stages.order import Seat

_MOST_RESTARTS = 5


class LocalRun:
    """A started run: keep it going, stop it, wait for it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.record, self.job_dir, self.log = plan.record, plan.agent.job_dir, plan.log
        self._agent: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._cancelled = False
        record, node = plan.record, plan.agent.node
        beside = services(sys.executable, record.observe, record.ray) if plan.agent.is_first else {}
        self._services = Services(beside, self.job_dir, Seat(record.id, 0, node))

    @classmethod
    def start(cls, plan: Plan) -> LocalRun:
        """Create the job directory, write down the run, start agent and recorder."""
        run = cls(plan)
        try:
            with ours_alone():
                run._write()
                if plan.agent.owns:
                    build_agent(run.job_dir / "agent" / "agent.pyz")
        except OSError as e:
            raise UsageError(
                f"cannot write the job directory {run.job_dir}: {e.strerror}; choose another --workspace"
            ) from e
        run._agent = run._start_agent()
        run._services.start()
        return run

    def _write(self) -> None:
        (self.job_dir / "agent").mkdir(parents=True)
        (self.job_dir / "log").symlink_to(Path("..") / self.plan.log.name)
        self.plan.log.write_bytes(self.plan.header.encode("utf-8", "surrogateescape"))
        self.record.save(self.job_dir / "run.json")
        if self.plan.config_yaml:
            (self.job_dir / CONFIG).write_text(self.plan.config_yaml, encoding="utf-8")
        if self.plan.provenance is not None:
            self.plan.provenance.save(self.job_dir)
        self._spec_file.touch(mode=0o600)  # the one place where a secret setting stands as it is
        self._spec_file.write_text(json.dumps(dataclasses.asdict(self.plan.agent), default=str))

    @property
    def _spec_file(self) -> Path:
        return self.job_dir / "agent" / "spec.json"

    def supervise(self) -> int | None:
        """One look: restart what died before its time; returns the job's exit code once it has ended."""
        ended = self._run_end()
        if ended is not None:
            return ended
        if self._agent is not None and self._agent.poll() is not None:
            ended = self._run_end()  # it may have ended properly since we looked
            if ended is not None:
                return ended
            self._agent = self._restart_agent()
            if self._agent is None:
                return 1
        return None

    def cancel(self) -> None:
        """Ask the agent to end the run; it tells the ranks and writes the summary."""
        self._cancelled = True
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)

    def wait_closed(self, seconds: float = 30.0) -> None:
        """Wait until agent, recorder and Ray have put everything away."""
        deadline = time.monotonic() + seconds
        if self._agent is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._agent.wait(seconds)
        self._services.close(deadline - time.monotonic())

    def _run_end(self) -> int | None:
        for record in reversed(read(self.job_dir / "events.jsonl").items):
            if record.get("kind") == "run-end":
                return int(record["data"]["exit"] or 0)
        return None

    def _restart_agent(self) -> subprocess.Popen[bytes] | None:
        # Without a saved state there is nothing to take over: the agent died before it started a rank.
        self._restarts += 1
        if self._restarts > _MOST_RESTARTS or not self.plan.agent.state_file.exists():
            return None
        # A signal would come before the new agent listens for it.
        return self._start_agent("--adopt", *(["--stop"] if self._cancelled else []))

    def _start_agent(self, *extra: str) -> subprocess.Popen[bytes]:
        # A recorded command has us beside it: nothing needs to travel. -P: its folder is not ours to import from.
        ours = ["-P", "-m", "trackwalker.node"]
        program = [str(self.job_dir / "agent" / "agent.pyz")] if self.plan.agent.owns else ours
        argv = [sys.executable, *program, str(self._spec_file), *extra]
        return self._spawn(argv, self.job_dir / "agent" / f"{self.plan.agent.node}.log", self.plan.env)

    def _spawn(self, argv: list[str], log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
        log.parent.mkdir(parents=True, exist_ok=True)
        # What an outer run left in our environment would make a single process wait for a coordinator.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COORDINATOR_")}
        return spawn(argv, log, {**inherited, **env})


_RULE = "=" * 40

_TICK_S = 0.1

_BY_HAND = (130, 143)  # INT, TERM


@dataclass(frozen=True)
class Repeated:
    """How a repetition ended: the exit code of the last iteration, and what it left."""

    iterations: int
    code: int
    job_dir: Path | None
    cores: tuple[Path, ...]

    @property
    def crashed(self) -> bool:
        """Whether the run failed by itself."""
        return self.code not in (0, *_BY_HAND)


def repeat(make_plan: Callable[[], Plan], most: int, work_dir: Path, say: Callable[[str], None]) -> Repeated:
    """Run the plan again and again, at most `most` times (0: until it fails); Ctrl-C ends the loop."""
    for line in coredump.enable():  # the ranks inherit the limit
        say(line)
    code, number, last = 0, 0, None
    cores: list[Path] = []
    while code == 0 and (most == 0 or number < most):
        number += 1
        begin = time.time()
        for line in (_RULE, f"Starting iteration #{number}", f"Start time: {time.ctime(begin)}", _RULE):
            say(line)
        run = LocalRun.start(make_plan())
        last = run.job_dir
        say(f"job {run.plan.record.id}  log {run.plan.agent.log}")
        code = _wait(run)
        seconds = int(time.time() - begin)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        for line in (
            f"Iteration #{number} finished",
            f"Exit code: {code}",
            f"End time: {time.ctime()}",
            f"Duration: {seconds}s ({clock})",
        ):
            say(line)
        if code in _BY_HAND:
            say("Stopped by hand.")
        elif code:
            cores = _cores(run, begin, work_dir, say)
            say(f"{run.plan.record.model} crashed with exit code {code}. Stopping loop.")
    say(f"Loop terminated after {number} iteration(s)")
    return Repeated(number, code, last, tuple(cores))


def _wait(run: LocalRun) -> int:
    while True:
        try:
            code = run.supervise()
            if code is not None:
                run.wait_closed()
                return code
            time.sleep(_TICK_S)
        except KeyboardInterrupt:
            run.cancel()


def _cores(run: LocalRun, begin: float, work_dir: Path, say: Callable[[str], None]) -> list[Path]:
    agent = run.plan.agent
    pids = {}
    for event in read(run.job_dir / "events.jsonl").items:
        if event.get("kind") == "rank-start":
            pids[int(event["data"]["pid"])] = int(event["rank"])
    found = coredump.collect(run.job_dir, agent.job_id, agent.node, begin, pids, [work_dir], say)
    if not found:
        say("no core was left: the run ended without a crash, or the kernel keeps cores elsewhere (core_pattern)")
    return [core.path for core in found]
