"""The environment in layers, each value with its layer: base < vendor < fabric < model < rule < command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.job.run import Setting
from trackwalker.job.yaml_files import shipped
from trackwalker.launch.request.models import About
from trackwalker.launch.request.rules import Rule

VENDORS = ("amd", "nvidia")
FABRICS = ("ionic", "mlx5", "bnxt", "efa", "tcp")
XLA_FLAGS = "XLA_FLAGS"
COMMAND_LINE = "command line"
_FLAG_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")


@dataclass(frozen=True)
class Step:
    """One layer's word about a variable or an XLA flag."""

    source: str
    value: str
    why: str = ""
    guard: str | None = None  # a check on the node that may take the value back


@dataclass
class Environment:
    """Every layer's word, in order: the last one counts."""

    variables: dict[str, list[Step]] = field(default_factory=dict)
    flags: dict[str, list[Step]] = field(default_factory=dict)
    _emptied: Step | None = None  # XLA_FLAGS set to nothing on the command line

    def settings(self) -> dict[str, Setting]:
        """What the trainer gets, each value with the layer that set it."""
        found = {name: Setting(value=s[-1].value, source=s[-1].source) for name, s in sorted(self.variables.items())}
        if self._emptied:
            found[XLA_FLAGS] = Setting(value="", source=self._emptied.source)
        elif self.flags:
            last = [steps[-1] for steps in self.flags.values()]
            sources = dict.fromkeys(step.source for step in last)
            found[XLA_FLAGS] = Setting(value=" ".join(s.value for s in last), source=" + ".join(sources))
        return found

    def add(self, source: str, env: Mapping[str, Any], flags: Mapping[str, Any], why: str = "") -> None:
        """Put one layer on top; an entry is a value, or a value with the reason for it."""
        for name, entry in env.items():
            self.variables.setdefault(name, []).append(_step(source, entry, why))
        for name, entry in flags.items():
            step = _step(source, entry, why)
            self.flags.setdefault(name, []).append(replace(step, value=f"--{name}={step.value}"))

    def override(self, env: Mapping[str, str]) -> None:
        """The command line: an empty value is a value; XLA_FLAGS merge flag by flag, empty ones clear all flags."""
        self.add(COMMAND_LINE, {k: v for k, v in env.items() if k != XLA_FLAGS}, {})
        if (words := env.get(XLA_FLAGS)) is not None:
            self._emptied = None if words.strip() else Step(COMMAND_LINE, "")
            for name, word in split_flags(words).items():
                self.flags.setdefault(name, []).append(Step(COMMAND_LINE, word))


def _step(source: str, entry: Any, why: str) -> Step:
    if isinstance(entry, Mapping):
        return Step(source, str(entry["value"]), str(entry.get("why", why)), entry.get("guard"))
    return Step(source, str(entry), why)


def stack(
    about: About,
    rules: Iterable[Rule] = (),
    overrides: Mapping[str, str] | None = None,
    vendor: str | None = None,
    fabric: str | None = None,
) -> Environment:
    """All layers of a run with their history; a vendor or fabric that is not known yet has no layer."""
    built = Environment()
    if about.trainer == "maxtext":  # the small trainer runs on processors and needs none of this
        for kind, name, allowed in (("vendor", vendor, VENDORS), ("fabric", fabric, FABRICS)):
            if name is not None and name not in allowed:
                raise UsageError(f"unknown {kind} '{name}'; known: {', '.join(allowed)}")
        _add_file(built, "base", "base")
        if vendor:
            _add_file(built, vendor, f"vendor {vendor}")
        if fabric:
            _add_file(built, fabric, f"fabric {fabric}")
    built.add("model", about.env, about.xla_flags)
    for rule in rules:
        built.add(f"rule {rule.name}", rule.env, rule.xla_flags, rule.why)
    built.override(overrides or {})
    return built


@cache
def found_on_node() -> dict[str, str]:
    """Variables that each node finds out by itself, and what it looks for."""
    return dict(_data("on_node"))


def split_flags(text: str) -> dict[str, str]:
    """The words of XLA_FLAGS by flag name, in order; the last of two wins, quotes stay as they were written."""
    words = _FLAG_WORD.findall(text)
    if _FLAG_WORD.sub("", text).strip():
        raise UsageError(f"XLA_FLAGS: a quote is not closed in '{text}'")
    flags: dict[str, str] = {}
    for word in words:
        name = word.removeprefix("--").partition("=")[0]
        flags.pop(name, None)
        flags[name] = word
    return flags


def merge_flags(*texts: str) -> str:
    """Several XLA_FLAGS as one, each flag once, the last value of it: an image's own first, then ours."""
    merged: dict[str, str] = {}
    for text in texts:
        for name, word in split_flags(text).items():
            merged.pop(name, None)
            merged[name] = word
    return " ".join(merged.values())


def _add_file(built: Environment, name: str, source: str) -> None:
    data = _data(name)
    if "extends" in data:
        _add_file(built, data["extends"], source)
    built.add(source, data.get("env") or {}, data.get("xla_flags") or {})


def _data(name: str) -> dict[str, Any]:
    fabrics = _file("fabrics")
    return fabrics[name] if name in fabrics else _file(name)


@cache
def _file(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = shipped("launch", f"env/{name}.yml")
    return loaded
