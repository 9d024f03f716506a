"""A rank that somebody else started: watched, never signalled, never ended.

`trackwalker record` starts the user's command and stays its parent, so only it learns the exit code: it writes it into
a file before the process is reaped. Where the command is a launcher (torchrun, mpirun), the ranks are processes below
it; how each of those ended its launcher knows, and says so in its output or in its error file.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

from trackwalker.job.processes import alive, descendants, read_stat
from trackwalker.node.agent.ranks import Rank
from trackwalker.node.agent.spec import RankSpec

_END = 1 << 16  # bytes of a launcher's last words
_MOST_LINES = 60
_ROOT_CAUSE = re.compile(
    rb"Root Cause.*?rank\s*:\s*(\d+) \(local_rank: \d+\)\s+exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)", re.DOTALL
)
_FAILED = re.compile(rb"rank\s*:\s*(\d+) \(local_rank: \d+\)\s+exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)")


_TASKS = re.compile(rb"srun: error: \S+: tasks? ([\d,-]+): (?:Exited with exit code (\d+)|([A-Z][a-z ]+))")
_BY_WORD = {b"Killed": 137, b"Terminated": 143, b"Segmentation fault": 139, b"Aborted": 134, b"Bus error": 135}
_WORD_S = 1.5


class Guest(Rank):
    """One rank of a command that is recorded."""

    def __init__(self, spec: RankSpec, ranks_dir: Path) -> None:
        super().__init__(spec, ranks_dir)
        self._files = Path(spec.files)
        self._command = (spec.command[0], spec.command[1])
        if (spec.pid, spec.start) == self._command:
            self._exit_file = self._files.with_suffix(".exit")
        if spec.speaks:
            self.raw = self._files.with_suffix(".out")
        self._gone: float | None = None

    def launch(self, env: dict[str, str]) -> None:
        """It runs already."""
        self.pid = self.main = self.spec.pid
        self.start = self.spec.start

    def adopt(self, saved: dict[str, Any]) -> None:
        """Take over from an earlier agent; a launcher may have started this rank anew since."""
        self.launch({})
        if (saved.get("pid"), saved.get("start")) == (self.pid, self.start):
            self.exit, self.ended = saved["exit"], saved["ended"]

    def poll(self) -> int | None:
        """The exit code once the command has ended: before that nobody knows how a rank below it did."""
        if self.exit is not None:
            return self.exit
        if self._gone is None and not alive(self.pid, self.start):
            self._gone = time.time()
        code = self._code_of_command()
        if code is None:
            return None
        self.ended = self._gone or time.time()
        if (self.pid, self.start) == self._command:
            self.ended = self._recorded_end() if self.spec.old is None else self.ended
            self.exit = code
        else:
            self.exit = self._as_told(code)
        self.unseen = self.spec.old is not None and self.exit == 0
        return self.exit

    def _code_of_command(self) -> int | None:
        if self.spec.old is None:
            return command_exit(self._files, self._command)
        if alive(*self._command):
            return None
        # Of one that was joined later only its launcher's words may say it, and they come a moment after its end: 0
        # accuses nobody, and the run's end says no code.
        words = last_words(self._files.with_suffix(".out"))
        told = 1 if _FAILED.search(words) else task_exit(words, self.spec.rank)
        waited = time.time() - (self._gone or 0.0) > _WORD_S
        return told if told is not None else 0 if waited else None

    def _as_told(self, code: int) -> int:
        """What the launcher says of this rank; of one it does not speak of, that it was told to end."""
        if code == 0:
            return 0
        words = last_words(self._files.with_suffix(".out"))
        first = _ROOT_CAUSE.search(words)
        told = {int(pid): int(exit_) for _, exit_, pid in _FAILED.findall(words)}
        if first is not None and int(first[3]) == self.pid and self.ended is not None:
            self.ended -= 1.0  # the others went because of it, some within the same look of ours
        if self.pid in told:
            return told[self.pid] if told[self.pid] >= 0 else 128 - told[self.pid]
        return 128 + signal.SIGTERM if told else code

    def signal(self, number: int) -> None:
        """Never: whoever started it ends it."""

    def kill_leftovers(self) -> None:
        """Never: what the command leaves behind it leaves on purpose."""

    def workload(self) -> list[int]:
        """The rank and all it forked."""
        return descendants(self.pid) if alive(self.pid, self.start) else []

    def members(self) -> set[int]:
        """The same as a set."""
        return set(self.workload())


def rank_of(spec: RankSpec, ranks_dir: Path) -> Rank:
    """A rank that we start, or one that runs already."""
    return Guest(spec, ranks_dir) if spec.command else Rank(spec, ranks_dir)


def command_exit(files: Path, command: tuple[int, int]) -> int | None:
    """How the recorded command ended, None while it runs; killed together with its parent it leaves no word."""
    path = files.with_suffix(".exit")
    if not path.exists() and alive(*command):
        return None
    for _ in range(2):  # it may have been written between the two looks
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            stat = read_stat(command[0])
            if stat is not None and stat.start == command[1]:
                return None  # dead, not reaped: its parent is about to write
    return 128 + signal.SIGKILL


def task_exit(words: bytes, rank: int) -> int | None:
    """How a task ended, as srun says in the job's output; None where it says nothing of it."""
    for numbers, code, word in _TASKS.findall(words):
        spans = [part.split(b"-") for part in numbers.split(b",") if part.strip(b"-")]
        if any(int(span[0]) <= rank <= int(span[-1]) for span in spans):
            return int(code) if code else _BY_WORD.get(word.strip())
    return None


def last_words(path: Path) -> bytes:
    """The end of what a command printed."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _END))
            return file.read()
    except OSError:
        return b""


def error_file(files: Path) -> Optional[str]:
    """What PyTorch's launcher wrote about the first failure, as a traceback; None where there is nothing."""
    try:
        told = json.loads(files.with_suffix(".error.json").read_bytes()[: 1 << 20])
        message = told["message"]
        extra = message.get("extraInfo", {}) if isinstance(message, dict) else {}
        text = str(extra.get("py_callstack") or (message["message"] if isinstance(message, dict) else message))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return "\n".join(text.rstrip().splitlines()[-_MOST_LINES:])


def told_by_launchers(ranks: Sequence[Rank]) -> Iterator[tuple[Rank, str]]:
    """The first failure as a launcher wrote it down, with its rank, where the rank itself did not print it.

    A launcher that quotes it in its own report indents it: nobody could tell whose exception that is.
    """
    for rank in ranks:
        told = error_file(Path(rank.spec.files)) if isinstance(rank, Guest) and rank.spec.speaks else None
        if not told:
            continue
        words = last_words(rank.raw)
        last = told.splitlines()[-1].encode()
        if any(line == last or line.endswith(b"]: " + last) for line in words.splitlines()):
            continue
        first = _ROOT_CAUSE.search(words)
        yield next((r for r in ranks if first and r.spec.rank == int(first[1])), rank), told


def told_signal(ranks: Iterable[Rank]) -> int | None:
    """The signal by which somebody ended a recorded command, as its parent wrote it down."""
    for rank in ranks:
        try:
            return int(Path(rank.spec.files).with_suffix(".told").read_text())
        except (OSError, ValueError):
            continue
    return None


def carry_over(offsets: dict[str, int], ranks: Iterable[Rank]) -> None:
    """How far a command's output was read stays true when another rank speaks for it."""
    for rank in ranks:
        if isinstance(rank, Guest) and rank.spec.speaks:
            nominal = f"o{Path(rank.spec.files).name}"
            offsets.setdefault(f"o{rank.spec.rank}", offsets.get(nominal, 0))
