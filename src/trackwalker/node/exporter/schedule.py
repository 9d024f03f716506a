"""Collectors on a fixed schedule, each contained: a hung read delays nobody, old values are withheld."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import declared, families

_STALE_AFTER = 3.0  # intervals: what is older is a ghost and is not served
_SOON_S = 0.005


class Collector(Protocol):
    """A source of metrics. A read that fails yields no sample, never a zero."""

    @property
    def name(self) -> str:
        """What its health series call it."""
        ...

    def collect(self) -> list[Family]:
        """The families as of now."""
        ...


class Worker:
    """Runs one collector in a thread of its own, at start + k * interval: work does not shift the schedule.

    A read that hangs (a wedged driver, a dead file server) holds this thread only. It is never restarted: a second
    thread would hang in the same place.
    """

    def __init__(self, collector: Collector, interval_s: float) -> None:
        self.name = collector.name
        self.interval_s = interval_s
        self._collector = collector
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._families: list[Family] = []
        self._succeeded: float | None = None  # monotonic, for ages
        self._succeeded_at: float | None = None  # wall clock, for people
        self._began: float | None = None
        self._duration = 0.0
        self._errors = 0
        self._overruns = 0

    def start(self) -> None:
        """Begin; the first collection happens at once."""
        threading.Thread(target=self._run, name=f"collect-{self.name}", daemon=True).start()

    def stop(self) -> None:
        """Do not begin another collection; a collector that holds something gives it back."""
        self._stop.set()
        close = getattr(self._collector, "close", None)
        if close is not None and not self.wedged():
            close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.collect()
            due += self.interval_s
            late = time.monotonic() - due
            if late > 0:  # skip what was missed instead of catching up in a burst
                missed = int(late // self.interval_s) + 1
                due += missed * self.interval_s
                with self._lock:
                    self._overruns += missed
            self._stop.wait(max(_SOON_S, due - time.monotonic()))

    def collect(self) -> None:
        """One collection, now."""
        begin = time.monotonic()
        with self._lock:
            self._began = begin
        try:
            families = self._collector.collect()
        except Exception:  # whatever a collector does wrong stays its own
            families = None
        end = time.monotonic()
        with self._lock:
            self._began = None
            self._duration = end - begin
            if families is None:
                self._errors += 1
            else:
                self._families = families
                self._succeeded, self._succeeded_at = end, time.time()

    def wedged(self) -> bool:
        """Whether the current collection has been under way for longer than values may age."""
        with self._lock:
            return self._began is not None and time.monotonic() - self._began > self._limit()

    def fresh(self) -> bool:
        """Whether there is a result young enough to serve."""
        with self._lock:
            return self._succeeded is not None and time.monotonic() - self._succeeded <= self._limit()

    def _limit(self) -> float:
        return _STALE_AFTER * self.interval_s

    def families(self) -> list[Family]:
        """The last result while it is fresh, nothing after that."""
        if not self.fresh():
            return []
        with self._lock:
            return [Family(f.name, f.kind, f.help, list(f.samples)) for f in self._families]


def health(workers: list[Worker], node: str) -> list[Family]:
    """What every collector says of itself."""
    out = families(declared("agent"))
    for w in workers:
        out["hw_collector_up"].add(w.fresh(), host=node, collector=w.name)
        out["hw_collector_wedged"].add(w.wedged(), host=node, collector=w.name)
        out["hw_collector_duration_seconds"].add(w._duration, host=node, collector=w.name)
        out["hw_collector_last_success_timestamp_seconds"].add(w._succeeded_at, host=node, collector=w.name)
        out["hw_collector_errors_total"].add(w._errors, host=node, collector=w.name)
        out["hw_collector_overruns_total"].add(w._overruns, host=node, collector=w.name)
    out["hw_scrape_duration_seconds"].add(sum(w._duration for w in workers), host=node)
    return list(out.values())
