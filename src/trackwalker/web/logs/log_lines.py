"""Log lines as a page shows them: harmless, without secrets, cut if long, numbered, with how serious they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trackwalker.job.redact import HIDDEN
from trackwalker.job.scrub import Scrubber
from trackwalker.logs.scanning.lines import parse
from trackwalker.logs.scanning.window import LONGEST, Line, LineCounts, OpenLog, Wanted
from trackwalker.record.line_clock import template_of
from trackwalker.report.text import visible
from trackwalker.web.logs.log_search import Needle

SHOWN = 2048  # characters of a line; what is read beyond them lets a secret be known that the cut would halve
PART = 1 << 15  # bytes of a long line that are shown at once when its parts are looked at
_MARGIN = 256
_FEWEST = 3  # lines that say the same are not worth folding
_FRONT = 400
_ERROR = re.compile(
    r"^[EF]\d{4} |\b(?:ERROR|CRITICAL|FATAL|Traceback|FAILED|Aborted|Segmentation fault|SIG(?:KILL|SEGV|ABRT|BUS))\b"
    r"|\b\w*(?:Error|Exception)\b(?::|$)|\berror:"
)
_WARNING = re.compile(r"^W\d{4} |\bWARN(?:ING)?\b|\bWarning:|\bwarning:")
# A line of a private key that is printed over many lines: each alone has no other shape.
_KEY_BODY = re.compile(r"(?:\d+: )?[A-Za-z0-9+/]{60,76}={0,2}\s*")


@dataclass(frozen=True)
class Row:
    """One line on the page."""

    start: int
    number: int | None  # None while the log is not counted that far
    level: str  # "error", "warning" or nothing
    pieces: tuple[tuple[str, bool], ...]  # text, and whether it is what was searched for
    size: int
    cut: bool
    current: bool = False
    note: str = ""  # what triage or the verdict says of it
    part: tuple[int, int] | None = None  # of a long line: which part of how many


@dataclass(frozen=True)
class Dress:
    """What is known about the lines of one log before they are shown."""

    scrubber: Scrubber
    needle: Needle
    notes: Mapping[int, str]

    def rows(
        self, log: OpenLog, counts: LineCounts, lines: Iterable[Line], together: bool, current: int | None, part: int
    ) -> list[Row]:
        """The rows of lines; `together` says that no line between them is left out, `current` is where one begins."""
        out: list[Row] = []
        number: int | None = None
        for line in lines:
            number = number + 1 if together and number is not None else counts.number_at(log, line.start)
            out.append(self._row(log, line, number, line.start == current, part))
        return out

    def _row(self, log: OpenLog, line: Line, number: int | None, current: bool, part: int) -> Row:
        parts = -(-line.size // PART)
        one_part = current and part > 0 and line.size > LONGEST
        text = self._part(log, line, min(part, parts)) if one_part else self._harmless(line.raw)
        cut = line.size > LONGEST and not one_part
        return Row(
            start=line.start,
            number=number,
            level=level(line.raw[:_FRONT]),
            pieces=self.needle.pieces(text[:SHOWN] if cut else text),
            size=line.size,
            cut=cut,
            current=current,
            note=self.notes.get(number, "") if number is not None else "",
            part=(min(part, parts), parts) if one_part else None,
        )

    def _harmless(self, raw: bytes) -> str:
        text = raw.decode("utf-8", "replace")
        return visible(HIDDEN if is_key_body(text) else self.scrubber.clean(text))

    def _part(self, log: OpenLog, line: Line, part: int) -> str:
        begin, end = line.start + (part - 1) * PART, min(line.end, line.start + part * PART)
        begin, end = _whole(log, begin), _whole(log, end)
        first, last = max(line.start, begin - _MARGIN), min(line.end, end + _MARGIN)
        wide = log.read(first, last - first).decode("utf-8", "replace")
        clean = self.scrubber.clean(wide)
        # Where a secret was hidden the cut may have gone through it: then the margins are shown as well.
        return visible(clean if clean != wide else log.read(begin, end - begin).decode("utf-8", "replace"))


def is_key_body(text: str) -> bool:
    """Whether a line looks like the inside of a private key."""
    return _KEY_BODY.fullmatch(text) is not None


def folded(rows: list[Row]) -> list[list[Row]]:
    """Stretches of lines: one line alone, or several in a row that say the same but for numbers and ranks.

    Lines that matter (errors, notes, the one that was asked for, hits of a search) are never folded.
    """
    out: list[list[Row]] = []
    last = ""
    for row in rows:
        text = "".join(piece for piece, _ in row.pieces)
        matters = bool(row.level or row.note or row.current or row.part or any(found for _, found in row.pieces))
        said = "" if matters else template_of(text)
        if said and said == last and out:
            out[-1].append(row)
        else:
            out.append([row])
        last = said
    return [part for group in out for part in ([group] if len(group) > _FEWEST else [[row] for row in group])]


def level(raw: bytes) -> str:
    """How serious a line calls itself; a line that only informs of an error is none."""
    body = parse(raw)
    if body is None or body.informs:
        return ""
    return "error" if _ERROR.search(body.text) else "warning" if _WARNING.search(body.text) else ""


def rank_filter(rank: int) -> Wanted:
    """How the lines of a rank begin in a log of all ranks: srun's, torchrun's, Horovod's and mpirun's labels."""
    n = b"%d" % rank
    forms = (
        rb"[ \t]*0*%s: ",
        rb"\[(?:rank|default|worker)[ _-]?%s\]",
        rb"\[(?:\d+,)?%s\]<std(?:err|out)>",
        rb"(?:[Rr]ank|worker)[ _-]?%s\s?[:|] ",
    )
    return Wanted(re.compile(b"|".join(form % n for form in forms)), re.compile(n + rb"(?:: |\]|\s?[:|] )"))


def _whole(log: OpenLog, at: int) -> int:
    """The place itself, or the nearest one before it where a character begins."""
    head = log.read(max(at - 3, 0), 4)
    back = 0
    while back < len(head) - 1 and head[-1 - back] & 0xC0 == 0x80:
        back += 1
    return at - back if len(head) == 4 else at
