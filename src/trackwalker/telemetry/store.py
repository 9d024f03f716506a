"""Open any job's metrics database behind a private Prometheus; the database itself stays as it is, byte for byte."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from trackwalker.errors import EvidenceError, MissingToolError
from trackwalker.job.shards import databases
from trackwalker.observe.login import login
from trackwalker.observe.prometheus import find_prometheus
from trackwalker.observe.server import Server
from trackwalker.observe.tsdb import Block, list_parts, read_block
from trackwalker.telemetry.client import Api, Floats, Labels, Telemetry
from trackwalker.telemetry.direct.answers import Direct, Traffic
from trackwalker.telemetry.direct.decoding import KERNEL, compile_ahead, is_compiled
from trackwalker.telemetry.direct.unxor import DamagedError
from trackwalker.telemetry.foreign.borrowed import untold, write_ours
from trackwalker.telemetry.foreign.names import Rule
from trackwalker.telemetry.probe import (
    MOST_SAMPLES,
    about,
    count_chunks,
    has_deletions,
    hide_unreadable,
    last_error,
    readable,
    suspicious,
)
from trackwalker.telemetry.view import View, check_source, explain

__all__ = ["KERNEL", "Telemetry", "compile_ahead", "is_compiled", "is_large", "open_database"]

READY_S = 600.0  # replaying a large log takes minutes
_FLAGS = (
    "--storage.tsdb.retention.time=100y",
    # A head that never fills its block is never compacted, and blocks of the only size are never merged.
    "--storage.tsdb.min-block-duration=50y",
    "--storage.tsdb.max-block-duration=50y",
    "--query.max-samples=200000000",
    "--query.lookback-delta=5m",
    "--query.timeout=5m",
)
_ORPHANS = re.compile(r"Unknown series references.*?\bsamples=(\d+)")
_ADMIN = "--web.enable-admin-api"  # to hide series in the view when something is wrong, and to write its log as a block
_LOGGED_BYTES = 8  # of a log for each sample, about
# Prometheus' time goes with series times questions, that of the blocks with samples: on two idle cores 3,300 series
# over 24 h took 4.8 s by Prometheus and 6.7 s from the blocks, 35,000 over 2 h 13.3 s and 5.9 s.
_MANY_SERIES = 10_000
_PARTS_AT_ONCE = 2  # each is a Prometheus that replays a log
_PREFIX = f"trackwalker-view-{os.getuid()}-"


@contextmanager
def open_database(db_dir: Path, direct_from: int = MOST_SAMPLES, ours: bool = True) -> Iterator[Telemetry]:
    """Open a metrics database for queries, as a private view that is removed at the end.

    One of many series and more than `direct_from` samples is read without Prometheus, as far as that goes; 0: any.
    What other exporters call otherwise is there in our names too, unless only what is stored is wanted (`ours`).
    """
    check_source(db_dir)
    binary = find_prometheus()
    if binary is None:
        raise MissingToolError("metrics need Prometheus >= 2.40: run 'trackwalker setup' or set TRACKWALKER_PROMETHEUS")
    _remove_stale()
    with ExitStack() as stack:
        root = _private_folder(stack)
        parts = databases(db_dir)
        try:
            together = _together(parts, binary, root) if len(parts) > 1 or parts != [db_dir] else None
            view = View(db_dir if together is None else together.folder, root / "data")
            view.named = db_dir
            view.build()
            view.damage += together.damage if together is not None else []
            (root / "prometheus.yml").write_text("global: {}\n")
            opened = _Opened(binary, view, root)
            stack.callback(opened.close)
            direct, large_log = opened.direct(direct_from), view.wal_bytes > direct_from * _LOGGED_BYTES
            if direct is None:
                opened.start(*((_ADMIN,) if large_log else ()))
                opened.check_blocks()
        except OSError as e:
            raise explain(e, db_dir) from e
        bounds = opened.bounds()
        if large_log:
            direct = opened.flattened(direct_from)
        if not bounds:
            raise EvidenceError(_nothing(view, "it holds no samples"))
        found = Telemetry(opened, bounds, view.damage, opened.unreadable, direct)
        rules = untold(found.metrics()) if ours else []
        yield opened.in_our_names(found, rules, direct_from) if rules else found


class _Opened:
    """A view with its Prometheus; parts that keep it from starting are taken out one after the other."""

    def __init__(self, binary: Path, view: View, root: Path) -> None:
        self._binary, self._view, self._root = binary, view, root
        self._server: Server | None = None
        self._api: Api | None = None
        self._salvaged = self._closed = False
        self._lock = threading.RLock()
        self.unreadable: set[str] = set()
        self.traffic = Traffic()

    def direct(self, least: int) -> Direct | None:
        """The blocks themselves, where all samples are in them and they are many."""
        view = self._view
        if view.has_wal or view.damage or sum(b.samples for b in view.blocks) <= least:
            return None
        if least and _at_once(view.blocks) <= _MANY_SERIES:
            return None
        folders = [view.data / b.name for b in view.blocks]
        if any(has_deletions(folder / "tombstones") for folder in folders):
            return None
        try:
            return Direct(folders, self.traffic)
        except DamagedError:
            return None  # what is wrong with it is Prometheus' to say

    def flattened(self, least: int) -> Direct | None:
        """The same after Prometheus has written what is in the log into a block too; then it may rest."""
        try:
            if (
                least
                and int(self.api.call("/api/v1/status/tsdb", method="GET")["headStats"]["numSeries"]) <= _MANY_SERIES
            ):
                return None
            self._flatten()
        except (KeyError, ValueError, OSError):
            return None  # no room, say: it goes on as it is
        return self.direct(least)

    def _flatten(self) -> None:
        self.snapshot()
        with self._lock:
            self._stop()

    def in_our_names(self, found: Telemetry, rules: list[Rule], least: int) -> Telemetry:
        """The same database with what these rules know in our names as well, in a block of its own."""
        try:
            renamed = write_ours(found, rules, self._root / "ours")
            if self._view.has_wal:  # Prometheus takes nothing from a log that is older than a block
                self.start(_ADMIN)
                self._flatten()
            with self._lock:
                self._stop()
            self._view.add(self._root / "ours")
        except (KeyError, ValueError, OSError):
            return found  # no room, say: it goes on as it is
        made = Telemetry(self, self.bounds(), self._view.damage, self.unreadable, self.direct(least))
        made.renamed = renamed
        return made

    def snapshot(self) -> None:
        """Have Prometheus write what is in the log into a block, and go on with the blocks."""
        name = self.api.call("/api/v1/admin/tsdb/snapshot")["name"]
        self._view.move(self._view.data / "snapshots" / str(name))

    @property
    def api(self) -> Api:
        """Its Prometheus; started now, where the blocks answered everything so far."""
        with self._lock:
            if self._api is None and not self._closed:
                self.start()
                self.check_blocks()
            if self._api is None:
                raise EvidenceError("the database is closed")
            return self._api

    @property
    def url(self) -> httpx.URL:
        """Where its Prometheus answers."""
        return self.api.url

    def call(self, path: str, params: Mapping[str, Any] | None = None, method: str = "POST") -> Any:
        """The `data` of an API answer."""
        return self.api.call(path, params, method)

    def samples(self, path: str, params: Mapping[str, Any]) -> list[tuple[Labels, Floats, Floats]]:
        """The labels, times and values of every series of a matrix answer."""
        return self.api.samples(path, params)

    def start(self, *extra: str) -> None:
        while True:
            self._stop()
            # Left by the start before, which was cut off in writing it; everything in it comes from the log.
            shutil.rmtree(self._view.data / "chunks_head", ignore_errors=True)
            server = Server(
                self._binary,
                self._view.data,
                self._root / "prometheus.yml",
                self._root / "prometheus.log",
                (*_FLAGS, *extra),
                login=login(),
            )
            self._server = server
            self._api = Api(server.access, partial(_last_words, server), self.traffic)
            if server.wait_ready(READY_S):
                if not self._mend_log(server.said()):
                    return
            elif not server.lost_port() and not self._mend_log(server.said()):
                self._leave_out(server)

    def check_blocks(self) -> None:
        """Find what cannot be read in the blocks, and take out as little as possible."""
        view = self._view
        total = sum(b.samples for b in view.blocks)
        bad = [b for b in view.blocks if suspicious(b, view.data / b.name, total) and readable(self.api, b)]
        if bad:
            self.start(_ADMIN)
        for block in bad:
            why = readable(self.api, block)
            if count_chunks(view.data / block.name / "chunks") == 0 or not self._hide(block):
                view.drop_block(block.name, why or "unreadable")
                self.start(_ADMIN)

    def _hide(self, block: Block) -> bool:
        """Hide unreadable series; False when nothing worth keeping would be left of the block."""
        try:
            names = self.api.call("/api/v1/label/__name__/values", method="GET")
            hidden, hopeless = hide_unreadable(self.api, block)
        except ValueError:
            return False
        if len(hopeless) > len(names) / 2:
            return False
        if hidden:
            what = f"samples of {len(hidden)} series are unreadable and left out, first {hidden[0]}"
            self._view.damage.append(f"{block.name}/chunks: {what}")
        if hopeless:
            self.unreadable |= hopeless
            self._view.damage.append(
                f"{block.name}/index: metrics left out as unreadable: {', '.join(sorted(hopeless))}"
            )
        return True

    def bounds(self) -> list[tuple[int, int]]:
        """First and last millisecond of each part that has samples."""
        found = [(b.first, b.end - 1) for b in self._view.blocks]
        if self._api is None:
            return found
        head = self.api.call("/api/v1/status/tsdb", method="GET")["headStats"]
        if head["numSeries"] and head["minTime"] <= head["maxTime"]:  # an empty head has impossible times
            found.append((head["minTime"], head["maxTime"]))
        return found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def _stop(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None
        if self._server is not None:
            self._server.stop(grace=0.0)  # nothing in the view is worth waiting for
            self._server = None

    def _mend_log(self, said: str) -> bool:
        """Whether the log was bad and Prometheus has to start again on a better copy."""
        spot = self._view.bad_spot(said)
        orphans = _ORPHANS.search(said)
        if orphans and int(orphans[1]) and any(line.startswith("wal") for line in self._view.damage):
            # Also met in sound logs, of series long gone; in a bad one it says what the lost records cost.
            self._view.damage.append(f"wal: {orphans[1]} samples left out, the names of their series were lost")
        if spot is None:
            return False
        if self._salvaged:
            self._view.damage.append(f"{spot}: not readable beyond a bad record; later samples may be missing")
            return False
        self._stop()
        self._view.salvage_wal()
        self._salvaged = True
        return True

    def _leave_out(self, server: Server) -> None:
        said = last_error(server.said())
        named = [b.name for b in self._view.blocks if b.name in said]
        if any(not (self._view.source / name).exists() for name in named):
            self._view.build()  # not bad, but merged into another between our look and Prometheus'
            self._salvaged = False
        elif named:
            for name in named:
                why = about(name, said)
                if "tombstones" in why and (self._view.data / name / "tombstones").exists():
                    self._view.drop_tombstones(name)
                else:
                    self._view.drop_block(name, why)
        elif self._view.has_wal and not server.running:
            self._view.drop_wal(said)
        else:
            raise EvidenceError(_nothing(self._view, said))
        if not self._view.blocks and not self._view.has_wal:
            raise EvidenceError(_nothing(self._view, "no part of it can be read"))


@dataclass(frozen=True)
class _Together:
    """One folder of blocks from the databases of several recorders."""

    folder: Path
    damage: list[str]


def _together(parts: list[Path], binary: Path, root: Path) -> _Together:
    """Each recorder's log is written as a block by a Prometheus of its own; then all blocks are one database."""
    found = _Together(root / "together", [])
    found.folder.mkdir()

    def read(part: Path) -> View:
        home = root / part.name
        home.mkdir()
        view = View(part, home / "data")
        opened = _Opened(binary, view, home)
        try:
            view.build()
            if view.has_wal:
                (home / "prometheus.yml").write_text("global: {}\n")
                opened.start(_ADMIN)
                opened.check_blocks()
                opened.snapshot()
        except (EvidenceError, KeyError, ValueError) as e:  # the other recorders' parts are as good as they were
            view.damage.append(" ".join(str(e).split()))
        finally:
            opened.close()
        return view

    with ThreadPoolExecutor(_PARTS_AT_ONCE) as pool:
        for part, view in zip(parts, pool.map(read, parts), strict=True):
            found.damage.extend(f"{part.name}: {line}" for line in view.damage)
            for block in view.blocks:
                (found.folder / block.name).symlink_to(view.data / block.name)
    return found


def is_large(db_dir: Path) -> bool:
    """Whether a database is one that is read from its blocks, as far as these tell; nothing of it is opened."""
    blocks: list[Block] = []
    for part in databases(db_dir):
        with suppress(OSError, ValueError):
            blocks += [read_block(part / name) for name in list_parts(part).blocks]
    return _at_once(blocks) > _MANY_SERIES and sum(b.samples for b in blocks) > MOST_SAMPLES


def _at_once(blocks: list[Block]) -> int:
    """The most series of one moment: blocks of recorders side by side add up, blocks one after the other do not."""
    return max((sum(b.series for b in blocks if b.first <= a.first < b.end) for a in blocks), default=0)


def _nothing(view: View, why: str) -> str:
    if view.damage:
        return f"metrics database {view.named} is unreadable: {'; '.join(view.damage)}"
    return f"metrics database {view.named} is empty or unreadable: {why}"


def _last_words(server: Server) -> str:
    return last_error(server.said())


def _private_folder(stack: ExitStack) -> Path:
    root = Path(tempfile.gettempdir(), f"{_PREFIX}{os.getpid()}-{time.monotonic_ns():x}")
    stack.callback(shutil.rmtree, root, ignore_errors=True)  # before it is there: a signal may come at any moment
    root.mkdir(mode=0o700)
    lock = os.open(root / "lock.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, lock)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(root / "lock.new", root / "lock")  # seen by others only when it is held
    return root


def _remove_stale() -> None:
    """Remove the views of processes that were killed; the kernel lock tells better than a pid that may be reused."""
    for root in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(root / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # No lock file: just being made, or its maker died in that instant.
            if time.time() - _changed(root) > 60:
                shutil.rmtree(root, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()
