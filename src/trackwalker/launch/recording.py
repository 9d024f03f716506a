"""One recorded command, from its start to the verdict: whatever of the recording fails, the command does not notice."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from trackwalker.errors import TrackwalkerError
from trackwalker.job.journal import read
from trackwalker.job.whole import write_whole
from trackwalker.launch.code.provenance import code_of
from trackwalker.launch.command import RECORDED, Room, plan_command, post_task, room_for
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.launch.task import find_task
from trackwalker.launch.wrapped import Wrapped, end_as

_ENDED_S = 10.0  # for the agent's last words, after a good end
_FAILED_S = 5.0  # after a bad one: a scheduler waits for our exit code to end the others
_LOOK_S = 1.0
_TELL_S = 120.0


def record_command(
    argv: list[str],
    typed: list[str],
    workspace: Path,
    name: str | None,
    metrics: bool,
    verdict: bool,
    beside: Mapping[str, Path | None],
) -> int:
    """Run a command recorded, and end as it does; `typed` is how we were called."""
    program = shutil.which(argv[0])
    if os.environ.get(RECORDED) and program:
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606  recorded already, by whatever started this
    if program is None:
        missing = not os.path.exists(argv[0])
        print(f"trackwalker: cannot run {argv[0]}: {'not found' if missing else 'not executable'}", file=sys.stderr)
        return 127 if missing else 126
    room = room_for(argv, find_task(os.environ), workspace, name)
    return end_as(Recording(room, argv, metrics, verdict, beside).run(typed))


class Recording:
    """Runs the command and, beside it, what a launched run has."""

    def __init__(
        self, room: Room, argv: Sequence[str], metrics: bool, verdict: bool, beside: Mapping[str, Path | None]
    ) -> None:
        """`beside`: folders of the trainer's own that tell of its steps, by the name they get in the job directory."""
        self._beside = beside
        self._room, self._argv, self._metrics, self._verdict = room, argv, metrics, verdict
        self._run: LocalRun | None = None
        self._looked = 0.0
        self._trouble = ""

    def run(self, typed: list[str]) -> int:
        """The command's end: its exit code, negative for a signal."""
        room = self._room
        try:
            room.open()
            for name, folder in self._beside.items() if room.task.is_head else ():
                if folder is not None:
                    with contextlib.suppress(FileExistsError):
                        (room.job_dir / name).symlink_to(folder.absolute())
            env = room.environment(os.environ)
        except OSError as e:
            self._say(f"not recorded: {room.job_dir}: {e.strerror or e}")
            return Wrapped(self._argv, os.environ, Path(os.devnull)).wait(lambda: None)
        command = Wrapped(self._argv, env, room.files)
        with self._contained():
            self._start((command.pid, command.start), typed)
        ended = command.wait(self._look)
        with self._contained():
            self._finish(ended)
        return ended

    def _start(self, process: tuple[int, int], typed: list[str]) -> None:
        room = self._room
        if not room.task.is_alone:
            post_task(room, self._argv, process)
            if not room.task.leads_node:
                return
        code = code_of(Path.cwd(), room.workspace, None)
        plan = plan_command(room, self._argv, process, self._metrics, typed, code)
        self._run = LocalRun.start(plan) if room.task.is_alone else JoinedRun.start(plan)
        if room.task.is_head:
            self._say(f"job {room.job_id}  log {room.log}")

    def _look(self) -> None:
        if self._run is None or time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        with self._contained():
            self._run.supervise()

    def _finish(self, ended: int) -> None:
        run, room = self._run, self._room
        if run is None:
            return
        deadline = time.monotonic() + (_ENDED_S if ended == 0 else _FAILED_S)
        others = not room.task.is_alone and ended == 0  # they end with us, or the job is not over for anybody
        while run.supervise() is None and (others or time.monotonic() < deadline):
            time.sleep(0.1)
        if not room.task.is_head:
            return
        if run.supervise() is None:
            self._say(f"the log is still being written; trackwalker diagnose {room.job_id} says how it went")
            return
        run.wait_closed(_ENDED_S)
        if self._verdict and (room.task.is_alone or ended == 0):
            tell_verdict(room.job_dir, room.job_id, self._say)
        else:
            self._say(f"{self._first_failure()}trackwalker diagnose {room.job_id} says why")

    def _first_failure(self) -> str:
        for event in reversed(read(self._room.job_dir / "events.jsonl").items):
            first = event.get("data", {}).get("first") if event.get("kind") == "run-end" else None
            if first:
                return f"rank {first['rank']} on {first['host']} was first: {first['cause']}; "
        return ""

    @contextlib.contextmanager
    def _contained(self) -> Iterator[None]:
        """What goes wrong with the recording is said once and is nobody else's trouble."""
        try:
            yield
        except (OSError, TrackwalkerError, ValueError, KeyError, TypeError) as e:
            if not self._trouble:
                self._trouble = str(e)
                self._say(f"the recording is incomplete: {e}")

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"trackwalker: {' '.join(text.split())}\n".encode())


def tell_verdict(job_dir: Path, job_id: str, say: Callable[[str], None]) -> None:
    """The verdict in a few lines; by a process of its own, so that nothing it needs stays beside the command."""
    argv = [sys.executable, "-P", "-m", "trackwalker", "diagnose", str(job_dir), "--json"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TELL_S, check=False)
        verdict = json.loads(done.stdout)
        roots = [cause for cause in verdict["causes"] if cause["role"] == "root"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        say(f"no verdict yet: trackwalker diagnose {job_id}")
        return
    for cause in roots:
        where = f" on {', '.join(cause['hosts'][:4])}" if cause["hosts"] else ""
        say(f"{cause['cause']}{where} ({cause['confidence']:.2f})")
    say(f"{verdict['outcome']}: {verdict['summary']}")
    say(f"the evidence: trackwalker diagnose {job_id}")


class JoinedRun(LocalRun):
    """The agent of this node, looked after by the node's first task."""

    def _write(self) -> None:
        if self.plan.agent.is_first:
            with contextlib.suppress(FileExistsError):
                (self.job_dir / "log").symlink_to(Path("..") / self.plan.log.name)
            with self.plan.log.open("ab") as log:  # a requeued job goes on in the same log
                log.write(self.plan.header.encode("utf-8", "surrogateescape"))
            self.record.save(self.job_dir / "run.json")
            if self.plan.provenance is not None:
                self.plan.provenance.save(self.job_dir)
        write_whole(self._spec_file, json.dumps(dataclasses.asdict(self.plan.agent), default=str), mode=0o600)

    @property
    def _spec_file(self) -> Path:
        return self.plan.agent.spec_file

    def _run_end(self) -> int | None:
        if not self.plan.agent.is_first:
            ended = self._agent.poll() if self._agent is not None else 1
            return None if ended is None else 0  # how its tasks ended the first node knows
        for record in reversed(read(self.job_dir / "events.jsonl").items):
            if record.get("kind") == "run-end" and record["t"] > self.record.created:
                return int(record["data"]["exit"] or 0)
        return None
