"""A rank process: started in its own session, watched, signalled as a group, and adoptable by a later agent."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trackwalker.job.processes import alive, marked_members, read_bytes, read_stat, session_members
from trackwalker.job.trust import users_umask
from trackwalker.node.agent.output import complain
from trackwalker.node.agent.spec import RankSpec

# The shell outlives the agent and records the exit code, which only a parent can learn. It ignores nothing for
# its child (traps are reset on exec) and the user's words reach it as arguments, never as shell text.
_SHIM = 'trap : TERM INT HUP; "$@"; rc=$?; printf %s "$rc" >"$0.tmp" && mv "$0.tmp" "$0"; exit "$rc"'
_MARK = "TRACKWALKER_PROGRESS"  # tells the trainer where to report, and us whose child a process is
_NEVER_STARTED = 126
_LOOK_S = 0.3  # how often a running rank is looked at for a core that is being written
_SIGNALS = {s.value: s.name for s in signal.Signals}


class Rank:
    """One rank of the job on this node.

    Its output goes straight to a file: if the agent dies there is no pipe to break, and training goes on.
    """

    def __init__(self, spec: RankSpec, ranks_dir: Path) -> None:
        self.spec = spec
        self.raw = ranks_dir / f"{spec.rank}.out"
        self.progress = ranks_dir / f"{spec.rank}.progress.jsonl"
        self.stack_note = ranks_dir / f"{spec.rank}.stack.json"  # its trainer can be asked where it stands
        self.exit: int | None = None
        self.ended: float | None = None
        self.dumps: float | None = None  # since when its core is seen to be written
        self._looked = 0.0
        self.unseen = False  # gone, and nobody can say how
        self.pid = self.start = self.main = 0
        self._exit_file = ranks_dir / f"{spec.rank}.exit"
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, env: dict[str, str]) -> None:
        """Start the process; one that cannot be started (no memory, no disk) counts as ended badly."""
        try:
            self._start(env)
        except OSError as e:
            complain(f"cannot start rank {self.spec.rank}: {e.strerror}")

    def _start(self, env: dict[str, str]) -> None:
        self._exit_file.unlink(missing_ok=True)
        out = os.open(self.raw, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SHIM, str(self._exit_file), *self.spec.argv],
                env={**env, **self.spec.env, _MARK: str(self.progress)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=self.spec.cwd or None,
                umask=users_umask(),
            )
        finally:
            os.close(out)
        self._identify(self._process.pid)  # the session id is the pid of the shell around it

    def adopt(self, saved: dict[str, Any]) -> None:
        """Take over a rank that a dead agent started; it may have ended meanwhile."""
        self.pid, self.start, self.main = saved["pid"], saved["start"], saved["main"]
        self.exit, self.ended = saved["exit"], saved["ended"]

    def _identify(self, pid: int) -> None:
        stat = read_stat(pid)
        self.pid, self.start, self.main = pid, stat.start if stat else 0, pid
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:  # the shell forks the real program within milliseconds
            children = (read_bytes(f"/proc/{pid}/task/{pid}/children") or b"").split()
            if children:
                self.main = int(children[0])
                return
            if read_stat(pid) is None or self._exit_file.exists():
                return
            time.sleep(0.005)

    def poll(self) -> int | None:
        """The exit code once the rank has ended, None while it runs."""
        if self.exit is not None:
            return self.exit
        if self.pid == 0:
            self.exit = _NEVER_STARTED
        elif self._process is not None:
            code = self._process.poll()
            if code is None:
                self._look_for_core()
                return None
            self.exit = code if code >= 0 else 128 - code
        elif alive(self.pid, self.start):
            return None
        else:
            self.exit = self._recorded_exit()
        self.ended = self._recorded_end()
        self.kill_leftovers()
        return self.exit

    @property
    def failed(self) -> float:
        """When it failed: a process that crashes ends only when its core is written, which may take minutes."""
        return min(t for t in (self.dumps, self.ended, math.inf) if t is not None)

    def _look_for_core(self) -> None:
        now = time.monotonic()
        if self.dumps is None and now - self._looked >= _LOOK_S:
            self._looked = now
            if b"\nCoreDumping:\t1" in (read_bytes(f"/proc/{self.main}/status") or b""):
                self.dumps = time.time()

    def _recorded_exit(self) -> int:
        try:
            return int(self._exit_file.read_text())
        except (OSError, ValueError):
            return 128 + signal.SIGKILL  # the shell itself went without a word: only SIGKILL does that

    def _recorded_end(self) -> float:
        """When the shell wrote the exit code: ranks that end within one look keep their order."""
        try:
            return min(self._exit_file.stat().st_mtime, time.time())
        except OSError:
            return time.time()

    def signal(self, number: int) -> None:
        """Signal the rank and all it forked; a stopped process is continued so that it can obey."""
        for pid in self.members():
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        if number != signal.SIGKILL:
            for pid in self.members():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGCONT)

    def kill_leftovers(self) -> None:
        """End what the rank forked and left behind; the rank itself is already gone."""
        for pid in self.members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def workload(self) -> list[int]:
        """The rank and all it forked within its session, without our own shell around it."""
        return [pid for pid in session_members(self.pid) if pid != self.pid]

    def members(self) -> set[int]:
        """The rank and all it forked, in whatever session they are."""
        if self.pid == 0:
            return set()
        found = set(marked_members(f"{_MARK}={self.progress}".encode(), self.start))
        shell = read_stat(self.pid)
        if shell is None or shell.start == self.start:  # else the number is another's now, and so is the session
            found.update(session_members(self.pid))
        return found

    def tidy(self) -> None:
        """Remove the working files whose content is now in the logs and journals."""
        for path in (self.raw, self._exit_file, self.progress, self.stack_note, self.stack_note.with_suffix(".txt")):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def saved(self) -> dict[str, Any]:
        """What a later agent needs to take over."""
        return {
            "rank": self.spec.rank,
            "host": self.spec.host,
            "pid": self.pid,
            "start": self.start,
            "main": self.main,
            "exit": self.exit,
            "ended": self.ended,
        }


def members_of(ranks: Iterable[Rank]) -> set[int]:
    """The processes of all these ranks and what they forked."""
    return set().union(*(rank.members() for rank in ranks))


def describe_exit(code: int) -> str:
    """An exit code in words: the signal's name where it was one."""
    if code == 0:
        return "exited normally"
    if code == _NEVER_STARTED:
        return "could not be started"
    if code > 128 and code - 128 in _SIGNALS:
        return f"killed by {_SIGNALS[code - 128]}"
    return f"exited with code {code}"
