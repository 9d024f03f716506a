"""Every number, host and id in a model's text is looked up in what it was shown; a sentence with one that is not there
is struck out.

The check sees whether a figure occurs in the evidence, rounded as it is written; it cannot see whether the sentence
around it is true. That is why the verdict is never the model's.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

STRIKE = "~~"  # around what is struck out, as Markdown has it
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\"'(\[*_`]*[A-Z0-9])|\n+")
_MARKER = re.compile(r"\s*(?:[-*+]|\d{1,2}[.)]|#+)\s+")  # of a list or a heading: no claim
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_CLAIM = re.compile(
    rf"""
    (?P<time>\d{{4}}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?|\b\d{{1,2}}:\d\d(?::\d\d)?\b)
    | (?P<address>\b\d{{1,3}}(?:\.\d{{1,3}}){{3}}\b)
    | (?P<span>\b\d+\ ?(?:d|h|min|m)\ \d+\ ?(?:h|min|m|s)\b)
    | (?P<name>\b(?=[\w.\[\]/-]*[A-Za-z])(?=[\w.\[\]/-]*\d)[A-Za-z0-9][\w./\[\]-]*)
    | (?P<number>(?<![\w.])(?:{_NUMBER}))\ ?(?P<unit>%|percent\b|k\b|[kMGT]i?B\b|ms\b|min\w*|h\b|hours?\b|d\b|days?\b)?
    """,
    re.VERBOSE,
)
_MEASURE = re.compile(
    rf"^({_NUMBER})(%|x|k|ms|s|sec|min|h|d|w|kw|gb|gib|mb|mib|tb|tib|kb|c|hz|ghz|mhz|gbps|gb/s|st|nd|rd|th)$", re.I
)
_PLACE = re.compile(r"^(step|rank|task|gpu|node|job|attempt|phase|line|e)s?[-_#/]?(\d+)$", re.I)
_COUNTED = re.compile(r"(?<![\w.])-?(?:" + _NUMBER + r")")
_PARTS = re.compile(r"(\d+) ?(d|h|min|m|s)\b")
_SECONDS = {"d": 86_400.0, "h": 3_600.0, "min": 60.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_SCALES = {"k": (1e3,), "kb": (1e3, 2**10), "mb": (1e6, 2**20), "gb": (1e9, 2**30), "tb": (1e12, 2**40)}
_WORDS = {
    w: n
    for n, w in enumerate("zero one two three four five six seven eight nine ten eleven twelve".split())  # noqa: SIM905
} | {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_SPELLED = re.compile(rf"\b({'|'.join(w for w, n in _WORDS.items() if n > 1)})\b", re.IGNORECASE)
# Names of things that every engineer knows; they are no evidence and no host.
_KNOWN = re.compile(
    r"(?:ipv[46]|rocev?[12]?|p\d\d|fp\d+|bf16|int\d|[ahb][12]00s?|gb200|mi\d{3}[ax]?|nvlink\d?|pcie\d?|http2?|utf-?8|l[123]"
    r"|v\d+|sha256|x86|k8s|s3|i/o|h2d|d2h)",
    re.IGNORECASE,
)


@dataclass
class Corpus:
    """What was seen: the texts, their numbers, and how many things each list of them has."""

    texts: list[str] = field(default_factory=list)
    _numbers: list[float] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    def add(self, text: str) -> None:
        """One answer of a tool, or a verdict: JSON, or plain text."""
        self.texts.append(text.lower())
        found = {abs(_value(m[0])) for m in _COUNTED.finditer(text)}
        with contextlib.suppress(ValueError):  # plain text has no lists to count
            found |= set(_counts(json.loads(text)))
        self._numbers = sorted({*self._numbers, *found})
        self._names |= set(re.findall(r"[\w./-]*\d[\w./-]*", text.lower()))

    def add_names(self, text: str) -> None:
        """Words of the question: who is named there may be named again, but a number in a question proves nothing."""
        self._names |= {w for w in re.findall(r"[\w./-]*\d[\w./-]*", text.lower()) if re.search(r"[a-z]", w)}

    def has_text(self, text: str) -> bool:
        """Whether it stands somewhere as it is written."""
        return any(text.lower() in seen for seen in self.texts)

    def has_name(self, name: str) -> bool:
        """Whether a host, device or id was seen; a host may be told without its device or domain."""
        name = name.lower().strip(".-/")
        short = name.partition(".")[0]
        if name in self._names or (short in self._names and re.search(r"[a-z]", short)):
            return True
        whole = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
        return any(whole.search(seen) for seen in self.texts)

    def has_number(self, low: float, high: float) -> bool:
        """Whether a number was seen in the range."""
        at = bisect.bisect_left(self._numbers, low)
        return at < len(self._numbers) and self._numbers[at] <= high


@dataclass(frozen=True)
class Grounded:
    """A text with what is not grounded struck out, and how much was checked."""

    text: str
    checked: int
    struck: tuple[tuple[str, tuple[str, ...]], ...]  # the sentence, and what of it nobody has seen

    def to_dict(self) -> dict[str, Any]:
        """The `grounding` part of `ask --json`."""
        missing = sum(len(what) for _, what in self.struck)
        struck = [{"sentence": sentence, "not_in_evidence": list(what)} for sentence, what in self.struck]
        return {"checked": self.checked, "grounded": self.checked - missing, "struck": struck}


def check(text: str, corpus: Corpus) -> Grounded:
    """The text with each sentence struck out (~~so~~) that cites what the corpus does not hold."""
    out, at, checked = [], 0, 0
    struck: list[tuple[str, tuple[str, ...]]] = []
    for begin, end in _sentences(text):
        sentence = text[begin:end]
        marker = _MARKER.match(sentence)
        claims = list(_claims(sentence[marker.end() if marker else 0 :]))
        checked += len(claims)
        missing = tuple(
            dict.fromkeys(told for told, held in ((c, _holds(c, m, corpus)) for c, m in claims) if not held)
        )
        out.append(text[at:begin])
        at = end
        if not missing:
            out.append(sentence)
            continue
        struck.append((sentence.strip(), missing))
        head = marker[0] if marker else sentence[: len(sentence) - len(sentence.lstrip())]
        out.append(f"{head}{STRIKE}{sentence[len(head) :].strip()}{STRIKE}")
    out.append(text[at:])
    return Grounded("".join(out), checked, tuple(struck))


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for match in _SENTENCE.finditer(text):
        # "1." begins a list and ends no sentence.
        if match.start() > begin and not _MARKER.fullmatch(text[begin : match.end()]):
            yield begin, match.start()
            begin = match.end()
    if text[begin:].strip():
        yield begin, len(text)


def _claims(sentence: str) -> Iterator[tuple[str, re.Match[str]]]:
    for match in _CLAIM.finditer(sentence):
        if match["name"] is None or not _KNOWN.fullmatch(match["name"].strip(".-/")):
            yield match[0].strip(" .-/"), match
    for match in _SPELLED.finditer(sentence):
        yield match[0], match


def _holds(told: str, match: re.Match[str], corpus: Corpus) -> bool:
    groups = match.groupdict()
    if not groups:  # a number in words
        value = float(_WORDS[told.lower()])
        percent = match.string[match.end() :].lstrip().lower().startswith(("%", "percent", "per cent"))
        return _near(value, 0.5 if percent else 0.0, corpus, percent)
    if groups["time"] or groups["address"]:
        return corpus.has_text(told) or corpus.has_text(told.replace(" ", "T"))
    if groups["span"]:
        parts = _PARTS.findall(told)
        value = sum(float(n) * _SECONDS[unit] for n, unit in parts)
        return corpus.has_text(told) or corpus.has_number(
            value - _SECONDS[parts[-1][1]], value + _SECONDS[parts[-1][1]]
        )
    if groups["name"]:
        return _name_holds(groups["name"], corpus)
    return _figure_holds(groups["number"], (groups["unit"] or "").lower(), corpus)


def _name_holds(name: str, corpus: Corpus) -> bool:
    name = name.strip(".-/[]")
    if corpus.has_name(name):
        return True
    if measured := _MEASURE.match(name):  # 30s, 20%, 8x
        return _figure_holds(measured[1], measured[2].lower(), corpus)
    if placed := _PLACE.match(name):  # step97, rank-8; an evidence id has to be there as it is
        return placed[1].lower() != "e" and _near(float(placed[2]), 0.0, corpus, percent=False)
    parts = [p for p in re.split(r"[/,]", name) if p]
    return len(parts) > 1 and all(corpus.has_name(p) or _plain(p, corpus) for p in parts)


def _plain(part: str, corpus: Corpus) -> bool:
    return not any(c.isdigit() for c in part) or (part.isdigit() and _near(float(part), 0.0, corpus, percent=False))


def _figure_holds(written: str, unit: str, corpus: Corpus) -> bool:
    value = _value(written)
    decimals = len(written.partition(".")[2]) if "e" not in written.lower() else 0
    # A small whole number is a count, and a count is not rounded.
    slack = 0.5 * 10.0**-decimals if decimals or value >= 10 or unit else 0.0
    if _near(value, slack, corpus, percent=unit in ("%", "percent")):
        return True
    unit = unit.replace("ib", "b") if unit.endswith("ib") else unit
    short = {"hour": "h", "hours": "h", "day": "d", "days": "d"}.get(unit, "min" if unit.startswith("min") else unit)
    scales = (_SECONDS[short],) if short in _SECONDS else _SCALES.get(unit, ())
    return any(corpus.has_number((value - slack) * scale, (value + slack) * scale) for scale in scales)


def _near(value: float, slack: float, corpus: Corpus, percent: bool) -> bool:
    """Whether the value was seen, or one that is written like this when rounded; shares are told in per cent."""
    edge = 1e-9 * max(1.0, value)
    if corpus.has_number(value - slack - edge, value + slack + edge):
        return True
    return percent and corpus.has_number((value - slack) / 100 - 1e-9, (value + slack) / 100 + 1e-9)


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def _counts(document: Any) -> Iterable[float]:
    """How long the lists are: 'four hosts' is a figure of the evidence, too."""
    if isinstance(document, dict):
        for value in document.values():
            yield from _counts(value)
    elif isinstance(document, list):
        yield float(len(document))
        for value in document:
            yield from _counts(value)
