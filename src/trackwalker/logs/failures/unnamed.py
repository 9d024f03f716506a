"""Error lines in words that no signature knows: which of them are new in this run, which comes first, what they weigh.

New is what the run's healthy part does not print; first is what a rank says of itself before others speak of it.
"""

from __future__ import annotations

import re
from collections import defaultdict

from trackwalker.logs.excerpts.shown import by_hand
from trackwalker.logs.failures.groups import Group, having, waits_for, when, whose
from trackwalker.logs.failures.lastwords import asked_by_others
from trackwalker.logs.failures.reactions import VICTIMS, launchers_end, reacts
from trackwalker.logs.failures.structure import ERROR, FATAL, SAID, ending
from trackwalker.logs.scanning.index import Hit, LogIndex

_UNCAUGHT = re.compile(r"(?i)\b(?:uncaught|unhandled)\b")  # what was raised stands below
_RAISED = re.compile(r"^\W*[\w.]+(?:Error|Exception): ")
_DIGITS = re.compile(r"\d+")
_TRACEBACK = 60  # lines of a traceback, interleaved with those of other ranks
_LAST_WORDS = 5  # lines: an error with nothing after it
_FEW_WORDS = 4
_SEVERAL = 2  # ranks that lost somebody
_REPORT = 12  # lines
_MOST_ALIKE = 0.5  # of the ranks: what more of them print tells nobody apart


def sort_errors(group: Group, index: LogIndex) -> None:
    """Put first what a rank says of itself, in the strongest form, before the others; then time decides."""
    strongest = max(_severity(h) for h in group.hits)
    ranks = defaultdict(set)
    for hit in group.hits:
        ranks[_form(hit)].add(hit.rank)
    world = max(len(index.facts.hosts), len({h.rank for h in group.hits}), _world(index))
    # What one rank alone says tells it from those who say alike what happened to them.
    alone = any(len(ranks[_form(h)]) == 1 and h.rank is not None and not reacts(h.text) for h in group.hits)

    labelled = any(h.rank is not None for h in group.hits)
    spoke = {h.rank for h in group.hits}
    ended = index.places.first if index.places.first in spoke else index.places.ended_first

    def key(hit: Hit) -> tuple[bool, bool, bool, bool, bool, bool, bool, tuple[float, int]]:
        said_by = len(ranks[_form(hit)])
        common = world > 2 and (said_by > _MOST_ALIKE * world or (said_by > 1 and alone))
        launcher = labelled and hit.rank is None and hit.file == index.path.name and not hit.host
        others = ended is not None and hit.rank != ended and (hit.rank is not None or ended in spoke)
        lost = reacts(hit.text)
        shared = lost and len(ranks[_form(hit)]) > 1  # several who lost somebody say it alike
        return (
            others, hearsay(hit, index), shared, common, launcher, lost, _severity(hit) < min(strongest, ERROR),
            _last_first(hit, index) if hit.rank == ended and _severity(hit) <= SAID else when(hit, index),
        )  # fmt: skip

    group.hits.sort(key=key)


def sort_raised(group: Group, index: LogIndex) -> None:
    """Of exceptions, those that no lost peer makes come first."""
    group.hits.sort(key=lambda hit: (reacts(hit.text), when(hit, index)))


def _lost_somebody(groups: list[Group]) -> list[Group]:
    """The classes of who lost or waited for somebody, in known words or in those of its own exceptions."""
    raised = [g for g in having(groups, "exception") if all(reacts(h.text) for h in g.hits)]
    return [*(g for g in having(groups, *VICTIMS) if not g.has("exit-word")), *raised]


def _last_first(hit: Hit, index: LogIndex) -> tuple[float, int]:
    """Of sentences that look like no error, the last of who ended first is nearest to its end."""
    at, line = when(hit, index)
    return -at, -line


def _severity(hit: Hit) -> int:
    return hit.told.severity if hit.told is not None else 0


def _form(hit: Hit) -> tuple[str, str]:
    told = hit.told
    if told is not None and (told.exception or told.verb):
        return told.exception, told.verb
    return "", _DIGITS.sub("#", hit.text[:60])


def _world(index: LogIndex) -> int:
    """How many ranks there are, as far as anything tells."""
    return max(index.tasks, max(index.ranks_seen, default=-1) + 1, max(index.rank_hosts, default=-1) + 1)


def hearsay(hit: Hit, index: LogIndex) -> bool:
    """Whether a line is about another rank or host than the one that wrote it; a number beyond all ranks is neither."""
    world = _world(index)
    told = hit.told.others if hit.told is not None else ()
    others = {each for each in told if not each.isdigit() or world < _SEVERAL or int(each) < world}
    return bool(others) and not {str(hit.rank), str(hit.task), hit.host, hit.host.partition(".")[0]} & others


def weigh(groups: list[Group], index: LogIndex) -> None:
    """What unknown words weigh beside what is known: less than a cause, more than how a process ended."""
    unknown = next((g for g in groups if g.first.signature.unnamed), None)
    if unknown is None or unknown.tier > 4:
        return
    strong = max(_severity(h) for h in unknown.hits) >= ERROR
    facts = index.facts
    ended_badly = (
        any(e.code not in (0, 130, 143) for e in facts.exits)
        or facts.task_failed is not None
        or (facts.summary is not None and facts.summary.exit not in (None, 0, 130, 143))
        or any(g.tier <= 4 and g is not unknown for g in groups)
        or len(index.places.missed) >= _SEVERAL
        or index.places.accused is not None
        or bool(asked_by_others(index))
    )
    last_words = unknown.first.file == index.path.name and index.facts.lines - unknown.first.last_line < _LAST_WORDS
    if not strong and len(index.steps) and not ended_badly and not last_words:
        unknown.tier, unknown.why = 8, "a sentence about a failure, in a run that nothing else says has failed"
        return
    if _continued(unknown.first, groups):
        unknown.tier, unknown.why = 6, "the line beside it says what it is about"
        return
    if (raised := _announced(unknown.first, groups)) is not None:
        raised.tier = min(raised.tier, 3)
        return  # what was raised says what the line above it only announces
    raises = (h for g in having(groups, "exception") if g.tier <= 4 for h in g.hits)
    if reacts(unknown.first.text) and any(whose(h) is not None and not reacts(h.text) for h in raises):
        return  # all that unknown words tell is how others took what somebody raised
    _before_the_signal(unknown, groups, index)
    asked = [
        g
        for g in having(groups, "request-to-end")
        if g.tier == 5
        and not (all(map(by_hand, g.hits)) and when(unknown.first, index) < when(g.first, index))
        and not _after_a_failure(g, groups, unknown, index)
        and not _told_by_the_launcher(g, unknown, index)
    ]
    if asked and (
        _severity(unknown.first) < FATAL or when(unknown.first, index) > min(when(g.first, index) for g in asked)
    ):
        unknown.tier, unknown.why = 6, "beside the request to end it says little"
        return
    _before_the_victims(unknown, groups, index)


def _continued(own: Hit, groups: list[Group]) -> bool:
    """Whether a line stands right below an exception that is known, or of few words that name no subject beside it."""
    known = [h for g in having(groups, *VICTIMS) if g.tier <= 4 and not g.first.signature.unnamed for h in g.hits]
    beside = [h for h in known if h.file == own.file and h.rank == own.rank and abs(h.line - own.line) == 1]
    few = len(own.text.split()) <= _FEW_WORDS
    return any(few or (h.line < own.line and _RAISED.match(h.text)) for h in beside)


def _announced(own: Hit, groups: list[Group]) -> Group | None:
    """The exception that the same rank raised right below a line that says only that there was one."""
    if own.told is None or own.told.exception or (own.told.severity == FATAL and not _UNCAUGHT.search(own.text)):
        return None
    for group in having(groups, "exception"):
        for hit in group.hits:
            below = hit.file == own.file and 0 < hit.line - own.line <= _TRACEBACK
            same = hit.rank is None or own.rank in (hit.rank, None)
            if below and same and not reacts(hit.text) and group.tier <= 4:
                return group
    return None


def _told_by_the_launcher(asked: Group, unknown: Group, index: LogIndex) -> bool:
    """Whether only ranks say that they were told to end, others than the one that reports an error of its own.

    A scheduler or a person who ends a job tells all of it, and the scheduler has words of its own for that.
    """
    own, failed = unknown.first, index.facts.task_failed
    told = {whose(h) for h in asked.hits}
    schedulers = [h.line for h in asked.hits if h.rank is None and not h.host]
    if schedulers and (failed is None or failed.line > min(schedulers)):
        return False
    first = own.rank == index.places.ended_first or not reacts(own.text)
    return own.rank is not None and first and bool(told - {None}) and not told & {own.rank, own.host}


def _after_a_failure(asked: Group, groups: list[Group], unknown: Group, index: LogIndex) -> bool:
    """Whether a task had failed before: then the launcher ends the others, and its request says nothing."""
    failed = index.facts.task_failed
    if failed is not None and asked.first.file == index.path.name and failed.line < asked.first.line:
        return True
    own = unknown.first
    if own.rank is not None and own.rank == index.places.ended_first and when(own, index) < when(asked.first, index):
        return True
    # Who is told to end complains after it: complaints of several ranks about one that failed come before it.
    end = when(asked.first, index)
    heard = [h for g in _lost_somebody(groups) for h in g.hits]
    heard += [h for h in unknown.hits if hearsay(h, index) or reacts(h.text)]
    lost = {h.rank for h in heard if when(h, index) < end}
    return len(lost - {None, own.rank}) >= _SEVERAL and _severity(own) >= ERROR and when(own, index) < end


def _before_the_victims(unknown: Group, groups: list[Group], index: LogIndex) -> None:
    """Who lost a peer, or waited for one, tells of an end; what a rank says of itself is nearer to why.

    Ranks are buffered apart: which of their lines stands first in a common log says little about who failed first. What
    somebody says in words that no lost peer makes comes first wherever it stands: a symptom stands where all is
    explained by it.
    """
    own = unknown.first
    victims = [g for g in _lost_somebody(groups) if g.tier <= 4 and not _proved(g)]
    victims += [g for g in groups if g not in victims and g.tier <= 4 and waits_for(g, own)]
    if not victims or (reacts(own.text) and (hearsay(own, index) or _later(own, victims, index))):
        return
    if reacts(own.text) and any(_of_one_report(own, h) for g in victims for h in g.hits):
        return  # what somebody says once more of his own wait
    raised = [h for g in having(groups, "exception") for h in g.hits if h.rank is not None and not reacts(h.text)]
    lost = {h.rank for g in victims for h in g.hits}
    met = all(not g.has("meeting") for g in victims)
    if _severity(own) <= SAID and (raised or not met or (own.rank in lost and own.rank is not None)):
        return  # what somebody raised, or that not all came, says more than what one that came late was doing
    labelled = lost != {None}
    if _severity(own) < ERROR and labelled and own.rank is None and not own.host:
        return  # where ranks are labelled a line without a label is the launcher's
    unknown.tier = min(unknown.tier, 3)
    who = f"rank {own.rank}" if own.rank is not None else own.host or "somebody"
    for group in victims:
        group.tier, group.why = 4, f"{who} reported an error of its own"


def _of_one_report(own: Hit, known: Hit) -> bool:
    """Whether the same writer says both, one right after the other."""
    return own.file == known.file and whose(own) == whose(known) and 0 < known.line - own.line <= _REPORT


def _proved(group: Group) -> bool:
    """Whether the lines of those who wait show by themselves why: then nobody's own words are needed for it."""
    return group.tier <= 2 and group.cause != group.first.signature.cause


def _before_the_signal(unknown: Group, groups: list[Group], index: LogIndex) -> None:
    """A launcher tells by which signal a rank ended; what that rank said last is nearer to why."""
    own = unknown.first
    healthy = bool(len(index.steps) or index.places.reported)
    said = _severity(own) >= ERROR or (healthy and (_severity(own) > SAID or len(index.places.missed) >= _SEVERAL))
    if own.rank is None or own.rank != index.places.ended_first or reacts(own.text) or not said:
        return
    if _an_end(own) or "(most recent call first)" in own.text:
        return  # it says the same once more, or where the rank stood as it ended
    if _severity(own) <= SAID and any(h.rank == own.rank for g in having(groups, *VICTIMS) for h in g.hits):
        return
    for group in groups:
        if group is not unknown and group.tier <= 4 and all(_an_end(h) for h in group.hits):
            group.tier, group.why = 4, f"it is how rank {own.rank} ended, which had said why"
            unknown.tier = min(unknown.tier, 3)


def _an_end(hit: Hit) -> bool:
    """Whether a line tells how a process ended, and no more."""
    return launchers_end(hit.text) or ending(hit.text) != (None, None)


def _later(own: Hit, victims: list[Group], index: LogIndex) -> bool:
    """Whether a line comes after those of who lost somebody: by their clocks, or where they stand."""
    hits = [h for g in victims for h in g.hits]
    clocks = [h.clock for h in hits if h.clock is not None]
    if own.clock is not None and len(clocks) == len(hits) and min(clocks) != own.clock:
        return min(clocks) < own.clock
    return any(when(g.first, index) <= when(own, index) for g in victims)
