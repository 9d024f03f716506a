"""Who ended, by the word of the launcher: the first of them, and whose word on an end is not believed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trackwalker.logs.facts import LogFacts
from trackwalker.logs.failures.whereabouts import Places
from trackwalker.logs.formats import dialect as d
from trackwalker.logs.scanning.lines import LAUNCHERS, Body, parse

if TYPE_CHECKING:
    from trackwalker.logs.scanning.index import Hit


# What announces it, and the line of that report that holds the rank (the same line where nothing announces it).
_ELASTIC_TIME = re.compile(r"^\s*time\s+: (\d{4}-\d\d-\d\d)_(\d\d:\d\d:\d\d)")
_ENDS = (
    (None, re.compile(r"^srun: error: \S+: task (?P<rank>\d{1,6}): (?!Term|Exited with exit code (?:0|130)\b)")),
    (re.compile(r"^Root Cause \(first observed"), re.compile(r"^\s*rank\s+: (?P<rank>\d{1,6}) \(local_rank")),
    (
        re.compile(r"The first process to do so was"),
        re.compile(r"Process name: (?:\[\[\d+,\d+\],)?(?P<rank>\d{1,6})\b"),
    ),
    (None, re.compile(r"^mpirun noticed that process rank (?P<rank>\d{1,6}) ")),
    (re.compile(r"Training failed due to worker errors"), re.compile(r"^\[Rank (?P<rank>\d{1,6})\]")),
    (None, re.compile(r"^#{3,} Command execution on worker (?P<rank>\d{1,6}) failed")),
    (
        None,
        re.compile(
            r"(?i)^(?!.*\bsrun: ).*\b(?:rank|task|worker|process|replica|pod \S{1,60}-)[ #=]?(?P<rank>\d{1,6})\b[^\n]{0,60}?"  # noqa: E501
            r"\b(?:exit(?:ed|s)?|failed|died|terminated|ended|crashed)\b[^\n]{0,30}?\b(?:code|status|signal)\b\W{0,3}?(?!-?(?:0|15|143)\b)-?\d"
        ),
    ),
    (None, re.compile(r"\bWorker process pid=(?P<pid>\d+) exited: exit code (?!0\b)")),  # Ray's node manager
    (re.compile(r"ActorDiedError|The actor (?:is dead|died)"), re.compile(r"^\s*pid: (?P<pid>\d+)\s*$")),
)
_END_WORDS = re.compile(
    rb"srun: error|[Rr]ank|exited: |irst process|rocess |worker|\[Rank |Root Cause|pod |task |replica |  time   |pid[=:] |[Aa]ctor"  # noqa: E501
)
_TOLD_TO_END = re.compile(rb"Terminating (?:StepId|job step)|CANCELLED|Job step aborted")
_REPORT = 20  # lines


def ended_first(raws: Iterable[bytes], places: Places) -> int | None:
    """The rank, where the end of a log names one. Of several reports the earliest by their times."""
    announced: dict[int, int] = {}
    told_at: float | None = None
    found: list[tuple[float, int]] = []
    raws = list(raws)
    told_to_end = next((number for number, raw in enumerate(raws) if _TOLD_TO_END.search(raw)), -1)
    for number, raw in enumerate(raws):
        if _END_WORDS.search(raw) is None or (body := places.read(raw[:600])) is None:
            continue
        if number >= told_to_end and body.text.endswith("code 143"):
            continue  # it obeyed
        if match := _ELASTIC_TIME.match(body.text):
            stamp = parse(f"{match[1]} {match[2]} x".encode())
            told_at = stamp.clock if stamp is not None else None
        for at, (before, told) in enumerate(_ENDS):
            if before is not None and before.search(body.text):
                announced[at] = number
            match = told.search(body.text)
            if match is None or (before is not None and number - announced.get(at, -_REPORT - 1) > _REPORT):
                continue
            rank = _named_by(match, body, places, told is _ENDS[0][1])
            if rank is not None:
                clock = told_at if told is _ENDS[1][1] else body.clock
                found.append((math.inf if clock is None else clock, rank))
    timed = [each for each in found if each[0] < math.inf]
    # A report without a time stands where it was written: the first of all counts, unless others tell when.
    return min(timed)[1] if len(timed) > 1 and found[0] in timed else found[0][1] if found else None


def _named_by(match: re.Match[str], body: Body, places: Places, by_srun: bool) -> int | None:
    """The rank that a launcher's line names, if the line is the launcher's."""
    names = match.groupdict()
    if names.get("pid"):
        return places.actors.get(f"pid={names['pid']}")
    if by_srun and places.per_node > 1:
        return None  # srun's task is a whole node there
    rank = int(names["rank"])
    return rank if body.rank in (None, rank) or body.outer else None


def drop_forged(facts: LogFacts, hits: dict[tuple[str, int | None, str], Hit]) -> None:
    """A node tells of its own exit: what a task prints about another host of the job is not believed."""
    hosts = facts.hosts
    # Stages and checks come before training: once it begins a label is the trainer's, and speaks of its own host.
    begins = [s.line for s in facts.stages if (s.name, s.what) == ("Training", "BEGIN")]
    trained = facts.steps.line[:1].tolist()
    for key, hit in list(hits.items()):
        if (
            hit.task is None
            or LAUNCHERS.match(hit.text) is None
            or hit.line <= min([*begins, *trained], default=hit.line)
        ):
            continue
        own = hit.task < len(hosts) and f" {hosts[hit.task]} |" in hit.text
        if not own or (trained and hit.line > trained[0]):
            del hits[key]

    def forged(rank: int | None, host: str) -> bool:
        mine = hosts[rank] if rank is not None and rank < len(hosts) else host
        return host in hosts and mine != host

    if max((e.rank or 0 for e in facts.exits), default=0) < len(hosts):  # else several tasks share a node
        facts.exits = [e for e in facts.exits if not forged(e.rank, e.host)]
        for key, hit in list(hits.items()):
            match = d.NODE_EXIT.search(hit.text) if "exit-word" in hit.signature.traits else None
            if match and forged(hit.rank, match[1]):
                del hits[key]
