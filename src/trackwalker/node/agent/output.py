"""Rank output: raw files in, timestamped per-rank logs and upstream's merged log out."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from datetime import datetime, timezone
from pathlib import Path

_CHUNK = 1 << 16  # a buffer of this size is allocated ten times a second, mostly for nothing
_LONGEST = 1 << 16  # a line longer than this is passed on in pieces, so that memory stays bounded
_MOST_LINES = 10000  # of one call; the rest is for the next
_PATIENCE_S = 10.0  # with whoever reads standard output


class Tail:
    """Follows a growing file by offset and yields whole lines."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset  # first byte not yet handed out
        self._rest = b""
        self._fd = -1

    def lines(self, final: bool = False) -> list[bytes]:
        """Lines completed since the last call, a bounded number; with `final` also an unfinished one at the end."""
        out: list[bytes] = []
        while len(out) <= _MOST_LINES:
            chunk = self._read()
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            out.extend(whole)
            self.offset += sum(len(line) + 1 for line in whole)
            at_end = not chunk
            if len(self._rest) > _LONGEST or (at_end and final and self._rest):
                out.append(self._rest)
                self.offset += len(self._rest)  # there is no newline to count
                self._rest = b""
            if at_end:
                break
        return out

    def _read(self) -> bytes:
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                os.lseek(self._fd, self.offset, os.SEEK_SET)
            return os.read(self._fd, _CHUNK)
        except OSError:
            return b""

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Sink:
    """An append-only text file, or standard output; a full disk costs lines, never the agent."""

    def __init__(self, path: Path | None) -> None:
        self._path = path or Path("standard output")
        self._fd: int | None = None if path else 1
        self._own = path is not None
        self._patience_s = _PATIENCE_S
        self._torn = False
        self.lost = 0

    def write(self, text: bytes) -> None:
        """Append in one write; count what could not be written."""
        text = b"\n" + text if self._torn else text
        done = 0
        try:
            if self._fd is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            while done < len(text):  # a disk that is nearly full takes a part
                done += os.write(self._fd, text[done:] if self._own else self._bite(text[done:]))
            self._torn = False
        except OSError as e:
            self._torn = self._torn or done > 0
            if not self.lost:
                complain(f"cannot write {self._path.name}: {e.strerror}; lines are lost until it is repaired")
            self.lost += 1

    def copy(self, line: bytes) -> None:
        """Append one line of another node's log."""
        self.write(line + b"\n")

    def _bite(self, text: bytes) -> bytes:
        """As much as standard output takes at once: a reader that has stopped reading must not stop the agent."""
        ready = select.select([], [1], [], self._patience_s)[1]
        self._patience_s = _PATIENCE_S if ready else 0.0  # once is enough to wait for it
        if not ready:
            raise OSError(errno.EAGAIN, "nobody reads it")
        return text[: select.PIPE_BUF]

    def size(self) -> int:
        """How many bytes the file has now."""
        try:
            return os.fstat(self._fd).st_size if self._fd is not None else self._path.stat().st_size  # a pipe has none
        except OSError:
            return 0

    def cut_back(self, size: int) -> None:
        """Take back what was written after a size was noted."""
        with contextlib.suppress(OSError):
            if self.size() > size:
                os.truncate(self._path, size)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None and self._fd != 1:
            os.close(self._fd)
            self._fd = None


def complain(text: str) -> None:
    """A line for the agent's own log, which may be on the very disk that is full."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "replace") + b"\n")


def stamp(time: float) -> bytes:
    """A UTC time as the per-rank logs carry it."""
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3].encode() + b"Z "


def label(rank: int, world: int) -> str:
    """The prefix of a rank's line in the merged log, padded as `srun -l` pads it."""
    return f"{rank:>{len(str(max(world - 1, 0)))}}: "


def limit_text(limit: float | None) -> str:
    """How long a stage may take, as the line of its beginning says it."""
    return "no timeout" if limit is None else f"timeout={limit:.0f}s"


class RankOutput:
    """Pumps one rank's raw output into its own log and the merged one, labelled as `srun -l` does."""

    def __init__(
        self, rank: int, world: int, raw: Path, log: Path, merged: Sink, offset: int, old: int | None = None
    ) -> None:
        self.tail = Tail(raw, offset)
        self._old = old or 0  # bytes that were printed before we came: nobody knows when
        self.log = Sink(log)
        self._merged = merged
        # The file that a run which was joined later prints into is the run's, not one rank's.
        self._label = label(rank, world).encode() if old is None else b""

    def pump(self, now: float, final: bool = False) -> list[bytes]:
        """Move what is new; returns the lines for whoever wants to read them as of now."""
        is_old = self.tail.offset < self._old
        lines = self.tail.lines(final)
        if lines:
            self._merged.write(b"".join(self._label + line + b"\n" for line in lines))
        if is_old:
            return []
        if lines:
            mark = stamp(now)
            self.log.write(b"".join(mark + line + b"\n" for line in lines))
        return lines

    def close(self) -> None:
        """Close both files."""
        self.tail.close()
        self.log.close()
