"""Where a rank stands, without harming it: py-spy reads it from outside; who has announced it may be asked by a signal.

Three rules. A rank that is stopped or hangs in the kernel is never signalled and never paused, only read. A rank is
signalled only if its trainer left a note that faulthandler listens (`trainers/stacks.py`) and the handler is still in
place. A reader that pauses a rank and dies over it must not leave it stopped: then the rank is continued.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from trackwalker.job.processes import read_bytes, read_stat
from trackwalker.job.trust import distrust

LISTENING = "RS"  # states in which a process can take a signal, or be paused for a moment
_READ_S = 6.0
_NATIVE_S = 12.0
_ANSWER_S = 3.0
_QUIET_S = 0.2
_ASKING = (signal.SIGUSR1, signal.SIGUSR2)  # the only signals a note may name: nothing else asks a question
_STOPS_S = 0.5  # a stop that was sent takes a moment to be seen
_TRIES = 3  # a running interpreter may change under the reader
_MOST = 1 << 20  # bytes of one stack


@dataclass(frozen=True)
class Subject:
    """The process of a rank whose stack is wanted."""

    rank: int
    pid: int
    note: Path  # <rank>.stack.json, there when the trainer listens


@dataclass
class Stack:
    """What could be read: file name endings with their text, and what could not."""

    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_pyspy(argv: list[str], env: dict[str, str]) -> str:
    """py-spy beside the rank's own Python, in its environment, or on PATH; empty without one."""
    folders = [os.path.dirname(argv[0])] if argv and os.path.isabs(argv[0]) else []
    folders += [os.path.join(env["VIRTUAL_ENV"], "bin")] if env.get("VIRTUAL_ENV") else []
    return shutil.which("py-spy", path=os.pathsep.join([*folders, env.get("PATH", os.defpath)])) or ""


def read_stack(subject: Subject, pyspy: str) -> Stack:
    """The Python stacks of one rank, which goes on meanwhile."""
    out = Stack()
    if pyspy:
        text = _nonblocking(subject, pyspy, out)
        if text:
            out.files["py-spy.txt"] = text
            return out
    else:
        out.notes.append("py-spy is not installed there")
    answer = _ask(subject, out)
    if answer:
        out.files["faulthandler.txt"] = answer
    return out


def _nonblocking(subject: Subject, pyspy: str, out: Stack) -> bytes:
    said = ""
    for _ in range(_TRIES):
        text, said = _run([pyspy, "dump", "--pid", str(subject.pid), "--nonblocking"], _READ_S)
        if b"Thread " in text:
            return text
        if "not within" in said:
            break
    out.notes.append(f"py-spy: {said or 'no stack'}")
    return b""


def read_native(subject: Subject, pyspy: str) -> Stack:
    """The same with the C frames, for which py-spy holds the rank."""
    out = Stack()
    before = read_stat(subject.pid)
    if before is None or before.state not in LISTENING:
        out.notes.append("no native stack: the rank is stopped or hangs in the kernel, and is not paused")
        return out
    text, said = _run([pyspy, "dump", "--pid", str(subject.pid), "--native"], _NATIVE_S)
    if b"Thread " in text:
        out.files["native.txt"] = text
    else:
        out.notes.append(f"py-spy --native: {said or 'no stack'}")
        _let_go(subject.pid, before.start, out)
    return out


def _let_go(pid: int, start: int, out: Stack) -> None:
    """A reader that failed may have stopped the rank, which ran before: nobody else would let it go."""
    deadline = time.monotonic() + _STOPS_S
    while time.monotonic() < deadline:
        now = read_stat(pid)
        if now is None or now.start != start:
            return
        if now.state in "Tt":
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
            out.notes.append("the reader left the rank stopped; it was continued")
            return
        time.sleep(0.05)


def _run(argv: list[str], limit_s: float) -> tuple[bytes, str]:
    """What a command prints, and its last word when it fails."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return b"", f"not within {limit_s:g} s"
    except OSError as e:
        return b"", str(e.strerror)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    # Its first line is the command line, which may hold secrets.
    text = b"".join(line for line in done.stdout[:_MOST].splitlines(keepends=True) if not line.startswith(b"Process "))
    return (text if done.returncode == 0 else b""), (lines[-1].strip()[:200] if lines else "")


def _ask(subject: Subject, out: Stack) -> bytes:
    """What faulthandler writes on the announced signal."""
    try:
        said = json.loads(subject.note.read_text())
        inner, start, number = int(said["pid"]), int(said["start"]), int(said["signal"])
        answers = subject.note.with_name(Path(str(said["file"])).name)
    except (OSError, ValueError, KeyError, TypeError):
        out.notes.append("its trainer does not announce faulthandler")
        return b""
    if number not in _ASKING or not _same_owner(subject):
        # A note can be forged by whoever may write beside it: the worst it can do is to name a harmless signal.
        out.notes.append("the note of faulthandler is not the rank's own, or names a signal that is not for asking")
        return b""
    stat = read_stat(subject.pid)
    if stat is None or stat.start != start or _inner_pid(subject.pid) != inner:
        out.notes.append("the note of faulthandler is another process's")
        return b""
    if stat.state not in LISTENING or not _catches(subject.pid, number):
        out.notes.append(f"not signalled: state {stat.state}, or the handler is gone")
        return b""
    try:
        before = answers.stat().st_size
        os.kill(subject.pid, number)
    except OSError as e:
        out.notes.append(f"faulthandler: {e.strerror}")
        return b""
    text = _grown(answers, before)
    if not text:
        out.notes.append(f"faulthandler: no answer within {_ANSWER_S:g} s")
    return text


def _same_owner(subject: Subject) -> bool:
    """Whether the note is a plain file of the user whose process it speaks of, and of nobody else's making."""
    try:
        owner = os.stat(f"/proc/{subject.pid}").st_uid
    except OSError:
        return False
    return not distrust(subject.note, friend=owner) and os.lstat(subject.note).st_uid == owner


def _grown(path: Path, before: int) -> bytes:
    """What was added to a file, once it has been quiet for a moment."""
    deadline, size, changed = time.monotonic() + _ANSWER_S, before, time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.05)
        try:
            now = path.stat().st_size
        except OSError:
            return b""
        if now != size:
            size, changed = now, time.monotonic()
        elif size > before and time.monotonic() - changed > _QUIET_S:
            break
    try:
        with path.open("rb") as file:
            file.seek(before)
            return file.read(_MOST)
    except OSError:
        return b""


def _inner_pid(pid: int) -> int:
    """The number that a process has in its own namespace: in a container it is another than here."""
    numbers = _status(pid, "NSpid").split()
    return int(numbers[-1]) if numbers else pid


def _catches(pid: int, number: int) -> bool:
    caught = _status(pid, "SigCgt")
    return bool(caught) and bool(int(caught, 16) >> (number - 1) & 1)


def _status(pid: int, name: str) -> str:
    for line in (read_bytes(f"/proc/{pid}/status") or b"").decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""
