"""The part of PromQL that a diagnosis asks in, as a tree; what is beyond it is refused and left to Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from trackwalker.telemetry.direct.samples import UnsupportedError

_T = TypeVar("_T")

AGGREGATIONS = frozenset(("sum", "avg", "min", "max", "count", "group", "quantile", "count_values"))
SETS = frozenset(("or", "and", "unless"))
COMPARISONS = frozenset(("==", "!=", ">", "<", ">=", "<="))

_LEVELS = (("or",), ("and", "unless"), tuple(COMPARISONS), ("+", "-"), ("*", "/"))
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_TOKEN = re.compile(
    r"""\s*(?:(?P<duration>(?:\d+(?:ms|[smhdw]))+(?![\w.]))|(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?!\w))"""
    r"""|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[a-zA-Z_][\w:]*)|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/<>=(){}\[\],@:]))"""
)


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Text:
    """A string, as a function takes it."""

    value: str


@dataclass(frozen=True)
class Matcher:
    """What a label has to be."""

    label: str
    sign: str
    value: str


@dataclass(frozen=True)
class Selector:
    """Series, at a moment or over a range before it."""

    matchers: tuple[Matcher, ...]
    range_ms: int | None = None
    offset_ms: int = 0
    at_ms: int | None = None


@dataclass(frozen=True)
class Subquery:
    """An expression, looked at again and again over a range."""

    inner: Node
    range_ms: int
    step_ms: int
    offset_ms: int = 0
    at_ms: int | None = None


@dataclass(frozen=True)
class Call:
    """A function and what it is applied to."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True)
class Aggregation:
    """Series put together by some of their labels; `without` turns the list round."""

    name: str
    inner: Node
    labels: tuple[str, ...]
    without: bool = False
    argument: Number | Text | None = None


@dataclass(frozen=True)
class Binary:
    """Two sides; `on` None: all labels have to agree but those in `ignoring`."""

    sign: str
    left: Node
    right: Node
    as_bool: bool = False
    on: tuple[str, ...] | None = None
    ignoring: tuple[str, ...] = ()


Node = Number | Text | Selector | Subquery | Call | Aggregation | Binary


def parse(promql: str) -> Node:
    """The tree of a query."""
    parser = _Parser(promql)
    node = parser.expression()
    parser.end()
    return node


class _Parser:
    """One token after the other, from the left."""

    def __init__(self, promql: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at, end = 0, len(promql.rstrip())
        while at < end:
            match = _TOKEN.match(promql, at)
            if match is None or match.lastgroup is None:
                raise UnsupportedError(f"at {promql[at : at + 20]!r}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self._at = 0

    def _peek(self, ahead: int = 0) -> str:
        """The next token, if it is a word or a sign."""
        if self._at + ahead >= len(self._tokens):
            return ""
        kind, text = self._tokens[self._at + ahead]
        return text if kind in ("word", "sign") else ""

    def _take(self, kind: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != kind:
            raise UnsupportedError(f"no {kind} where one is due")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise UnsupportedError(f"no {sign} where one is due")
        self._at += 1

    def end(self) -> None:
        """Nothing may be left."""
        if self._at < len(self._tokens):
            raise UnsupportedError(f"{self._tokens[self._at][1]!r} is not understood")

    def expression(self, level: int = 0) -> Node:
        """An expression of operators that bind at least as strongly as a level."""
        if level == len(_LEVELS):
            return self._with_modifiers()
        left = self.expression(level + 1)
        while self._peek() in _LEVELS[level]:
            sign = self._peek()
            self._at += 1
            as_bool = self._peek() == "bool"
            self._at += as_bool
            on: tuple[str, ...] | None = None
            ignoring: tuple[str, ...] = ()
            if self._peek() in ("on", "ignoring"):
                word = self._take("word")
                labels = self._names()
                on, ignoring = (labels, ()) if word == "on" else (None, labels)
            left = Binary(sign, left, self.expression(level + 1), as_bool, on, ignoring)
        return left

    def _names(self) -> tuple[str, ...]:
        return self._listed("(", ")", lambda: self._take("word"))

    def _listed(self, opens: str, closes: str, each: Callable[[], _T]) -> tuple[_T, ...]:
        self._expect(opens)
        out = []
        while self._peek() != closes:
            out.append(each())
            if self._peek() != closes:
                self._expect(",")
        self._expect(closes)
        return tuple(out)

    def _with_modifiers(self) -> Node:
        node = self._primary()
        while (sign := self._peek()) in ("[", "@", "offset"):
            self._at += 1
            if sign == "[":
                node = self._range(node)
            elif not isinstance(node, Selector | Subquery):
                raise UnsupportedError(f"{sign} of something else than series")
            elif sign == "@":
                node = replace(node, at_ms=round(1000 * float(self._take("number"))))
            else:
                node = replace(node, offset_ms=_milliseconds(self._take("duration")))
        return node

    def _range(self, node: Node) -> Node:
        length = _milliseconds(self._take("duration"))
        if self._peek() == ":":
            self._at += 1
            node = Subquery(node, length, _milliseconds(self._take("duration")))
        elif isinstance(node, Selector) and node.range_ms is None:
            node = replace(node, range_ms=length)
        else:
            raise UnsupportedError("a range of something else than series")
        self._expect("]")
        return node

    def _primary(self) -> Node:
        kind = self._tokens[self._at][0] if self._at < len(self._tokens) else ""
        if kind == "number":
            return Number(float(self._take("number")))
        if kind == "text":
            return Text(_unquoted(self._take("text")))
        sign = self._peek()
        if sign == "(":
            self._at += 1
            node = self.expression()
            self._expect(")")
            return node
        if sign == "{":
            return self._selector(())
        name = self._take("word")
        if name in AGGREGATIONS and self._peek() in ("(", "by", "without"):
            return self._aggregation(name)
        if self._peek() == "(":
            return Call(name, self._listed("(", ")", self.expression))
        return self._selector((Matcher("__name__", "=", name),))

    def _selector(self, first: tuple[Matcher, ...]) -> Selector:
        if self._peek() != "{":
            return Selector(first)
        return Selector((*first, *self._listed("{", "}", self._matcher)))

    def _matcher(self) -> Matcher:
        label, sign = self._take("word"), self._take("sign")
        if sign not in ("=", "!=", "=~", "!~"):
            raise UnsupportedError(f"{sign} between a label and its value")
        return Matcher(label, sign, _unquoted(self._take("text")))

    def _aggregation(self, name: str) -> Node:
        grouped = self._grouping()
        inside = self._listed("(", ")", self.expression)
        word, labels = grouped or self._grouping() or ("by", ())
        argument = inside[0] if len(inside) == 2 else None
        if len(inside) > 2 or not (argument is None or isinstance(argument, Number | Text)):
            raise UnsupportedError(f"{name} of {len(inside)} expressions")
        return Aggregation(name, inside[-1], labels, word == "without", argument)

    def _grouping(self) -> tuple[str, tuple[str, ...]] | None:
        if self._peek() not in ("by", "without"):
            return None
        return self._take("word"), self._names()


def _milliseconds(duration: str) -> int:
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)(ms|[smhdw])", duration))


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        raise UnsupportedError(f"{text} as a string") from None
