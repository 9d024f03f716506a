"""The file-system probe's own process: forks one child for each probe, and stays free itself.

It runs from its source text (see collectors/filesystem.py) and imports nothing of ours. Being there before anything
hangs, it can start children when the file system that holds Python no longer answers. Commands on standard input are
`go KEY PATH` and `kill KEY`; lines on standard output are `KEY space FREE SIZE`, `KEY begin OP`, `KEY done OP SECONDS`,
`KEY error OP NAME`, `KEY end` from a child and `KEY gone` when the child is really no more. At the end of the input it
leaves; children that hang end by themselves when their call returns.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable

_LONGEST_MS = 1000


def probe(key: str, path: str) -> None:
    """Time a few operations on one tiny file; whatever happens, leave no file behind."""
    moved = path + ".moved"
    clean(path)  # what a child that was killed has left
    space(key, os.path.dirname(path))
    fd = -1

    def create() -> None:
        nonlocal fd
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write() -> None:
        os.write(fd, b"trackwalker\n" * 32)
        os.fsync(fd)

    def read() -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # from the server, not from our own cache
        os.pread(fd, 4096, 0)

    def rename() -> None:
        os.rename(path, moved)

    def stat() -> None:
        os.stat(moved)

    def unlink() -> None:
        os.unlink(moved)

    done = False
    try:
        for step in (create, write, read, rename, stat, unlink):
            if not timed(key, step):
                break
        else:
            done = True
    finally:
        if fd >= 0:
            os.close(fd)
        if not done:
            clean(path)
    say(key, "end")


def timed(key: str, step: Callable[[], None]) -> bool:
    """Whether the step worked; the steps that follow need it."""
    say(key, "begin", step.__name__)
    begin = time.perf_counter()
    try:
        step()
    except OSError as error:
        say(key, "error", step.__name__, errno.errorcode.get(error.errno or 0, "EIO"))
        return False
    say(key, "done", step.__name__, repr(time.perf_counter() - begin))
    return True


def space(key: str, folder: str) -> None:
    """Bytes free for users, and bytes in all."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return  # the steps that follow will name the error
    say(key, "space", str(found.f_bavail * found.f_frsize), str(found.f_blocks * found.f_frsize))


def clean(path: str) -> None:
    """Remove the probe's file under both of its names."""
    for name in (path, path + ".moved"):
        try:
            os.unlink(name)
        except OSError:
            continue


def say(*words: str) -> None:
    """A line for the agent; short enough to arrive in one piece."""
    os.write(1, " ".join(words).encode() + b"\n")


def fork(work: Callable[[], None]) -> tuple[int, int]:
    """A child's process id, and a pipe that closes when it ends."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    try:
        os.close(ours)
        os.close(0)
        work()
    finally:
        os._exit(0)


def tidy(path: str) -> None:
    """Clean in a process of its own, which may hang."""
    fork(lambda: clean(path))


class Server:
    """The children under way."""

    def __init__(self) -> None:
        self._children: dict[int, tuple[int, str, str]] = {}  # pipe: process, key, path
        self._leaving: dict[int, str] = {}  # ended, but not yet gone: the kernel still closes their files
        self._unclean: set[str] = set()  # paths whose last child was killed
        self._poll = select.poll()

    def run(self) -> None:
        """Serve until the input ends."""
        self._poll.register(0, select.POLLIN)
        rest = b""
        pause = 1
        while True:
            pause = min(2 * pause, _LONGEST_MS)
            for fd, _ in self._poll.poll(pause if self._leaving else None):
                if fd != 0:
                    self._ended(fd)
                    pause = 1
                    continue
                chunk = os.read(0, 65536)
                if not chunk:
                    return self._leave()
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._command(*line.decode("utf-8", "surrogateescape").split(" ", 2))
            for pid in list(self._leaving):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    say(self._leaving.pop(pid), "gone")

    def _command(self, word: str, key: str, path: str = "") -> None:
        if word == "go":
            pid, pipe = fork(lambda: probe(key, path))
            self._children[pipe] = (pid, key, path)
            self._unclean.discard(path)
            self._poll.register(pipe, select.POLLIN)
        for pid, other, its_path in self._children.values():
            if word == "kill" and other == key:
                os.kill(pid, signal.SIGKILL)
                self._unclean.add(its_path)

    def _ended(self, pipe: int) -> None:
        self._poll.unregister(pipe)
        os.close(pipe)
        pid, key, _ = self._children.pop(pipe)
        self._leaving[pid] = key

    def _leave(self) -> None:
        for path in self._unclean:
            tidy(path)


if __name__ == "__main__":
    Server().run()
