"""Which rank runs on which host, from what launchers and libraries print about it at the start and at the end.

A line that a rank wrote speaks for that rank only: what it says about others is not believed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from trackwalker.logs.scanning.lines import Body, parse

_HOST = r"(?P<host>(?=[\w.-]*\d)[A-Za-z][\w.-]{1,63})"
_RANK = r"(?P<rank>\d{1,6})"
_FORMS = (
    re.compile(rf"^{_HOST}:\d{{1,8}}:\d{{1,8}} \[\d+\] NCCL INFO .*?\brank {_RANK}\b"),
    re.compile(
        rf"(?i)(?<!local_)(?<!local )\brank['\"]?[ =:#]{{1,3}}{_RANK}\b[^\n]{{0,60}}?\b(?:host(?:name)?|node(?:name)?|on|at|@)['\"]?[ =:]{{1,3}}['\"]?{_HOST}"  # noqa: E501
    ),
    re.compile(
        rf"(?i)\b(?:host(?:name)?|node(?:name)?)['\"]?[ =:]{{1,3}}['\"]?{_HOST}[^\n]{{0,60}}?(?<!local_)(?<!local )\brank['\"]?[ =:#]{{1,3}}{_RANK}\b"  # noqa: E501
    ),
    re.compile(rf"\[Node {_RANK} @ {_HOST}\]"),
)
_TASKS = re.compile(rf"^srun: error: {_HOST}: tasks? (?P<tasks>[\d,-]+): ")
_ELASTIC_HOST = re.compile(rf"^\s*host\s+: {_HOST}\s*$")
_ELASTIC_RANK = re.compile(rf"^\s*rank\s+: {_RANK} \(local_rank")
_OWN_RANK = re.compile(r"(?<!\w)(?:global_|world_)?rank[=: ]{1,2}(\d{1,6})\b")
_RAY_RANK = re.compile(r"\bip=(?P<ip>[\w.:-]+), pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d{1,6})\b")
_DIGITS = re.compile(r"\d+")
_MOST = 1 << 17  # ranks
_WORDS = (b"ank", b"ost", b"srun", b"@ ", b"kernel")  # no line without one of them tells who runs where
_MOST_OF_A_RANK = 100  # such lines at the front, and at the end, of a file that is one rank's: it tells its own host


def learn(
    raws: Iterable[bytes], known: dict[int, str], file_rank: int | None = None, actors: dict[str, int] | None = None
) -> str:
    """Add what some lines tell; returns the one host that wrote all lines of a file, where they say so."""
    elastic = ""
    wrote: set[str] = set()
    labelled: dict[int, str] = {}
    for raw in raws:
        body = parse(raw[:600], b"", file_rank)
        if body is None or len(known) >= _MOST:
            continue
        if body.host:
            wrote.add(body.host)
        if actors is not None and (match := _RAY_RANK.search(body.text)):  # Ray Train's own table
            actors.setdefault(f"pid={match['pid']}, ip={match['ip']}", int(match["rank"]))
            actors.setdefault(f"pid={match['pid']}", int(match["rank"]))
            known.setdefault(int(match["rank"]), match["ip"])
        elif body.actor and actors is not None and (match := _OWN_RANK.search(body.text)):
            actors.setdefault(body.actor, int(match[1]))
        if body.label and body.rank is not None:
            labelled.setdefault(body.rank, body.label)
        elastic = _one(body, known, elastic)
    # A word before the text is a host's name where others like it stand before other ranks' lines.
    stems = Counter(_DIGITS.sub("", name) for name in set(labelled.values()))
    for rank, name in labelled.items():
        if stems[_DIGITS.sub("", name)] > 1:
            known.setdefault(rank, name)
    return wrote.pop() if len(wrote) == 1 else ""


def telling(front: bytes, tail: bytes, of_one_rank: bool) -> list[bytes]:
    """The lines of the front and the end of a file that may tell who runs where."""
    first, last = _with_words(front), _with_words(tail)
    return [*first[:_MOST_OF_A_RANK], *last[-_MOST_OF_A_RANK:]] if of_one_rank else [*first, *last]


def _with_words(text: bytes) -> list[bytes]:
    """Its lines that hold one of the words, found word by word: most lines hold none and are never looked at."""
    starts: set[int] = set()
    for word in _WORDS:
        at = text.find(word)
        while at >= 0:
            starts.add(text.rfind(b"\n", 0, at) + 1)
            end = text.find(b"\n", at)
            at = text.find(word, end) if end >= 0 else -1
    return [text[at:end] if (end := text.find(b"\n", at)) >= 0 else text[at:] for at in sorted(starts)]


def _one(body: Body, known: dict[int, str], elastic: str) -> str:
    text = body.text if body.payload_from is None else body.text[: body.payload_from]
    own = body.task
    if own is None and (match := _TASKS.match(text)):
        for rank in _numbers(match["tasks"]):
            known.setdefault(rank, match["host"])
        return ""
    if own is None and (match := _ELASTIC_HOST.match(text)):
        return match["host"]
    if own is None and elastic and (match := _ELASTIC_RANK.match(text)):
        known.setdefault(int(match["rank"]), elastic)
        return ""
    for form in _FORMS:
        if (match := form.search(text)) and (own is None or own == int(match["rank"])):
            known.setdefault(int(match["rank"]), match["host"])
            break
    if body.rank is not None and body.host:
        known.setdefault(body.rank, body.host)
    return elastic


def _numbers(text: str) -> list[int]:
    out: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            out += range(int(low), min(int(high or low), int(low) + 1024) + 1)
    return out
