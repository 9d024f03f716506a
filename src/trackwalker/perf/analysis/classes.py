"""What each kernel is: the classes of classes.yml, applied to whole columns of names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache

import numpy as np

from trackwalker.job.yaml_files import shipped
from trackwalker.perf.formats.model import NONE, Int32, Int64, Kernels, Strings

OTHER = "other"
_FIELDS = ("op", "kernel", "path", "inside", "primitive")


class Engine(IntEnum):
    """What a kernel occupies: decides in which bucket its time falls."""

    COMPUTE = 0
    COLLECTIVE = 1
    COPY = 2


@dataclass(frozen=True)
class KernelClass:
    """One class of kernels and the patterns that tell it."""

    id: str
    engine: Engine
    patterns: dict[str, re.Pattern[str]]  # field -> pattern


@dataclass(frozen=True)
class Classified:
    """For each kernel the number of its class, and what it occupies."""

    names: tuple[str, ...]  # class id by number
    number: Int64
    engine: Int64


@cache
def kernel_classes() -> tuple[KernelClass, ...]:
    """The classes in the order in which they are tried; the last one takes what is left."""
    data = shipped("perf", "classes.yml")
    known = [
        KernelClass(
            row["id"],
            Engine[row.get("engine", "compute").upper()],
            {field: re.compile(row[field]) for field in _FIELDS if field in row},
        )
        for row in data["classes"]
    ]
    return (*known, KernelClass(OTHER, Engine.COMPUTE, {}))


def class_of(kernel: str, op: str = "", path: str = "", inside: str = "") -> KernelClass:
    """The class of one kernel."""
    strings = Strings([kernel, op, path, inside])
    names = [np.array([strings.find(name)], np.int32) for name in (kernel, op, path, inside)]
    return kernel_classes()[int(_rank(strings, *names)[0])]


def classify(kernels: Kernels, strings: Strings, inside: Int32 | None = None) -> Classified:
    """The class of every kernel of a device; `inside` is what each one's fusion computes, where the program tells."""
    known = kernel_classes()
    number = _rank(strings, kernels.name, kernels.op, kernels.path, inside)
    engine = np.array([c.engine for c in known], np.int64)
    return Classified(tuple(c.id for c in known), number, engine[number])


def _rank(strings: Strings, kernel: Int32, op: Int32, path: Int32, inside: Int32 | None) -> Int64:
    """The first class that any of the names fits: each distinct name is tried once, not each kernel."""
    known = kernel_classes()
    vague = next(n for n, c in enumerate(known) if c.id == "fusion")
    rank = np.minimum(_first(strings, op, "op"), _first(strings, kernel, "kernel"))
    rank = np.minimum(rank, _first(strings, path, "path"))
    for column, field in ((inside, "inside"), (path, "primitive")):
        rows = np.flatnonzero(rank >= vague)  # few: what the names alone do not tell
        if column is not None and len(rows):
            rank[rows] = np.minimum(rank[rows], _first(strings, column[rows], field))
    return rank


def _first(strings: Strings, column: Int32, field: str) -> Int64:
    known = kernel_classes()
    last = len(known) - 1
    table = np.full(len(strings) + 1, last, np.int64)  # the extra row is for NONE
    used = np.zeros(len(strings) + 1, np.bool_)
    used[column] = True
    for index in np.flatnonzero(used[:NONE]):
        table[index] = _number(field, strings[int(index)])
    return table[column]


@lru_cache(maxsize=100_000)
def _number(field: str, name: str) -> int:
    """The first class a name fits; the devices of a job run the same kernels, so each name is tried once."""
    if field == "primitive":
        name = name.rsplit("/", 1)[-1]
    known = kernel_classes()
    fits = (n for n, c in enumerate(known) if field in c.patterns and c.patterns[field].search(name))
    return next(fits, len(known) - 1)
