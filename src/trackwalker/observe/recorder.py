"""The recorder: runs Prometheus beside a job, mirrors its database into the job directory, ends with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.job.services import announce, drop_login, keep_login, withdraw
from trackwalker.job.shards import Shard
from trackwalker.observe import remote_write
from trackwalker.observe.ending import Ending
from trackwalker.observe.live import LiveDir
from trackwalker.observe.login import login
from trackwalker.observe.mirror import Mirror
from trackwalker.observe.prometheus import ensure_prometheus
from trackwalker.observe.server import Server
from trackwalker.observe.targets import Targets
from trackwalker.observe.tensorboard import Board

TICK_S = 1.0
STARTING_S = 0.2  # until Prometheus is up, each tick delays the first sample
MIRROR_S = 2.0
LAST_SCRAPE_S = 1.5  # one more scrape interval after the end, so that the last values are in; never longer
CLOSE_S = 10.0  # how long a broken mirror is tried again at the end
_STEADY_S = 60.0  # a Prometheus that lasted this long did not die of its start
_FLAGS = ("--storage.tsdb.retention.time=30d", *remote_write.FLAGS)


class Recorder:
    """One job's recorder; `run` returns the exit code when the run is over."""

    def __init__(
        self,
        job_dir: Path,
        job_id: str,
        say: Callable[[str], None],
        flags: Sequence[str] = (),
        shard: Shard = Shard(),  # noqa: B008 - a value that nobody changes
        node: str = "",
        scrape_s: int = 0,
    ) -> None:
        """`shard`: which part of the nodes it records; `node`: where it runs, when that is not the first one."""
        self._job_dir, self._say, self._flags, self._shard = job_dir, say, (*_FLAGS, *flags), shard
        self._copy = shard.database(job_dir)
        self._live = LiveDir(job_dir, job_id, shard)
        self._scrape_s = scrape_s or shard.scrape_s
        self._mirror = Mirror(self._live.data, self._copy, self._live.log, say)
        # Prometheus reads a local copy: a job directory that is away for a while must not look like "no targets".
        self._targets = Targets(job_dir / "agent" / "targets", self._live.targets, job_id, say, shard.has)
        self._ending = Ending(job_dir, node=node)
        self._board = Board(job_dir, self._live.root / "tensorboard.log", say)
        self._stop = threading.Event()
        self._server: Server | None = None
        self._announced = False
        self._failures = 0
        self._next_start = 0.0
        self._next_mirror = 0.0
        self._trouble: str | None = None

    def run(self) -> int:
        """Record until the run is over or a signal says so."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal is not the end of the run
        binary = ensure_prometheus(self._say)
        self._live.claim()
        self._live.write_config(self._remote(), self._scrape_s)
        self._targets.follow()
        why = None
        while why is None:
            try:
                self._tick(binary)
                self._trouble = None
            except (OSError, subprocess.SubprocessError) as e:
                # A full or vanished disk: nothing of it may end the recording.
                if str(e) != self._trouble:
                    self._say(f"trouble, trying again: {e}")
                self._trouble = str(e)
            why = "stopped by a signal" if self._stop.wait(self._pause()) else self._ending.reason()
        return self._close(why)

    def _tick(self, binary: Path) -> None:
        now = time.monotonic()
        if self._server is None:
            if self._targets.found.is_set() and now >= self._next_start:
                self._start(binary)
        elif not self._server.running:
            self._note_death(now)
        elif self._server.ready():  # before that it may be rewriting its log: nothing to mirror
            if now >= self._next_mirror:
                self._next_mirror = now + MIRROR_S
                if not self._shard.alone:  # not with parents: a job directory that has vanished is not made anew
                    self._copy.parent.mkdir(exist_ok=True)
                self._mirror.sync()
            if not self._announced and self._speaks:
                keep_login(self._job_dir, login().password)
                announce(self._job_dir, "prometheus", self._server.port, self._server.process.pid)
            self._announced = True
            if self._speaks:
                self._board.tick()

    @property
    def _speaks(self) -> bool:
        """Whether it serves the job's pages; the others, on nodes of their own, only record."""
        return self._shard.number == 0

    def _pause(self) -> float:
        waiting = self._server is not None and not self._announced
        return STARTING_S if waiting or not self._targets.found.is_set() else TICK_S

    def _start(self, binary: Path) -> None:
        self._live.prepare(self._say)
        self._announced = False
        # It shares the machine with the training: by itself Go would run a thread for every core.
        env = {"GOMAXPROCS": os.environ.get("GOMAXPROCS", "2")}
        live = self._live
        self._server = Server(binary, live.data, live.config, live.log, self._flags, env, login())
        self._say(f"Prometheus started, pid {self._server.process.pid}, {self._server.url}")

    def _note_death(self, now: float) -> None:
        server = self._server
        if server is None:
            return
        self._server = None
        if server.lost_port():
            self._say(f"port {server.port} was taken meanwhile, trying another")
            return
        self._failures = 1 if time.time() - server.started > _STEADY_S else self._failures + 1
        wait = min(30.0, 2.0 ** (self._failures - 1))
        self._next_start = now + wait
        why = f" ({cause})" if (cause := server.cause()) else ""
        code = server.process.returncode
        self._say(f"Prometheus died with exit code {code}{why}, starting again in {wait:.0f} s")

    def _remote(self) -> remote_write.RemoteWrite | None:
        try:
            return remote_write.from_environment()
        except UsageError as e:  # checked at launch, wrong by now: the job's own recording does not depend on it
            self._say(f"{e}; nothing is sent, the recording goes on")
            return None

    def _close(self, why: str) -> int:
        self._say(f"ending: {why}")
        self._targets.stop()
        self._board.stop()
        if self._server is not None and self._server.running:
            time.sleep(LAST_SCRAPE_S)
            self._server.stop()
        if self._speaks:
            withdraw(self._job_dir, "prometheus")
            drop_login(self._job_dir)
        if not self._live.data.exists() or (self._live.settled and self._mirror_to_the_end()):
            self._live.remove()
            self._say("ended")
            return 0
        self._say(f"the mirror is incomplete; the rest is kept in {self._live.data}")
        return 1

    def _mirror_to_the_end(self) -> bool:
        deadline = time.monotonic() + CLOSE_S
        while not self._mirror.sync():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True
