"""How a code is spelled: an errno, a CUDA or HIP status, an HTTP status or an Xid, in whatever words it is printed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from trackwalker.job.yaml_files import read_yaml
from trackwalker.logs.scanning.disk_cache import kept

TABLE = Path(__file__).parents[1] / "codes.yml"


class Spelling(NamedTuple):
    """One way to write it: a literal and, where that is not enough, an expression the line must match."""

    literal: str
    expression: str | None = None
    case: bool = False


@cache
def table() -> dict[str, dict[str, Any]]:
    """The codes that are known, by sort; numbers are text."""
    text = TABLE.read_text(encoding="utf-8")
    made = kept("codes", text.encode(), lambda: orjson.dumps(read_yaml(text), option=orjson.OPT_NON_STR_KEYS))
    held: dict[str, dict[str, Any]] = orjson.loads(made)
    return held


def errno(name: str) -> Iterator[Spelling]:
    """The sentence of the C library, the number behind the word errno, the name by itself."""
    number, sentence = table()["errno"][name]
    yield Spelling(sentence)
    behind = rf"(?:errno|os error)[ :=]{{1,3}}{number}(?!\d)"
    for word in ("errno {}", "errno: {}", "errno={}", "errno = {}", "os error {}"):
        yield Spelling(word.format(number), behind)
    if len(name) >= 6:
        alone = rf"(?<![\w.]){name}(?!\w)"
        for around in (" {}", "({}", "{}:", "{})"):
            yield Spelling(around.format(name), alone, case=True)


def gpu(number: int) -> Iterator[Spelling]:
    """The names CUDA and HIP give it, their sentence, and the number behind the word error or failure."""
    for text in table()["gpu"][str(number)]:
        yield Spelling(text)
    behind = rf"(?:cuda|hip|driver|cu[A-Z]\w+).{{0,60}}(?:error|failure|code)[ :=(]{{1,3}}{number}(?!\d)"
    for word in ("failure {}", "error {}", "error: {}", "error={}", "error ({}", "code={}", "code: {}"):
        if len(spelled := word.format(number)) >= 9:  # of smaller numbers too much else is said
            yield Spelling(spelled, behind)


def http(status: int) -> Iterator[Spelling]:
    """The status beside its sentence or beside the words that come before a status."""
    sort = "client" if status < 500 else "server"
    yield Spelling(f"{status} {table()['http'][str(status)]}")
    yield Spelling(f"{status} {sort} error")
    behind = rf"(?<!\d){status}(?!\d)"
    for word in ("http error {}", "status code {}", "status code: {}", "status_code={}", "status: {}", "status {}",
                 "status={}", "response code {}", "code: {}", "HTTP {}"):  # fmt: skip
        yield Spelling(word.format(status), behind)


def xid(numbers: list[int]) -> Iterator[Spelling]:
    """The driver's line, and what quotes it."""
    any_of = "(?:" + "|".join(map(str, numbers)) + r")\b"
    yield Spelling("Xid (PCI", rf"\bXid \(PCI:[^)]*\):? ?{any_of}")
    yield Spelling("NVRM: Xid", rf"\bXid \((?!PCI)[^)]*\):? ?{any_of}")
    yield Spelling("Xid error", rf"\bXid errors?[^0-9]{{0,12}}{any_of}")
    yield Spelling("previous Xid", rf"\bprevious Xid {any_of}")
