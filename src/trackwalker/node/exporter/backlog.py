"""Samples that carry their own time, kept until every scraper has had them: no step is lost between two scrapes.

Each scraper has a cursor (the exporter keeps one per connection), so a sample travels once, a missed scrape is made up
for by the next, and a second scraper takes nothing from the first. A new connection starts at the oldest sample still
here: a database drops what it already has, because time and value are the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice

from trackwalker.node.exporter.exposition import Family

KEEP_S = 300.0  # a recorder that restarts within this finds everything here
MOST = 20_000  # samples in memory
_AT_ONCE = 5_000  # in one answer: a long backlog must not make every scrape run into its time-out
OLDEST_S = 3300.0  # Prometheus refuses what is an hour older than its newest sample


class Backlog:
    """A bounded, ordered store of stamped gauge samples."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.dropped = 0  # had to make room before any scraper had them
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: deque[tuple[float, str, Mapping[str, str], float, float]] = deque()
        self._first = 1  # number of the oldest entry
        self._fetched = 0  # the last number that some scraper confirmed
        self._sent = 0  # the last number that some lasting scraper was sent
        self._lasting = False  # some scraper asked again on its connection
        self._help: dict[str, str] = {}
        self._newest: dict[tuple[str, str], int] = {}  # series -> its last time in milliseconds

    def add(self, name: str, help: str, value: float, at: float, labels: Mapping[str, str]) -> bool:
        """Take in a sample; False when a database would refuse it: too old, or not newer than its series' last."""
        now, stamp = self._clock(), round(at * 1000)
        series = (name, "\0".join(labels.values()))
        with self._lock:
            if now - at > OLDEST_S or stamp <= self._newest.get(series, -1):
                return False
            self._newest[series] = stamp
            self._help[name] = help
            self._entries.append((now, name, labels, float(value), at))
            self._prune(now)
            return True

    def since(self, cursor: int) -> tuple[list[Family], int]:
        """What came after `cursor`, oldest first and a bounded number, and the cursor behind it."""
        with self._lock:
            begin = max(cursor + 1, self._first)
            chosen = list(islice(self._entries, begin - self._first, begin - self._first + _AT_ONCE))
        families: dict[str, Family] = {}
        # By series and then by time: that is the order the format wants, and the order the samples have already.
        for _, name, labels, value, at in sorted(chosen, key=lambda e: (e[1], tuple(e[2].values()))):
            family = families.setdefault(name, Family(name, "gauge", self._help[name]))
            family.samples.append((dict(labels), value, at))
        return list(families.values()), begin - 1 + len(chosen)

    def confirm(self, cursor: int) -> None:
        """A scraper has everything up to `cursor`; it asked again on the same connection, so it is a lasting one."""
        with self._lock:
            self._lasting = True
            self._fetched = max(self._fetched, cursor)
            self._sent = max(self._sent, cursor)
            self._prune(self._clock())

    def sent(self, cursor: int) -> None:
        """A lasting scraper was just sent everything up to `cursor`."""
        with self._lock:
            self._sent = max(self._sent, cursor)

    def room(self) -> int:
        """How many samples can be taken in without dropping one that nobody has yet."""
        with self._lock:
            waiting = self._first + len(self._entries) - 1 - max(self._fetched, self._first - 1)
            return MOST - waiting

    def wait_sent(self, seconds: float, expected: bool = False) -> None:
        """Wait until a lasting scraper was sent all there is; where none has been seen or is expected, do not wait."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._lock:
                if not (self._lasting or expected) or self._sent >= self._first + len(self._entries) - 1:
                    return
            time.sleep(0.05)

    def _prune(self, now: float) -> None:
        # What somebody has is kept for a while, for others; what nobody has is kept until the room is needed.
        while self._entries:
            waiting = self._first > self._fetched
            if len(self._entries) <= MOST and (waiting or now - self._entries[0][0] <= KEEP_S):
                return
            self._entries.popleft()
            self._first += 1
            self.dropped += waiting
