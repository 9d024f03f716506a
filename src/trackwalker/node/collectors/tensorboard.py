"""The TensorBoard bridge: every scalar of every step in a job's event files becomes a tb_* sample with the step's time.

Nothing is made up: a trainer that writes nothing yields no sample. What the trainer reports by itself, without the
delay of event files (written out every two minutes or so), is left to it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackwalker.job.tfevents import EventFile, Scalar
from trackwalker.job.whole import write_whole
from trackwalker.node.exporter.backlog import Backlog
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import declared, families

METRICS = declared("tensorboard")
_OTHER = "tb_scalar"
_OWN = frozenset({"tb_step", _OTHER, *METRICS})
_MOST_TAGS = 1000
_MOST_BYTES = 1 << 18  # a second's reading; a step of MaxText has about 1 kB
_PER_SAMPLE = 8  # bytes: no scalar takes less, so reading cannot yield more than there is room for
_SAME_STEP_S = 1.0  # scalars of a step, written one after the other, share the time of the first
_MARK_S = 150.0
_CLOCKS_S = 120.0  # how far a file server's clock may be behind ours
_IDLE_ROUNDS = 12  # a damaged record is not given up at the first look
_PATIENCE_S = 2.0


class TensorboardCollector:
    """Follows all event files of one directory.

    A restarted agent goes back to a mark two to five minutes old and offers everything since then again: the samples
    are the same, so the database takes only those it does not have.
    """

    name = "tensorboard"

    def __init__(
        self,
        directory: Path,
        labels: dict[str, str],
        backlog: Backlog,
        state_file: Path,
        since: float,
        elsewhere: Callable[[], frozenset[str]] = frozenset,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._labels, self._backlog, self._state_file = directory, labels, backlog, state_file
        self._since = since  # earlier events belong to earlier jobs with the same output directory
        self._elsewhere = elsewhere  # metrics that the trainer reports by itself
        self._clock = clock
        self._lock = threading.Lock()
        self._files: dict[str, _Followed] = {}
        self._held: list[tuple[Scalar, float]] = []
        self._names: dict[str, str] = {}  # tag -> metric
        self._nonfinite: dict[str, int] = {}
        self._late = self._corrupt = 0
        self._late_step: int | None = None
        self._skipped: set[str] = set()
        self._load()
        self._marks = [self._mark(), self._mark()]
        self._marked = self._clock()
        self._saved = ""

    def collect(self) -> list[Family]:
        """Read what is new; the steps themselves go to the backlog."""
        with self._lock:
            self._release()
            self._move_marks()
            self._read()
            self._save()
            out = families(METRICS)
            elsewhere = self._elsewhere()
            for tag, name in self._names.items():
                if name not in elsewhere:
                    out["train_nonfinite_total"].add(self._nonfinite.get(tag, 0), None, **self._labels, tag=tag)
            out["tb_bridge_late_steps_total"].add(self._late, host=self._labels["host"])
            out["tb_bridge_corrupt_records_total"].add(self._corrupt, host=self._labels["host"])
            out["tb_bridge_skipped_tags"].add(len(self._skipped), host=self._labels["host"])
            return list(out.values())

    def finish(self) -> bool:
        """The trainer has ended: take in the rest at once; False where that would mean to wait."""
        if not self._lock.acquire(timeout=_PATIENCE_S):  # a file server that hangs must not hold up the agent's end
            return False
        try:
            idle = 0
            while idle <= _IDLE_ROUNDS:
                idle = 0 if self._read() else idle + 1
                self._release()
        finally:
            self._lock.release()
        return True

    def _read(self) -> bool:
        """One round over the files; whether it moved forward."""
        before = sum(f.offset for f in self._files.values())
        self._look_for_files()
        budget = min(_MOST_BYTES, self._backlog.room() * _PER_SAMPLE)
        for followed in sorted(self._files.values(), key=lambda f: _age(f.path.name)):
            begin = followed.offset
            if budget <= 0:
                break
            with contextlib.suppress(OSError):  # gone, or not ours to read
                self._held += followed.read(budget, self._since)
            self._corrupt += followed.take_corrupt()
            budget -= followed.offset - begin
        return sum(f.offset for f in self._files.values()) > before

    def _look_for_files(self) -> None:
        try:
            with os.scandir(self._directory) as entries:
                found = [(e.name, e.stat()) for e in entries if "tfevents" in e.name and e.is_file()]
        except OSError:  # not there yet
            return
        for name, stat in found:
            known = self._files.get(name)
            if known and (known.device, known.inode) == (stat.st_dev, stat.st_ino) and stat.st_size >= known.offset:
                known.size = stat.st_size
            elif stat.st_mtime >= self._since - _CLOCKS_S:
                self._files[name] = _Followed(self._directory / name, stat.st_dev, stat.st_ino, size=stat.st_size)

    def _release(self) -> None:
        # What was read is handed on at the next round: by then the trainer's own record of that step, written before
        # it, has been seen, and the bridge knows which metrics are not its business.
        elsewhere = self._elsewhere()
        for scalar, stamp in self._held:
            name = self._name(scalar.tag)
            fits = True
            if "tb_step" not in elsewhere:
                self._backlog.add("tb_step", "Last completed step.", scalar.step, stamp, self._labels)
            if name is not None and name not in elsewhere:
                if not math.isfinite(scalar.value):
                    self._nonfinite[scalar.tag] = self._nonfinite.get(scalar.tag, 0) + 1
                extra = {"tag": scalar.tag} if name == _OTHER else {}
                about = f"TensorBoard scalar {scalar.tag}" if not extra else "TensorBoard scalars of other tags."
                fits = self._backlog.add(name, about, scalar.value, stamp, {**self._labels, **extra})
            if not fits and scalar.step != self._late_step:
                self._late += 1
                self._late_step = scalar.step
        self._held = []

    def _name(self, tag: str) -> str | None:
        """The metric of a tag; of two tags that would have one name, the first seen has it."""
        if tag not in self._names:
            if len(self._names) >= _MOST_TAGS:
                if len(self._skipped) < _MOST_TAGS:
                    self._skipped.add(tag)
                return None
            name = "tb_" + re.sub(r"[^A-Za-z0-9_]", "_", tag)
            self._names[tag] = _OTHER if name in _OWN or name in self._names.values() else name
        return self._names[tag]

    def _mark(self) -> dict[str, Any]:
        """Where we stand, with nothing held back."""
        files = {name: f.saved() for name, f in self._files.items()}
        return {"files": files, "nonfinite": dict(self._nonfinite), "late": self._late, "corrupt": self._corrupt}

    def _move_marks(self) -> None:
        if self._clock() - self._marked >= _MARK_S:
            self._marks = [self._marks[1], self._mark()]
            self._marked = self._clock()

    def _save(self) -> None:
        text = json.dumps({"v": 1, "names": self._names, **self._marks[0]})
        if text == self._saved:
            return
        with contextlib.suppress(OSError):  # a full disk: a restart would go back further
            self._state_file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._state_file, text)
            self._saved = text

    def _load(self) -> None:
        try:
            state = json.loads(self._state_file.read_text())
            self._files = {n: _Followed(self._directory / n, **saved) for n, saved in state["files"].items()}
            self._names = {str(tag): str(name) for tag, name in state["names"].items()}
            self._nonfinite = {str(tag): int(count) for tag, count in state["nonfinite"].items()}
            self._late, self._corrupt = int(state["late"]), int(state["corrupt"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none yet, or not ours: read from the start
            self._files, self._names, self._nonfinite, self._late, self._corrupt = {}, {}, {}, 0, 0


class _Followed:
    """One event file, how far it is read, and the step that is being read."""

    def __init__(
        self, path: Path, device: int, inode: int, offset: int = 0, step: int = -1, stamp: float = 0.0, size: int = 0
    ) -> None:
        self.path, self.device, self.inode, self.size = path, device, inode, size
        self._file = EventFile(path, offset)
        self._step, self._stamp = step, stamp

    @property
    def offset(self) -> int:
        return self._file.offset

    def saved(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "inode": self.inode,
            "offset": self.offset,
            "step": self._step,
            "stamp": self._stamp,
        }

    def read(self, most_bytes: int, since: float) -> list[tuple[Scalar, float]]:
        """New scalars, each with the time of its step."""
        if self.size <= self.offset:
            return []
        out = []
        for scalar in self._file.read(most_bytes):
            if scalar.wall_time < since:
                continue
            if scalar.step != self._step or not 0 <= scalar.wall_time - self._stamp <= _SAME_STEP_S:
                self._step, self._stamp = scalar.step, scalar.wall_time
            out.append((scalar, self._stamp))
        return out

    def take_corrupt(self) -> int:
        count, self._file.corrupt = self._file.corrupt, 0
        return count


def _age(name: str) -> tuple[int, str]:
    """Event files in the order they were begun: the time stands in the name, events.out.tfevents.<seconds>.<host>…"""
    match = re.search(r"tfevents\.(\d{1,18})", name)
    return int(match[1]) if match else 0, name
