"""Metrics of other exporters as ours: names, labels and units from a map that is data (foreign.yml)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from trackwalker.errors import UsageError
from trackwalker.job.yaml_files import read_yaml
from trackwalker.telemetry.client import Floats, Labels

_DERIVED = ("", "rate", "last-code", "bits", "equals", "label")
OWN = "own"  # of a metric that is ours already
_FIELDS = {"to", "add", "scale", "derive", "code", "bits", "equals", "only", "label", "matches"}


@dataclass(frozen=True)
class Rule:
    """One metric of another exporter, and what it is here."""

    name: str  # theirs
    to: str  # ours
    host: tuple[str, ...]
    labels: Mapping[str, str]
    exporter: str
    add: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    derive: str = ""
    code: str = "code"
    bits: Mapping[int, str] = field(default_factory=dict)
    equals: float = 0.0
    only: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    matches: str = ""


@dataclass(frozen=True)
class Maps:
    """All rules, and the values that mean "not available"."""

    rules: tuple[Rule, ...]
    absent: tuple[float, ...]

    def known(self, names: frozenset[str]) -> list[Rule]:
        """The rules for metrics that a store has; of two for the same of ours, the first."""
        taken: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
        out = []
        for rule in self.rules:
            key = (rule.to, tuple(sorted(rule.add.items())))
            if rule.name in names and taken.setdefault(key, rule.name) == rule.name:
                out.append(rule)
        return out

    def all_sound(self, values: Floats) -> bool:
        """Whether all of them are, at a glance: what means "not available" is larger than what is measured mostly."""
        if not len(values):
            return False
        # A NaN is neither below the one nor above the other.
        return bool(values.max() < min(self.absent, default=0.0)) and bool(values.min() > -np.inf)

    def clean(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Which values are numbers at all."""
        sound: npt.NDArray[np.bool_] = np.isfinite(values)
        for absent in self.absent:
            sound &= values != absent
        return sound


def load_maps(own: Path | None = None) -> Maps:
    """The package's maps, and those of a file of the user's in front of them."""
    return _load(str(own) if own else "")


@lru_cache(maxsize=4)
def _load(own: str) -> Maps:
    text = files("trackwalker.telemetry").joinpath("foreign.yml").read_text(encoding="utf-8")
    rules, absent = _read(text, "foreign.yml")
    if own:
        try:
            more, also = _read(Path(own).read_text(encoding="utf-8"), own)
        except OSError as e:
            raise UsageError(f"--metric-map {own}: {e.strerror}") from e
        rules, absent = [*more, *rules], [*also, *absent]
    return Maps(tuple(rules), tuple(absent))


def _read(text: str, name: str) -> tuple[list[Rule], list[float]]:
    try:
        data: dict[str, Any] = read_yaml(text)
        rules = []
        for exporter, about in data["exporters"].items():
            several = ((name, rule) for name, told in about["metrics"].items() for rule in _each(told))
            for metric, rule in several:
                if unknown := set(rule) - _FIELDS:
                    raise UsageError(f"{name}: {metric}: unknown {', '.join(sorted(unknown))}")
                if rule.get("derive", "") not in _DERIVED:
                    raise UsageError(f"{name}: {metric}: derive is one of {', '.join(_DERIVED[1:])}")
                hosts, labels = tuple(about["host"]), dict(about.get("labels") or {})
                rules.append(Rule(name=str(metric), host=hosts, labels=labels, exporter=str(exporter), **rule))
        return rules, [float(value) for value in data.get("absent", [])]
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as e:
        if isinstance(e, UsageError):
            raise
        raise UsageError(f"{name} is no map of metrics: {' '.join(str(e).split())}") from e


def _each(told: Any) -> list[dict[str, Any]]:
    """One metric of theirs may be several of ours."""
    return told if isinstance(told, list) else [told]


def host_in(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The machine that a foreign series is of, as schedulers name it: no port, no domain."""
    text = next((labels[name] for name in names if labels.get(name)), "")
    return _bare(text)


@lru_cache(maxsize=1 << 14)  # each host is in hundreds of series
def _bare(text: str) -> str:
    bare = re.sub(r":\d+$", "", text).strip("[]")
    return bare if re.fullmatch(r"[0-9.]+", bare) else bare.partition(".")[0]


def translated(rule: Rule, labels: Labels, times: Floats, values: Floats) -> Iterator[tuple[Labels, Floats, Floats]]:
    """One foreign series as ours: labels (without host), times and values; several for a set of bits or codes."""
    if rule.derive == OWN:
        yield {name: value for name, value in labels.items() if name not in ("__name__", "host")}, times, values
        return
    ours = {to: labels[name] for name, to in rule.labels.items() if labels.get(name)} | dict(rule.add)
    if rule.derive == "rate":
        if len(times) > 1:
            moved, elapsed = np.diff(values), np.diff(times)
            rates = np.where(moved >= 0, moved, values[1:]) / np.maximum(elapsed, 1e-9) * rule.scale
            yield ours, times[1:], rates
    elif rule.derive == "last-code":
        events = np.flatnonzero(np.diff(values, prepend=0.0) != 0)
        for code in sorted({int(values[at]) for at in events if values[at] > 0}):
            seen = np.zeros(len(values))
            seen[[at for at in events if values[at] == code]] = 1.0
            yield {**ours, rule.code: str(code)}, times, np.cumsum(seen)
    elif rule.derive == "bits":
        for bit, name in rule.bits.items():
            yield {**ours, "reason": name}, times, (values.astype(np.int64) & int(bit) > 0).astype(np.float64)
    elif rule.derive == "equals":
        yield ours, times, (values == rule.equals).astype(np.float64)
    elif rule.derive == "label":
        said = re.fullmatch(rule.matches, labels.get(rule.label, "")) is not None
        yield ours, times, np.full(len(times), float(said))
    else:
        yield ours, times, values * rule.scale
