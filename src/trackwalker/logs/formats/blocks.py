"""Blocks of a log that quote one rank: below a heading that names it, and in the summary torchrun prints at the end.

Their lines have no label of their own: without this they would all be nobody's, and the first in the text, which is
seldom the first in time, would be believed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace

from trackwalker.logs.scanning.labels import is_host
from trackwalker.logs.scanning.lines import NAMED_HOST, Body, parse

_SUMMARY = (b"  time      : ", b"  host      : ", b"  rank      : ")
# What a heading holds: a composer's or a spawner's block, a rule around a rank.
_OF_A_RANK = (
    b"begin global rank", b"end global rank", b"terminated with the following", b"- rank ", b"= rank ", b"# rank ",
    b"* rank ", b"- worker ", b"= worker ", b"# worker ",
)  # fmt: skip
HEADS = (*_SUMMARY, *(head for head in _OF_A_RANK if len(head) > 6), b"--- rank", b"=== rank", b"### rank")
_HEAD = re.compile(rb"  (time|host|rank) {6}: (\S+)")
_HEADING = re.compile(r"^\s*[-=#*~>+]{2,}\s*(?P<said>[^\n]{3,120}?)\s*(?:[-=#*~<+]{2,}|:)\s*$")
_WHOSE = re.compile(
    r"(?i)(?<!local )(?<!local_)\b(?:rank|worker|process|proc|task|replica)[ _#=:-]{0,2}(?P<rank>\d{1,5})\b"
)
_SPAN = re.compile(r"(?i)\branks?\W{1,3}(?P<first>\d{1,6})\s?(?:-|\.\.|to|–|,)\s?\d")
_NAME = re.compile(r"(?<![\w.-])(?=[\w.-]*[\d-])[A-Za-z][\w.-]{2,63}(?![\w.-])")
HERE = re.compile(
    r"(?i)^(?:[\d:.,]{8,15}\s)?\W{0,2}(?:gpu|lr|local[ _]?rank|proc|worker|dev|cuda)?[ :_#]?(\d{1,2})\b[\])>:|]{1,2}\s?"
)
_ENDS = re.compile(r"(?i)^\W*end\b")
_ON = re.compile(r"(?i)\b(?:on|at|@|host|node)[ =:]{1,2}(?P<host>(?=[\w.-]*\d)[a-z][\w.-]{1,63})|\((?P<beside>(?=[\w.-]*\d)[a-z][\w.-]{1,63})\)")  # noqa: E501  # fmt: skip
_LONGEST = 200  # lines of one block of the summary
_KEYS = ("time", "host", "rank", "exitcode", "error_file", "traceback")


@dataclass
class Sections:
    """The headings of a file that name a rank, and those that end such a block."""

    lines: list[int] = field(default_factory=list)
    owners: list[tuple[int | None, str]] = field(default_factory=list)
    firsts: list[int | None] = field(default_factory=list)  # of a block that is a host's: its first rank

    def head(self, number: int, text: str) -> None:
        """A line that may be a heading."""
        match = _HEADING.match(text)
        if match is None or not any(c.isalpha() for c in match["said"]) or (self.lines and number <= self.lines[-1]):
            return
        whose = None if _ENDS.match(match["said"]) else _WHOSE.search(match["said"])
        on = _ON.search(match["said"])
        self.lines.append(number)
        span = _SPAN.search(match["said"])
        words = [part for word in _NAME.findall(match["said"]) for part in (word, *word.split("."))]
        told = (on["host"] or on["beside"]) if on else ""
        host = told if is_host(told) else next((word for word in words if is_host(word)), "")
        if not host and span:  # a host's block: its first word, whatever its form
            host = match["said"].split()[0]
        self.owners.append((int(whose["rank"]) if whose and not span else None, host))
        self.firsts.append(int(span["first"]) if span else None)

    def host(self, number: int, name: str, first: int | None) -> None:
        """A heading that is a host's name alone, its first rank where a line below tells it; no name ends a block."""
        self.lines.append(number)
        self.owners.append((None, name))
        self.firsts.append(first)

    def owned(self, body: Body, number: int) -> Body:
        """A line as that of the rank under whose heading it stands."""
        at = bisect_right(self.lines, number) - 1
        if at < 0 or self.lines[at] == number:
            return body
        rank, host = self.owners[at]
        if self.firsts[at] is not None and (match := HERE.match(body.text)):
            here = (self.firsts[at] or 0) + int(match[1])
            return replace(body, rank=here, host=host, text=body.text[match.end() :], labelled=True)
        if body.labelled or rank is None:
            return body
        return replace(body, rank=rank, host=body.host or host, labelled=True)


def section_hosts(text: str) -> dict[int, str]:
    """The hosts that blocks name: their heading, or a line below it."""
    found: dict[int, str] = {}
    sections = Sections()
    for number, line in enumerate(text.split("\n")):
        sections.head(number, line)
        rank, host = sections.owners[-1] if sections.owners else (None, "")
        if rank is not None and rank not in found and (host or (match := NAMED_HOST.search(line))):
            found[rank] = host or (match[1] if match else "")
    return found


@dataclass
class Summary:
    """The block of torchrun's summary that is being read."""

    line: int = -_LONGEST
    rank: int | None = None
    host: str = ""
    clock: float | None = None

    def head(self, number: int, raw: bytes) -> None:
        """A line that begins a block or says whose it is."""
        match = _HEAD.search(raw)
        if match is None:
            return
        what, told = match[1], match[2].decode("utf-8", "replace")
        if what == b"time":
            stamp = parse(told.replace("_", " ").encode() + b" x")
            self.rank, self.host, self.clock = None, "", stamp.clock if stamp else None
        elif what == b"host":
            self.host = "" if told == "localhost" else told
        elif told.isdigit():
            self.rank, self.line = int(told), number

    def owned(self, body: Body, number: int) -> Body:
        """A line of the block as its rank's, where it belongs to one."""
        inside = self.rank is not None and 0 < number - self.line <= _LONGEST and body.rank is None
        if not inside or not body.text.startswith("  ") or body.text.split(maxsplit=1)[0] in _KEYS[:3]:
            return body
        return replace(body, rank=self.rank, host=self.host or body.host, clock=self.clock)
