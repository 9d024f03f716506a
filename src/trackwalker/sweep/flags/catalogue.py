"""What a flag sweep may try: the catalogue as data, what of it fits a cell, and the user's own variants."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from trackwalker.errors import UsageError
from trackwalker.job.yaml_files import shipped
from trackwalker.launch.request.layers import XLA_FLAGS, merge_flags, split_flags
from trackwalker.launch.request.resolved import Resolved
from trackwalker.launch.request.words import parse_passthrough
from trackwalker.sweep.flags.course import BASELINE, JOIN

AXES = ("fsdp", "data", "tensor", "pipeline", "expert")


class Entry(BaseModel):
    """One flag or variable of the catalogue with the values worth trying."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    flag: str = ""
    env: str = ""
    values: dict[str, str]
    cut: list[Literal["fsdp", "data", "tensor", "pipeline", "expert"]] = []
    finding: list[str]
    vendor: Literal["", "amd", "nvidia"] = ""
    why: str
    risk: str

    @model_validator(mode="after")
    def _sets_one_thing(self) -> Entry:
        if bool(self.flag) == bool(self.env):
            raise ValueError(f"{self.id}: either a flag or a variable")
        return self


@dataclass(frozen=True)
class Variant:
    """One change of the baseline."""

    name: str
    flags: Mapping[str, str] = field(default_factory=dict)  # XLA's, without the dashes
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    risk: str = ""

    @property
    def sets(self) -> dict[str, str]:
        """Everything it sets, by name: two variants that set the same cannot be combined."""
        words = {f"--{k}": v for k, v in self.flags.items()} | {f"_env_{k}": v for k, v in self.env.items()}
        return {**words, **self.config}

    def words(self) -> dict[str, str]:
        """As it is written behind `--` of a run; flags merge with those of the layers below."""
        flags = {f"_env_{XLA_FLAGS}": _flag_words(self.flags)} if self.flags else {}
        return {**flags, **{f"_env_{k}": v for k, v in self.env.items()}, **self.config}

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """The variables of a run that has some already."""
        merged = {**before, **self.env}
        if self.flags:
            merged[XLA_FLAGS] = merge_flags(before.get(XLA_FLAGS, ""), _flag_words(self.flags))
        return merged


def _flag_words(flags: Mapping[str, str]) -> str:
    return " ".join(f"--{name}={value}" for name, value in flags.items())


def join(variants: Sequence[Variant]) -> Variant:
    """Several variants at once."""
    sets: dict[str, dict[str, str]] = {"flags": {}, "env": {}, "config": {}}
    for v in variants:
        for part, values in sets.items():
            values |= getattr(v, part)
    why = "; ".join(v.why for v in variants if v.why)
    return Variant(JOIN.join(v.name for v in variants), sets["flags"], sets["env"], sets["config"], why)


@cache
def catalogue() -> list[Entry]:
    """Every entry, in the order of trying."""
    return [Entry.model_validate(row) for row in shipped("sweep", "catalogue.yml")]


def choose(cell: Resolved, findings: Collection[str], most: int) -> list[Variant]:
    """What is worth trying in a cell: what the findings call for first, nothing that is set so already."""
    if cell.mesh is None:
        return []  # a trainer without GPUs: the catalogue is about them
    axes = {a for a in AXES if cell.mesh.size(a) > 1}
    fitting = [e for e in catalogue() if _fits(e, axes, cell.target.vendor)]
    called = [e for e in fitting if set(e.finding) & set(findings)]
    ordered = called + [e for e in fitting if e not in called]
    return [v for e in ordered for v in _variants(e, cell)][:most]


def _fits(entry: Entry, axes: set[str], vendor: str | None) -> bool:
    return (not entry.cut or bool(axes & set(entry.cut))) and entry.vendor in ("", vendor or "")


def _variants(entry: Entry, cell: Resolved) -> Iterator[Variant]:
    env = {name: str(setting.value) for name, setting in cell.env.items()}
    flags = {name: word.partition("=")[2] for name, word in split_flags(env.get(XLA_FLAGS, "")).items()}
    now = flags.get(entry.flag) if entry.flag else env.get(entry.env)
    for name, value in entry.values.items():
        if value == now:
            continue
        what = {"flags": {entry.flag: value}} if entry.flag else {"env": {entry.env: value}}
        yield Variant(f"{entry.id}={name}", **what, why=entry.why, risk=entry.risk)


def own_variant(text: str) -> Variant:
    """A variant of the user: `--xla_flag=value`, `_env_NAME=VALUE` and `key=value`, several of them apart by spaces."""
    words = split_flags(text)
    flags = {n: w.partition("=")[2] for n, w in words.items() if w.startswith("--") and "=" in w}
    bare = [w for w in words.values() if w.startswith("--") and "=" not in w]
    if bare or not words:
        raise UsageError(f"--try '{text}': every part is --xla_flag=value, _env_NAME=VALUE or key=value")
    rest = parse_passthrough([w for w in words.values() if not w.startswith("--")])
    env = dict(rest.env)
    if XLA_FLAGS in env:
        flags |= {n: w.partition("=")[2] for n, w in split_flags(env.pop(XLA_FLAGS).strip("'\"")).items()}
    shown = [f"{n.removeprefix('xla_gpu_')}={v}" for n, v in {**flags, **env, **rest.config}.items()]
    return Variant(" ".join(shown), flags, env, rest.config, why="asked for")


def read_variants(rows: Sequence[Mapping[str, Any]]) -> list[Variant]:
    """The variants of a plan; two of one name or two that set the same are one too many."""
    variants = [Variant(**row) for row in rows]
    names: set[str] = set()
    seen: dict[tuple[tuple[str, str], ...], str] = {}
    for v in variants:
        what = tuple(sorted(v.sets.items()))
        if not what:
            raise UsageError(f"variant '{v.name}' sets nothing")
        if v.name in names or v.name == BASELINE or JOIN in v.name:
            raise UsageError(f"two variants cannot be called '{v.name}'" if v.name in names else f"'{v.name}' is taken")
        if what in seen:
            raise UsageError(f"variants '{seen[what]}' and '{v.name}' set the same; leave one out")
        names.add(v.name)
        seen[what] = v.name
    return variants
