"""Whom Prometheus scrapes: every agent that announced itself, and nobody who merely answers on its port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trackwalker.job.whole import write_whole

LOOK_S = 0.5
_LOOK_EACH_S = 0.01  # a shared file system is asked for each file: a hundred questions a second, not more
CHECK_S = 5.0  # a port can change hands while an agent is dead: ask again who is there
_PATIENCE_S = 1.0
_AT_ONCE = 16
_MOST_READ = 1 << 16
JOB_HEADER = "Trackwalker-Job"  # what the agent's exporter puts into every answer

Group = dict[str, Any]  # of a Prometheus targets file


class Targets:
    """Keeps Prometheus' own targets file; the job directory may be slow or away, so this is a thread of its own.

    A target that does not answer stays: that it is down is worth recording. One that answers as somebody else is left
    out, because its samples would be stored as ours.
    """

    def __init__(
        self,
        announced: Path,
        live: Path,
        job_id: str,
        say: Callable[[str], None],
        has: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`has` says of a node whether it is ours to scrape."""
        self.found = threading.Event()  # there is something to scrape
        self._has = has
        self._announced, self._live, self._job_id, self._say = announced, live, job_id, say
        self._marks: dict[str, tuple[int, int]] = {}
        self._groups: dict[str, list[Group]] = {}
        self._strangers: set[str] = set()
        self._checked = 0.0
        self._written = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self) -> None:
        """Look again and again from a thread, until stopped."""
        self._thread = threading.Thread(target=self._follow, name="targets", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write nothing more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * _PATIENCE_S)

    def _follow(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError):  # the file system is away: what we knew still holds
                self.look()
            self._stop.wait(max(LOOK_S, len(self._marks) * _LOOK_EACH_S))

    def look(self) -> None:
        """Take in what changed, ask who answers when it is time to, and tell Prometheus."""
        changed = self._read()
        now = time.monotonic()
        groups = [group for file in sorted(self._groups) for group in self._groups[file]]
        if changed or now - self._checked > CHECK_S:
            self._checked = now
            self._check({target for group in groups for target in group["targets"]})
        ours = [{**g, "targets": [t for t in g["targets"] if t not in self._strangers]} for g in groups]
        text = json.dumps([group for group in ours if group["targets"]])
        if groups and text != self._written:
            write_whole(self._live, text)
            self._written = text
            self.found.set()

    def _read(self) -> bool:
        """Read the files that are new or changed; whether there were any."""
        marks = {}
        for entry in os.scandir(self._announced):
            if entry.name.endswith(".json") and self._has(entry.name.removesuffix(".json")):
                stat = entry.stat()
                marks[entry.name] = (stat.st_mtime_ns, stat.st_size)
        if marks == self._marks:
            return False
        groups = {}
        for name, mark in marks.items():
            known = self._groups.get(name)
            if known is not None and mark == self._marks.get(name):
                groups[name] = known
            elif (new := groups_in(self._announced / name)) is not None:
                groups[name] = new
            elif known is not None:
                groups[name] = known
        # What could not be read is not marked as seen, so that it is tried again.
        self._marks, self._groups = {n: m for n, m in marks.items() if n in groups}, groups
        return True

    def _check(self, targets: Iterable[str]) -> None:
        asked = sorted(targets)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = dict(zip(asked, pool.map(agent_at, asked), strict=True))
        strangers = {t for t, said in answers.items() if said is not None and said[0] != quote(self._job_id)}
        for target in sorted(strangers - self._strangers):
            self._say(f"{target} is answered by another program, not by this job's agent: not scraped")
        for target in sorted((self._strangers - strangers) & set(asked)):
            self._say(f"{target} is no longer answered by another program: scraped again")
        self._strangers = strangers


def agent_at(
    target: str, path: str = "/healthz", most: int = _MOST_READ, patience_s: float = _PATIENCE_S
) -> tuple[str, bytes] | None:
    """Whose agent answers there (its job, empty for a stranger) and what it says; None when nobody answers.

    A connection of our own, closed at once: a recorder's place in the agent's backlog is not touched.
    """
    host, _, port = target.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=patience_s)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read(most)  # closing with something unread would look like a broken connection over there
        return answer.getheader(JOB_HEADER, ""), body
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def groups_in(path: Path) -> list[Group] | None:
    """What one agent announced; None where that cannot be read."""
    try:
        groups = json.loads(path.read_bytes())
        for group in groups:
            if not all(t.rpartition(":")[2].isdecimal() for t in group["targets"]):
                return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return list(groups)
