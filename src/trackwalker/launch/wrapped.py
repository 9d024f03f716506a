"""The user's own command as our child: it must not be able to tell, and neither must whoever started us.

It shares our process group and standard input, so the terminal and job control are its own. Its output passes through
us byte for byte (pipes, or a raw terminal where ours is one) and is copied into a file that the agent follows. Signals
that are sent to us are passed on; when it dies we die the same way, and when we are killed it is killed with us, as if
it were the process that was started.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pty
import resource
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trackwalker.errors import TrackwalkerError
from trackwalker.job.processes import read_bytes, read_stat
from trackwalker.job.whole import write_whole

_CHUNK = 1 << 16
_TICK_S = 0.3
_QUIET_S = 0.2  # after the command's end: what its children still hold open is not waited for
_PDEATHSIG = 1
_PASSED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU", "SIGURG")
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# These signal a task's whole process group: the command has got it already, and twice is not once.
_TELL_ALL = {b"slurmstepd", b"orted", b"prted", b"mpirun", b"mpiexec", b"prterun", b"hydra_pmi_proxy"}


class NotStarted(TrackwalkerError):
    """The command cannot be executed; the exit code is the one that a shell gives."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code = code


class Wrapped:
    """A command that was started; `pid` and `start` name its process."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], files: Path) -> None:
        """`files` is the stem of what is written: .out, .exit, .told."""
        self._files = files
        self._kept = -1
        with contextlib.suppress(OSError):  # without a copy it runs all the same
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._kept = os.open(files.with_suffix(".out"), flags, 0o644)
        self._lock = threading.Lock()
        self._terminals: list[int] = []
        streams = [_Stream(1)]
        streams.append(streams[0] if _same(1, 2) else _Stream(2))
        self._streams = list(dict.fromkeys(streams))
        self._terminals = [s.source for s in self._streams if s.is_terminal]
        numbers = [getattr(signal, name) for name in _PASSED]
        self._passed = {n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
        watched = {*self._passed, signal.SIGCHLD, signal.SIGWINCH}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        ours = os.getpid()

        def as_ours() -> None:
            ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
            for number in self._passed:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if os.getppid() != ours:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            self._process = subprocess.Popen(
                list(argv), env=dict(env), stdout=streams[0].sink, stderr=streams[1].sink, preexec_fn=as_ours
            )
        except OSError as e:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            code = 127 if e.errno == errno.ENOENT else 126
            raise NotStarted(f"cannot run {argv[0]}: {e.strerror}", code) from e
        finally:
            for stream in self._streams:
                os.close(stream.sink)
        self._watched = watched
        self.pid = self._process.pid
        stat = read_stat(self.pid)
        self.start = stat.start if stat else 0
        self._threads = [threading.Thread(target=self._pass_on, args=(s,), daemon=True) for s in self._streams]
        for thread in self._threads:
            thread.start()

    def wait(self, meanwhile: Callable[[], None]) -> int:
        """Stay with it to its end; how it ended, negative for a signal. Called again and again: `meanwhile`."""
        while (ended := self._ended()) is None:
            heard = signal.sigtimedwait(self._watched, _TICK_S)
            if heard is not None and heard.si_signo != signal.SIGCHLD:
                self._hear(heard)
            if heard is None or heard.si_signo != signal.SIGCHLD:
                meanwhile()
        with contextlib.suppress(OSError):
            write_whole(self._files.with_suffix(".exit"), str(ended if ended >= 0 else 128 - ended))
        self._process.wait()  # not before: until it is reaped, the agent waits for the file
        self._drain()
        return ended

    def _ended(self) -> int | None:
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _hear(self, heard: signal.struct_siginfo) -> None:
        number = heard.si_signo
        if number == signal.SIGWINCH:
            for terminal in self._terminals:
                _resize(terminal)
            return
        if number in _ENDING:
            with contextlib.suppress(OSError):
                write_whole(self._files.with_suffix(".told"), str(int(number)))
        from_terminal = heard.si_code > 0
        sender = (read_bytes(f"/proc/{heard.si_pid}/comm") or b"").strip()
        if not from_terminal and sender not in _TELL_ALL:
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)

    def _pass_on(self, stream: _Stream) -> None:
        while True:
            try:
                chunk = os.read(stream.source, _CHUNK)
            except OSError:
                chunk = b""  # a terminal that everybody has closed
            if not chunk:
                break
            stream.moved = time.monotonic()
            with self._lock:
                self._keep(chunk)
            if not _write(stream.number, chunk):
                break  # the reader has left: the command is to learn it as it would have without us
        stream.done = True
        os.close(stream.source)

    def _keep(self, chunk: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk costs the copy, never the command's own output
            while chunk and self._kept >= 0:
                chunk = chunk[os.write(self._kept, chunk) :]

    def _drain(self) -> None:
        """What is on its way arrives; what children of the command hold open goes on without us."""
        ended = time.monotonic()
        while not all(stream.done for stream in self._streams):
            time.sleep(0.01)
            busy = any(_ready(s.source) for s in self._streams if not s.done)
            last = max([ended, *(s.moved for s in self._streams if not s.done)])
            if not busy and time.monotonic() - last > _QUIET_S:
                break
        left = [s for s in self._streams if not s.done]
        if left and os.fork() == 0:
            os.setsid()
            with contextlib.suppress(BaseException):
                self._relay(left)
            os._exit(0)

    def _relay(self, left: list[_Stream]) -> None:
        sources = {s.source: s.number for s in left}
        while sources:
            for source in select.select(list(sources), [], [])[0]:
                try:
                    chunk = os.read(source, _CHUNK)
                except OSError:
                    chunk = b""
                if not chunk or not _write(sources[source], chunk):
                    os.close(source)
                    del sources[source]


class _Stream:
    """One of the command's outputs: `sink` is its end, `source` ours, `number` where it goes."""

    def __init__(self, number: int) -> None:
        self.number, self.done, self.moved = number, False, 0.0
        self.is_terminal = os.isatty(number)
        if self.is_terminal:
            self.source, self.sink = pty.openpty()
            with contextlib.suppress(termios.error, OSError):
                modes = termios.tcgetattr(number)
                modes[1] &= ~termios.OPOST  # the real terminal turns line ends into what it needs, once
                termios.tcsetattr(self.sink, termios.TCSANOW, modes)
                _resize(self.source)
        else:
            self.source, self.sink = os.pipe()


def end_as(ended: int) -> int:
    """The exit code, or death by the same signal: whoever waits for us must see no difference."""
    if ended >= 0:
        return ended
    number = -ended
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command's core is the one to look at
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    return 128 + number


def _same(one: int, other: int) -> bool:
    """Whether two descriptors are one file: then their order is kept as well."""
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino, first.st_rdev) == (second.st_dev, second.st_ino, second.st_rdev)


def _resize(terminal: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(1 if os.isatty(1) else 2, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def _ready(source: int) -> bool:
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):
        return False


def _write(number: int, chunk: bytes) -> bool:
    """Write all of it; false when nobody will ever read it."""
    while chunk:
        try:
            chunk = chunk[os.write(number, chunk) :]
        except BlockingIOError:  # whoever gave us this descriptor made it so
            select.select([], [number], [])
        except OSError:
            return False
    return True
