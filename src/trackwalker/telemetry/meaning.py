"""What a metric means to a comparison: kind, unit, layer, bad direction and quantity, by a catalogue or by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Any, Literal

from trackwalker.job.yaml_files import shipped
from trackwalker.telemetry.client import Labels, host_of
from trackwalker.telemetry.foreign.names import load_maps

Kind = Literal["gauge", "counter", "windowed", "state", "info", "timestamp"]
Layer = Literal["resource", "activity", "wait", "error", "identity", "health"]
Bad = Literal["up", "down", "either", "none"]

_UNITS = {
    "seconds": "seconds", "bytes": "bytes", "celsius": "celsius", "watts": "watts", "mhz": "megahertz",
    "percent": "percent", "pct": "percent", "ratio": "ratio", "us": "microseconds", "pkts": "packets",
    "packets": "packets", "joules": "joules", "rpm": "rpm", "volts": "volts", "amperes": "amperes", "gbps": "gbps",
}  # fmt: skip
_BROKEN = re.compile(
    r"err|fail|drop|discard|lost|loss|crc|corrupt|retx|retr|timeout|overflow|overrun|reset|abort|fault|bad_|nak|flap|kill"
)
_HELD_UP = re.compile(r"wait|stall|latenc|delay|pressure|queue|blocked|throttl|steal|pending|backlog|duration|rtt")
_ALIVE = re.compile(r"(?:^|_)(?:up|ok|healthy|alive|online|state|status)$")
_MOVED = re.compile(r"bytes|pkts|packets|ops|reads|writes|requests")


@dataclass(frozen=True)
class Meaning:
    """One metric as a comparison sees it; `known` says whether the catalogue names it."""

    metric: str
    kind: Kind
    unit: str
    layer: Layer
    bad: Bad
    quantity: str
    known: bool

    @property
    def counts(self) -> bool:
        """Whether it is compared as a rate."""
        return self.kind == "counter"

    @property
    def compared(self) -> bool:
        """Whether it takes part: what is constant by nature, dates, or repeats other series does not."""
        return self.kind not in ("info", "timestamp") and self.layer != "identity" and ":" not in self.metric

    @property
    def shown_unit(self) -> str:
        """The unit of a compared value: of a counter, per second."""
        if not self.counts:
            return {"ratio": "", "": ""}.get(self.unit, self.unit)
        return {"": "1/s", "seconds": "s/s", "microseconds": "us/s"}.get(self.unit, f"{self.unit}/s")

    def worse(self, kind: str) -> bool:
        """Whether a change of that kind (rose, fell, …) is in the bad direction."""
        if kind in ("rose", "fell"):
            return self.bad == "either" or self.bad == {"rose": "up", "fell": "down"}[kind]
        return True


@dataclass(frozen=True)
class Place:
    """Where a series belongs: host, and GPU, device or rank; `aspect` tells apart what is not comparable."""

    host: str | None
    gpu: str | None
    device: str | None
    rank: str | None
    aspect: tuple[tuple[str, str], ...]


@cache
def meaning_of(metric: str, aspect: tuple[tuple[str, str], ...] = ()) -> Meaning:
    """What the catalogue says of a metric, or of its series with these labels; what it does not say, the name does."""
    told, name = _told(metric, aspect), metric
    # Of an exporter that a map knows: what its metric is called here.
    rule = None if told else next((r for r in load_maps().rules if r.name == metric and not r.derive), None)
    if rule is not None:
        told, name = {k: v for k, v in _told(rule.to, aspect).items() if k != "unit" or rule.scale == 1.0}, rule.to
    kind, layer, bad = _by_name(name)
    return Meaning(
        metric=metric,
        kind=told.get("kind", kind),  # type: ignore[arg-type]
        unit=told.get("unit", _unit(metric)),
        layer=told.get("layer", layer),  # type: ignore[arg-type]
        bad=told.get("bad", bad),  # type: ignore[arg-type]
        quantity=told.get("quantity", metric),  # unknown to the causal graph: a quantity of its own
        known=bool(told),
    )


def _told(metric: str, aspect: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    fit = (m for m in _catalogue()["metrics"] if fnmatchcase(metric, m["match"]))
    return next((m for m in fit if m.get("where", {}).items() <= dict(aspect).items()), {})


def place_of(labels: Labels) -> Place:
    """The subject of a series."""
    gpus, devices, ranks, rest = _roles(tuple(labels), _numbered(labels))
    gpu = next((labels[n] for n in gpus if labels[n]), None) if gpus else None
    # A port's number says nothing beside the name of its device; two disks of one mount are two devices.
    device = next((labels[n] for n in devices if labels[n]), None) if devices else None
    rank = next((labels[n] for n in ranks if labels[n]), None) if ranks else None
    return Place(labels.get("host") or host_of(labels), gpu, device, rank, tuple([(n, labels[n]) for n in rest]))


def _numbered(labels: Labels) -> bool:
    """Whether the node is a mere number: then it is a part of its host (memory, sockets)."""
    return labels.get("node", "").isdigit()


@lru_cache(maxsize=4096)  # the thousands of series of a metric have the same names
def _roles(names: tuple[str, ...], numbered: bool) -> tuple[tuple[str, ...], ...]:
    """Which of a series' labels name its GPU, its device, its rank, in this order, and what else is told of it."""
    told = _catalogue()
    used = {"__name__", "host", *_reporters(numbered), *told["gpu"], *told["device"], *told["rank"]}
    found = [tuple(n for n in told[role] if n in names) for role in ("gpu", "device", "rank")]
    return (*found, tuple(sorted(n for n in names if n not in used)))


def _reporters(numbered: bool) -> set[str]:
    """The labels that only say who reported."""
    return set(_catalogue()["who"]) - ({"node"} if numbered else set())


def pick_of(labels: Labels) -> tuple[tuple[str, str], ...]:
    """The labels that select a series again, without those that only say who reported it."""
    picks = _picks(tuple(labels), _numbered(labels), bool(labels.get("host")))
    return tuple([(n, labels[n]) for n in picks])


@lru_cache(maxsize=4096)
def _picks(names: tuple[str, ...], numbered: bool, hosted: bool) -> tuple[str, ...]:
    who = {"__name__", *_reporters(numbered)} - (set() if hosted else {"instance"})
    return tuple(sorted(n for n in names if n not in who))


def quantum(unit: str) -> float:
    """The smallest change that a value of this unit can show."""
    return float(_catalogue()["quanta"].get(unit, 0.0))


def _by_name(metric: str) -> tuple[Kind, Layer, Bad]:
    metric = metric.lower()  # some exporters shout
    base = metric.removesuffix("_total")
    if metric.endswith("_info"):
        return "info", "identity", "none"
    if "timestamp" in metric:
        return "timestamp", "identity", "none"
    kind: Kind = "counter" if base != metric or metric.endswith(("_count", "_sum")) else "gauge"
    if metric.endswith("_bucket"):
        return "info", "identity", "none"  # a histogram's sum and count tell its mean
    if _ALIVE.search(metric):
        return "state", "health", "down"
    if _BROKEN.search(base):
        return kind, "error", "up"
    if _HELD_UP.search(base):
        return kind, "resource", "up"
    if kind == "counter" and _MOVED.search(base):
        return kind, "activity", "none"
    return kind, "resource", "either"


def _unit(metric: str) -> str:
    words = metric.lower().removesuffix("_total").split("_")
    return next((_UNITS[w] for w in reversed(words) if w in _UNITS), "")


@cache
def _catalogue() -> dict[str, Any]:
    return dict(shipped("telemetry", "metrics.yml"))
