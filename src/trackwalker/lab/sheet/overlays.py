"""The changes that faults make to the metrics, collected before anything is written."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from trackwalker.lab.world import Floats, Run

Shape = Callable[[Floats], Floats]  # time -> strength between 0 and 1


def ramp(start: float, seconds: float) -> Shape:
    """Grows from 0 to 1 after `start`."""
    return lambda t: np.clip((t - start) / max(seconds, 1e-9), 0.0, 1.0)


@dataclass(frozen=True)
class Overlay:
    """One change of one metric: `what` is add, scale, set, rate or jump (of a counter, once)."""

    number: int  # faults are laid in the order they come
    what: str
    amount: float
    start: float
    end: float
    pick: tuple[tuple[str, str], ...] = ()  # labels that must match
    shape: Shape | None = None

    def apply(self, times: Floats, values: Floats) -> Floats:
        """A gauge's values, or a counter's increase per second, with this change in it."""
        inside = (times >= self.start) & (times < self.end)
        strength = self.shape(times) if self.shape is not None else np.ones(len(times))
        if self.what in ("add", "rate"):
            return values + np.where(inside, self.amount * strength, 0.0)
        if self.what == "scale":
            return values * np.where(inside, 1.0 + (self.amount - 1.0) * strength, 1.0)
        return np.where(inside, self.amount, values)


class Sheet:
    """Collects what faults do to the metrics; `writer.write_sheet` turns it into a database."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._overlays: dict[tuple[str, str | None], list[Overlay]] = {}
        self._laid = 0
        self._down: list[tuple[str, float, float]] = []
        self._frozen: list[tuple[str, float, float]] = []
        self._absent: list[tuple[str, str | None]] = []
        self._lifetime: dict[tuple[str, str, str], float] = {}
        self._idle_after: dict[str, float] = {}
        self.gone_at: dict[str, float] = {}
        self.strangers: list[str] = []  # machines in the database that are no part of the job
        self.kept: tuple[float, float] | None = None
        self.scalars: dict[str, Floats] = {}

    def add(
        self,
        metric: str,
        amount: float,
        start: float,
        end: float,
        host: str | None = None,
        *,
        shape: Shape | None = None,
        **pick: str,
    ) -> None:
        """A gauge rises (or falls) by an amount."""
        self._lay("add", metric, amount, start, end, host, pick, shape)

    def scale(
        self,
        metric: str,
        factor: float,
        start: float,
        end: float,
        host: str | None = None,
        *,
        shape: Shape | None = None,
        **pick: str,
    ) -> None:
        """A gauge changes by a factor."""
        self._lay("scale", metric, factor, start, end, host, pick, shape)

    def put(self, metric: str, value: float, start: float, end: float, host: str | None = None, **pick: str) -> None:
        """A gauge stands at a value."""
        self._lay("set", metric, value, start, end, host, pick)

    def rate(
        self,
        metric: str,
        per_s: float,
        start: float,
        end: float,
        host: str | None = None,
        *,
        shape: Shape | None = None,
        **pick: str,
    ) -> None:
        """A counter rises by so much a second."""
        self._lay("rate", metric, per_s, start, end, host, pick, shape)

    def count(self, metric: str, number: float, at: float, host: str, **pick: str) -> None:
        """A counter jumps once."""
        self._lay("jump", metric, number, at, np.inf, host, pick)

    def _lay(
        self,
        what: str,
        metric: str,
        amount: float,
        start: float,
        end: float,
        host: str | None,
        pick: dict[str, str],
        shape: Shape | None = None,
    ) -> None:
        overlay = Overlay(self._laid, what, amount, start, end, tuple(pick.items()), shape)
        self._overlays.setdefault((metric, host), []).append(overlay)
        self._laid += 1

    def lifetime(self, metric: str, host: str, total: float, device: str = "") -> None:
        """What a counter had counted before the job began."""
        self._lifetime[metric, host, device] = total

    def gone(self, host: str, at: float) -> None:
        """The host stops answering for good."""
        self.gone_at[host] = at

    def down(self, host: str, start: float, end: float) -> None:
        """The host's exporters cannot be scraped for a while."""
        self._down.append((host, start, end))

    def freeze(self, host: str, start: float, end: float) -> None:
        """The exporter serves the same page again and again: fresh time stamps, old values."""
        self._frozen.append((host, start, end))

    def absent(self, pattern: str, host: str | None = None) -> None:
        """Metrics that this cluster (or host) does not export."""
        self._absent.append((pattern, host))

    def only_between(self, start: float, end: float) -> None:
        """The database holds nothing outside."""
        self.kept = (start, end)

    def process_gone(self, host: str, at: float) -> None:
        """The host lives, its training process does not."""
        self._idle_after[host] = at

    def scalar(self, tag: str, values: Floats) -> None:
        """A training scalar of rank 0, one value a step."""
        self.scalars[tag] = values

    def overlays(self, metric: str, host: str, labels: dict[str, str]) -> Iterable[Overlay]:
        """What was laid over one series, in order."""
        both = self._overlays.get((metric, None), []) + self._overlays.get((metric, host), [])
        fitting = [o for o in both if all(labels.get(k) == v for k, v in o.pick)]
        return sorted(fitting, key=lambda o: o.number)

    def is_absent(self, metric: str, host: str) -> bool:
        """Whether this host does not export the metric."""
        return any(fnmatch.fnmatch(metric, pattern) and who in (None, host) for pattern, who in self._absent)

    def lifetime_of(self, metric: str, host: str, device: str, otherwise: float) -> float:
        """A counter's value before the job."""
        return self._lifetime.get((metric, host, device), otherwise)

    def idle_after(self, host: str) -> float:
        """When the host's training process was gone; infinity where it never was."""
        return self._idle_after.get(host, np.inf)

    def scraped(self, host: str, times: Floats) -> Floats:
        """The moments out of `times` at which a scrape of the host succeeds."""
        keep = np.ones(len(times), bool)
        for name, start, end in self._down:
            if name == host:
                keep &= (times < start) | (times >= end)
        return self.in_database(times[keep])

    def in_database(self, times: Floats) -> Floats:
        """The moments that the database still holds."""
        if self.kept is None:
            return times
        return times[(times >= self.kept[0]) & (times < self.kept[1])]

    def frozen(self, host: str, times: Floats, values: Floats) -> Floats:
        """The values as a frozen exporter serves them."""
        for name, start, end in self._frozen:
            inside = (times >= start) & (times < end)
            if name == host and inside.any():
                values = np.where(inside, values[int(np.argmax(inside))], values)
        return values
