"""What a rank said last in words that look like no error: new after the last step, and no other rank prints it.

Only asked for in a run that is known to have failed. A line here has no level, no exception and no verb of failing;
that it stands where the healthy part ends, on one rank, is all that speaks for it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from trackwalker.job.dialects import needles as step_needles
from trackwalker.logs.facts import Quote
from trackwalker.logs.failures.mined import Seen, template_of
from trackwalker.logs.failures.reactions import launchers_end, reacts
from trackwalker.logs.failures.structure import ERROR, FATAL, SAID, Told, ending, frame_of, others_in, read, warns
from trackwalker.logs.failures.whereabouts import Places
from trackwalker.logs.formats.dialect import SLURM_CANCEL
from trackwalker.logs.scanning.lines import LAUNCHERS, Body, parse
from trackwalker.logs.scanning.scan import Scan
from trackwalker.logs.scanning.stamps import written_at

if TYPE_CHECKING:
    from trackwalker.logs.scanning.index import End, Hit, LogIndex

_MOST_RANKS = 2  # what more of them print tells nobody apart
_MOST = 32
_OFTEN = 5  # times: what a healthy run reports
_SHORTEST = 12
_NEAR = 3  # lines
_SEVERAL = 3  # ranks that lost somebody
_TWICE = 2  # lines in which somebody was lost
_ZONES_FROM_S, _ZONES_S, _UNLIKE_A_ZONE_S = 3600.0, 900.0, 300.0
_QUOTED = 400
VICTIM_LINES = frozenset({"victim", "exit-word"})  # they tell that somebody ended, not why
_ENDED = VICTIM_LINES | {"end-of-process"}
_NEXT = 8  # lines, of ranks that write into one another's
_NO_SENTENCE = re.compile(
    r"^\s{4}|^[-=#*~]{4,}|^\s*File \"|^[\W\d_]*$|^Traceback |^During handling|^The above exception|^NODE_EXIT |^\{'"
    r"|^\[[\w./:-]+(?:, [\w./:-]+)+|^\s*\(?\d\) "  # a list of names, a row of one
    r"|^(?:Set|Run|Try|See|Check|Please|Consider|Tip|Hint|Note)\b.{0,20} [a-z]|^For (?:more|details)\b"  # advice
    # Frames of C++, Java, Go and Rust.
    r"|^frame #\d+: |^Exception raised from \S+ at |^\s*@ +0x|^\s*at [\w.$<>/]+\(|^\s*\.\.\. \d+ more|"
    r"^\s*\S+\.(?:go|rs):\d+(?: \+0x\w+)?\s*$|^goroutine \d+ "
    r"|^stack backtrace|^note: run with"
)
_SPEAKER = re.compile(rb"\s*\[?(?:rank ?)?(\d+)\]?:")
_LOST = re.compile(
    r"(?i)unreachable|no route|lost (?:contact|connection)|(?:not|n't) (?:answer|respond)|no (?:answer|response|reply)"
    r"|refused|timed out|timeout|reset by peer|broken pipe|connect\w* .*(?:fail|clos)|fail\w* to (?:connect|reach|send)"
)
# Classes that end a program and are no error have names of their own.
_CLASS = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?!SystemExit|KeyboardInterrupt|GeneratorExit)([A-Z]\w+)(?:: |$)")
_WHOLE = re.compile(rb"(?<![\w.:-])\d{1,9}(?![\w.:])")
# What a program says of its start, before anything could go wrong.
_BEGINS = re.compile(
    r"(?i)^\W*(?:\w+ )?(?:initiali[sz](?:ed|ing)|load(?:ing|ed)|start(?:ing|ed)|using|built|building|compiling"
    r"|created|creating|found|number of)\b"
)
_CALM = re.compile(r"\b(?:INFO|DEBUG|TRACE|NOTICE)\b")  # in the head of a line
_A_BAR = re.compile(r"\d+%\||\b\d+(?:\.\d+)?(?:it/s|s/it)\b")


def lost_somebody(text: str) -> bool:
    """Whether a line tells, in whatever words, that somebody else cannot be reached."""
    return _LOST.search(text) is not None


def lost_peers(scan: Scan, after: int) -> list[Quote]:
    """Lines behind the last step's that a rank begins and in which it has lost somebody."""
    raws = scan.tail.split(b"\n")
    first = scan.lines - len(raws) + (1 if scan.ends_mid_line else 2)
    out = []
    for number, raw in enumerate(raws, first):
        said = _SPEAKER.match(raw) if number > after else None
        if said and lost_somebody(text := raw.decode("utf-8", "replace").rstrip("\r")):
            out.append(Quote(int(said[1]), number, text))
    return out


def last_words(
    scan: Scan, file: str, known: set[int], victims: dict[int, int | None], places: Places, failed: bool
) -> list[Seen]:
    """The lines after the last step of any rank, before the first victim's or of whoever is no victim.

    `known` are line numbers, `victims` the ranks by line. Without a healthy part only two lines are believed: what the
    rank said last that the launcher says ended first, and what stands right before several others lost somebody. Of
    a run that nothing else says has `failed` only errors by their level.
    """
    raws = scan.tail.split(b"\n")
    number = scan.lines - len(raws) + (1 if scan.ends_mid_line else 2)  # of the first line in the tail
    steps = step_needles()
    last = max((i for i, raw in enumerate(raws) if any(n in raw for n in steps)), default=None)
    if last is None:
        ill = min(victims, default=None)
        last = _last_report(raws, places, None if ill is None else max(0, ill - number))
    places.reported = last is not None
    trained, last = last is not None, -1 if last is None else last
    first_known = min((line for line in victims if line > number + last), default=None)
    ranks: dict[str, set[object]] = defaultdict(set)
    lost = {rank for rank in victims.values() if rank is not None}
    found: list[Seen] = []
    odd: list[Seen] = []  # of nobody known, or in the form of a warning
    lost_lines, reacted, clock = 0, 0, None
    said: Counter[str] = Counter()
    for at, raw in enumerate(raws[last + 1 :], start=number + last + 1):
        body = places.read(raw[:2000], raws[at - number - 1] if at > number else b"")
        if body is None or launchers_end(body.text):
            continue
        body = places.sections.owned(body, at)
        if trained and places.ended_first not in lost and places.is_firsts(body):
            body = replace(body, rank=places.ended_first)
        clock = body.clock if body.clock is not None else clock
        template = template_of(body)
        ranks[template].add(body.rank if body.rank is not None else body.actor)
        said[template] += 1
        if reaction := reacts(body.text):
            lost_lines, reacted = lost_lines + 1, at
        before = first_known is None or at < first_known or (body.rank is not None and body.rank not in lost)
        # The line of code that a warning quotes stands indented below it.
        source = body.text[:1].isspace() and at > number and b"Warning: " in raws[at - number - 1]
        if body.rank is not None and reaction:
            places.missed.add(body.rank)
        if source or at in known:
            continue
        sure = before and _tells(body, first_known, at)
        if sure or (not reaction and body.rank not in lost and _stands_out(body, places.labelled)):
            told = read(body) or Told(SAID, others=others_in(body.text))
            host = body.host or body.named or body.label
            (found if sure else odd).append(
                Seen(body.rank, body.task, host, file, at, body.text.strip()[:_QUOTED], clock, told, template,
                     lines=[at], actor=body.actor)
            )  # fmt: skip
    found = [s for s in found if len(ranks[s.template]) <= _MOST_RANKS]
    odd = [s for s in odd if said[s.template] == 1 and s.rank not in places.missed] if lost_lines >= _TWICE else []
    if not found and not odd:
        return []
    healthy = [*scan.front.split(b"\n")[: number + last], *raws[: last + 1]]
    usual = {template_of(b) for raw in healthy if (b := places.read(raw[:600]))}
    found = [s for s in found if s.template not in usual]
    odd = [s for s in odd if s.template not in usual]
    failed = failed or len(places.missed) >= _SEVERAL
    if failed and not any(s.told.severity > SAID for s in found):
        # All others tell of a lost peer: the one sentence that nobody else prints is of who was lost.
        sound = [s for s in found if s.rank not in places.missed]
        found = sound or [s for s in odd if s.line < reacted][-1:] or odd[:1] or found
    errors = [s for s in found if s.told.severity >= ERROR]  # by their level, in words that nobody searches for
    if not failed:
        return errors[:_MOST]
    if not trained:
        found = [
            *errors,
            *_without_health([s for s in found if s not in errors], victims, first_known, places.first),
        ]
    return found[:_MOST]


def raised_below_frames(scan: Scan, file: str, words: Sequence[bytes], places: Places) -> list[Seen]:
    """The exceptions near the end of the log that no word gives away: what stands below a traceback's frames is one.

    What holds one of the `words` was looked at before.
    """
    raws = scan.tail.split(b"\n")
    number = scan.lines - len(raws) + (1 if scan.ends_mid_line else 2)
    frames: dict[tuple[int | None, str], str] = {}  # by who is writing a traceback: its innermost own frame
    found: list[Seen] = []
    for at, raw in enumerate(raws if b'File "' in scan.tail else (), start=number):
        body = places.read(raw[:2000], raws[at - number - 1] if at > number else b"")
        if body is None or not body.text.strip():
            continue
        key = (body.rank, body.actor)
        if frame := frame_of(body.text):
            frames[key] = frames.get(key, "") if frame[1] else frame[0]
        if body.text[:1].isspace() or key not in frames:
            continue
        where = frames.pop(key)
        match = _CLASS.match(body.text)
        lower = raw.lower() + b"\n"
        if match is None or launchers_end(body.text) or any(word.lower() in lower for word in words):
            continue
        told = read(body) or Told(SAID, others=others_in(body.text))
        told = replace(told, severity=FATAL, exception=match[1], python=True)
        host = body.host or body.named or body.label
        found.append(
            Seen(body.rank, body.task, host, file, at, body.text.strip()[:_QUOTED], body.clock, told, template_of(body),
                 lines=[at], frame=where, actor=body.actor)
        )  # fmt: skip
    return found[-_MOST:]


def last_words_beside(ends: list[End], known: set[tuple[str, int]], places: Places) -> list[Seen]:
    """The same of ranks that have a file each: what one or two of them say last and no other does."""
    files: dict[str, set[int]] = defaultdict(set)
    found: list[Seen] = []
    steps = step_needles()
    for end in ends:
        raws = end.text.split(b"\n")
        number = end.lines - len(raws) + 2 if end.text.endswith(b"\n") else end.lines - len(raws) + 1
        last = max((i for i, raw in enumerate(raws) if any(n in raw for n in steps)), default=-1)
        for at, raw in enumerate(raws[last + 1 :], start=last + 1):
            body = places.read(raw[:2000], raws[at - 1] if at else b"", end.rank)
            if body is None:
                continue
            template = template_of(body)
            files[template].add(end.rank)
            if (end.file, number + at) in known or launchers_end(body.text) or not _tells(body, None, 0):
                continue
            if reacts(body.text):
                places.missed.add(end.rank)
            told = read(body) or Told(SAID, others=others_in(body.text))
            found.append(
                Seen(end.rank, None, body.host or end.host, end.file, number + at, body.text.strip()[:_QUOTED],
                     body.clock, told, template, lines=[number + at])
            )  # fmt: skip
    return [s for s in found if len(files[s.template]) <= _MOST_RANKS][:_MOST]


def _without_health(
    found: list[Seen], victims: dict[int, int | None], first: int | None, ended: int | None
) -> list[Seen]:
    """Of lines that nothing healthy can be held against: the last of whoever ended first, or of who spoke last."""
    if ended is not None:
        return [s for s in found if s.rank == ended][-1:]
    lost = {rank for rank in victims.values() if rank is not None}
    near = [s for s in found if first is not None and first - s.line <= _NEAR and s.rank not in lost]
    near = [s for s in near if not _BEGINS.match(s.text)]
    return near[-1:] if len(lost) >= _SEVERAL else []


def _last_report(raws: list[bytes], places: Places, until: int | None) -> int | None:
    """Of a trainer whose steps are not known: the last of the lines that it prints over and over while it is well."""
    templates: list[str] = []
    for raw in raws[:until]:
        body = places.read(raw[:600])
        well = body is not None and not _NO_SENTENCE.search(body.text) and read(body) is None and not reacts(body.text)
        well = well and body is not None and ending(body.text) == (None, None)
        templates.append(template_of(body) if body is not None and well else "")
    often = [t for t, count in Counter(templates).most_common(4) if t and count >= _OFTEN][:3]
    places.counted = any(
        _counts_on([raw for raw, t in zip(raws, templates, strict=False) if t == each]) for each in often
    )
    return max((i for i, t in enumerate(templates) if t in often), default=None)


def _counts_on(raws: list[bytes]) -> bool:
    """Whether lines that are alike count something: one of their numbers grows from each to the next, evenly."""
    rows = [[int(n) for n in _WHOLE.findall(raw)] for raw in raws]
    if len({len(row) for row in rows}) > 1:
        return False
    grows = ({b - a for a, b in pairwise(column)} for column in zip(*rows, strict=True))
    return any(len(by - {0}) == 1 and min(by) >= 0 for by in grows)


def _tells(body: Body, victim: int | None, at: int) -> bool:
    """Whether a rank wrote a sentence, none of its reports of a healthy course; right before a victim, anybody."""
    text = body.text
    return (
        (body.rank is not None or body.actor != "" or (victim is not None and victim - at <= _NEAR))
        and not body.informs
        and not warns(text)
        and _a_sentence(text)
    )


def _stands_out(body: Body, labelled: bool) -> bool:
    """Whether somebody wrote a sentence; where ranks are labelled a line without one is a launcher's."""
    somebodys = body.rank is not None or not labelled or (body.host or body.label or body.actor) != ""
    return somebodys and not body.informs and _a_sentence(body.text) and not _CALM.search(body.text[:60])


def _a_sentence(text: str) -> bool:
    return (
        len(text.strip()) >= _SHORTEST
        and not _NO_SENTENCE.search(text)
        and not _A_BAR.search(text)
        and not LAUNCHERS.match(text)
    )


def next_line(scan: Scan, seen: Seen, places: Places) -> str:
    """What the same rank says right after a line near the end of the log."""
    raws = scan.tail.split(b"\n")
    at = seen.line - (scan.lines - len(raws) + (1 if scan.ends_mid_line else 2))
    read_on = enumerate(raws[at + 1 : at + 1 + _NEXT], seen.line + 1) if at >= 0 else iter(())
    bodies = ((n, b) for n, raw in read_on if (b := places.read(raw[:_QUOTED])) is not None and b.text.strip())
    return next((b.text.strip() for n, b in bodies if places.sections.owned(b, n).rank == seen.rank), "")


def failed_by_itself(index: LogIndex) -> bool:
    """Whether a run that trained ended with an error of its own: nobody killed it or told it to end."""
    told = asked_by_others(index)
    failed = [h.line for h in index.hits if _ENDED & set(h.signature.traits) or h in told]
    failed += [e.line for e in index.facts.exits] + [q.line for q in (index.facts.task_failed,) if q is not None]
    outside = (h for h in index.hits if {"kill", "request-to-end"} & set(h.signature.traits) and h not in told)
    return bool(failed) and not any("kill" in h.signature.traits or h.line < min(failed) for h in outside)


def asked_by_others(index: LogIndex) -> list[Hit]:
    """Ranks that say they were told to end, where neither the scheduler says so nor all ranks: one failed before."""
    asked = [h for h in index.hits if "request-to-end" in h.signature.traits]
    ranks = {h.rank for h in asked}
    others = (index.ranks_seen | index.rank_hosts.keys() | {index.last_task}) - {-1, *ranks}
    return asked if None not in ranks and others else []


def accused(index: LogIndex, found: list[Seen]) -> int | None:
    """The one rank that those who lost somebody name, where it names nobody itself."""
    lost = [(s.rank, s.text) for s in found if reacts(s.text)]
    lost += [
        (h.rank, h.text) for h in index.hits if {"victim", "exception"} & set(h.signature.traits) and reacts(h.text)
    ]
    named = {
        int(who)
        for rank, text in lost
        if rank is not None
        for who in others_in(text)
        if who.isdigit() and int(who) != rank
    }
    named &= index.ranks_seen | index.rank_hosts.keys()  # of other numbers a process has its own
    named -= {rank for rank, _ in lost}
    return named.pop() if len(named) == 1 else None


def silence(text: bytes, other: tuple[bytes, ...]) -> float | None:
    """Seconds that the log goes on after its last step: a hung run may print notices, and is cancelled at last."""
    at = max(text.rfind(n) for n in (*step_needles(), *other))
    if at < 0:
        return None
    lines = text[text.rfind(b"\n", 0, at) + 1 :].split(b"\n")
    clocks = [b.clock for raw in lines if (b := parse(raw[:_QUOTED])) and b.clock is not None]
    went_on = max(clocks) - min(clocks) if len(clocks) > 1 else None
    texts = [raw[:_QUOTED].decode("utf-8", "replace") for raw in lines]
    ends = [written_at(m[3]) for text in texts if (m := SLURM_CANCEL.search(text))]
    stamps = [told for text in texts if not SLURM_CANCEL.search(text) and not math.isnan(told := written_at(text))]
    waited = min(ends) - max(stamps) if ends and stamps else 0.0
    # Slurm's clock may be in another zone: what is left over from whole quarters of an hour is none of it.
    if waited < _ZONES_FROM_S or waited % _ZONES_S > _UNLIKE_A_ZONE_S:
        went_on = max(went_on or 0.0, waited) or None
    return went_on
