"""Whether the rest of a text carries a name: how the run stood before, what else failed, what was only warned of.

A line proves what it says, and a name says more: that the run was well until somebody ended it, that it never worked,
that nobody else had an error. Where the text does not show that, the class alone is told. As in refine.py each rule
asks for a condition, and the signature says what follows from it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trackwalker.logs.excerpts.programs import BY_HAND, NO_MORE, WAITS_FOR
from trackwalker.logs.excerpts.said import looked_into, no_step_since, remarks, spinning
from trackwalker.logs.excerpts.shown import by_hand, class_shown, stood
from trackwalker.logs.failures.groups import SLOWS, Group, having, when, whose
from trackwalker.logs.failures.reactions import VICTIMS, launchers_end, reacts
from trackwalker.logs.failures.structure import ERROR, read, warns
from trackwalker.logs.scanning.index import Hit, LogIndex
from trackwalker.logs.scanning.lines import Body, clean

_AGES = 40  # lines between the last step of a run that is well and the word that ends it
_BLOCK = 60  # lines of a traceback, interleaved with those of other ranks
_LONG = 400
# NCCL and c10d call an error a warning.
_LEVEL_OF_ITS_OWN = re.compile(r"NCCL WARN|\[c10d\]|\b(?:TCPStore|ProcessGroup\w*|socket)\.cpp")
# Who asked for the end, or the scheduler's own record of it: without one it may be anybody's reaction.
_BY_WHOM = re.compile(
    r"(?i)\bby (?:the |a |its )?(?:user|owner|submitter|admin\w*|operator|uid|root|\d+)\b|\bscancel\b|\buser (?:\w+ )?(?:requested|asked|stopped|cancell?ed|terminated|killed|aborted)\b"  # noqa: E501
    r"|\b(?:request\w*|command) (?:received )?(?:of|from) (?:the )?(?:user|owner|submitter)\b|\bintentionally\b|\bvia \w*rm\b|^\s*\d+(?:[._]\w+)*\s.*\bCA(?:NCELLED)?\b|\b(?:Job)?State\W{1,3}CANCELLED"  # noqa: E501
)
_OF_PYTHON = re.compile(r"\.py:\d+: \w*Warning: ")
# What a launcher and a program print as they are asked to end is no complaint from before.
_OF_THE_END = re.compile(
    r"^srun: |^slurmstepd|torch/distributed/elastic/|\bSIG(?:TERM|HUP|INT)\b|death signal"
    r"|^Traceback |^\s+File \"|^\s{4}"
)
_OWN_STACK = re.compile(r"^(?:Current t|T)hread 0x|most recent call first|^Fatal Python error")
_WELL, _SEVERAL = re.compile(r"^\W{0,2}I\d{4} |^.{0,60}\bINFO\b"), 3  # lines
_SHARED = re.compile(rb"(?i)\bshm|shared[ _]memory|data_?loader|num_workers|/torch_|docker|ipc=")


def carried(groups: list[Group], index: LogIndex) -> None:
    """Let each class become what its signature says where the text does not carry its name."""
    _only_warned(groups, index)
    _behind_an_error(groups, index)
    if index.facts.launched or index.facts.exits:
        return  # our own launcher tells how it began, how far it came and how each process ended
    began = index.progress[0] if index.progress else None
    for group in groups:
        if began is not None and group.tier <= 3 and began < group.first.line and group.first.file == index.path.name:
            group.become("had-worked", "steps were made before: what is set up wrongly never works")
        if group.tier <= 3 and not _speaks_of_shared_memory(group, index):
            group.become("no-shared-memory-told", "nothing in the text speaks of shared memory")
        if group.tier <= 5 and "not-well-before" in group.first.signature.becomes and not _by_whom(group, index):
            _well_until(group, groups, index)


def _only_warned(groups: list[Group], index: LogIndex) -> None:
    """A warning or advice is not why a program failed that went on after it, nor why one stands."""
    stands = any(g.tier == SLOWS and stood(g.first.text) for g in groups)
    failed = [g for g in groups if g.tier <= 4 and not _warned(g) and not _tells_an_end(g)]
    end = next((g.first.line for g in having(groups, "at-the-end")), 0)
    lines = _lines(index)
    for group in groups:
        if not _warned(group):
            continue
        last = max(when(h, index) for h in group.hits)
        ends = [h.line for g in failed for h in g.hits if when(h, index) > last]
        raised = any(g.has("exception") for g in failed) and all(_OF_PYTHON.search(h.text) for h in group.hits)
        if group.tier <= 3 and ends and (raised or _went_on(lines[group.hits[-1].last_line : min(ends) - 1])):
            group.tier, group.why = 6, "it was a warning, and the program went on"
        elif group.tier == SLOWS and (stands or failed):
            group.tier, group.why = 8, "it is advice, and no reason to fail or to stand"
        elif group.tier == SLOWS and sum(max(h.last_line for h in group.hits) < at < end for at in index.progress) > 1:
            group.tier, group.why = 8, "it was a warning, and the program came to its end"


def _went_on(between: list[str]) -> bool:
    """Whether a program tells of several things that went well."""
    return sum(1 for line in between if _WELL.search(line[:_LONG]) and not _complains(line)) >= _SEVERAL


def _warned(group: Group) -> bool:
    """Whether all lines of a class call themselves warnings, and are nobody's word on a lost peer."""
    said = [text for h in group.hits for text in (h.text, h.last_text, *h.more) if text]
    return not having([group], *VICTIMS) and all(warns(t) and not _LEVEL_OF_ITS_OWN.search(t) for t in said)


def _tells_an_end(group: Group) -> bool:
    """Whether a class tells only that a process ended."""
    ends = having([group], "wrapper", "end-of-process", "exit-word", "teardown", "traceback", "request-to-end")
    return bool(ends) or all(launchers_end(h.text) or (h.told is not None and h.told.is_end) for h in group.hits)


def _behind_an_error(groups: list[Group], index: LogIndex) -> None:
    """A crash after an error that nobody here knows is how the process ended, not why."""
    unknown = next((g for g in groups if g.first.signature.unnamed and g.tier <= 4), None)
    if unknown is None:
        return
    for crash in having(groups, "end-by-signal"):
        before = [h for h in unknown.hits if _strong(h) and crash.tier == 2 and _of_one(h, crash.first, index)]
        if before:
            unknown.hits[:] = [before[0], *(h for h in unknown.hits if h is not before[0])]
            unknown.tier = min(unknown.tier, 3)
            crash.tier, crash.why = 4, "it came after an error"


def _strong(hit: Hit) -> bool:
    if _OWN_STACK.search(hit.text):
        return False  # where it stood as it crashed
    return hit.told is not None and hit.told.severity >= ERROR and not reacts(hit.text) and not hit.told.is_end


def _of_one(error: Hit, end: Hit, index: LogIndex) -> bool:
    """Whether an error stands shortly before an end and may be of the same process."""
    apart = None not in (whose(error), whose(end)) and whose(error) != whose(end)
    near = error.file != end.file or abs(end.line - error.line) <= _BLOCK
    return not apart and near and when(error, index) < when(end, index)


def _speaks_of_shared_memory(group: Group, index: LogIndex) -> bool:
    if "no-shared-memory-told" not in group.first.signature.becomes or index.scan is None:
        return True
    return any(_SHARED.search(text) for text in (index.scan.front, index.scan.tail))


def _by_whom(group: Group, index: LogIndex) -> bool:
    """Whether the scheduler's record or a line says who asked for the end."""
    said = (text for h in group.hits for text in (h.text, h.last_text, *h.more))
    return any(h.file != index.path.name for h in group.hits) or any(_BY_WHOM.search(text) for text in said)


def _well_until(end: Group, groups: list[Group], index: LogIndex) -> None:
    """Who ends by hand a run that had not got on, or that complained, did not cause it."""
    asked = end.first
    before = [g for g in groups if g is not end and (g.tier <= 4 or g.tier == SLOWS) and g.first.line < asked.line]
    lines = _lines(index)
    last = max((line for line in index.progress if line < asked.line), default=None)
    steps = index.steps.line[index.steps.line < asked.line]
    last = max(last or 0, int(steps.max()) if len(steps) else 0) or None
    between = lines[last : asked.line - 1] if last is not None and lines else []
    complained = any(_complains(line) and not _OF_THE_END.search(line) for line in between)
    calm = last is not None and asked.line - last <= _AGES and not complained
    if calm and not before and not _looked_at(lines):
        return
    end.become("not-well-before", "somebody asked it to end; nothing shows that it was well until then")
    kind = "" if before or not lines else class_shown(lines, asked.line - 1, f"stands: {asked.text}")
    if by_hand(asked) or (last is not None and not calm):
        end.hits[0] = replace(asked, kind=kind)


def _lines(index: LogIndex) -> list[str]:
    """Those of a short text."""
    scan = index.scan
    whole = scan is not None and len(scan.tail) == scan.size
    return [clean(raw) for raw in scan.tail.split(b"\n")] if scan is not None and whole else []


def _complains(line: str) -> bool:
    """Whether a line warns, fails, waits or was typed to see what the run does."""
    line = line[:_LONG]
    asks = NO_MORE.search(line) or WAITS_FOR.search(line) or (BY_HAND.search(line) and not line.startswith("^C"))
    return bool(asks) or warns(line) or read(Body(line, None, None, False, None)) is not None


def _looked_at(lines: list[str]) -> bool:
    """Whether somebody looked into the run, said that it stood, or its times say so."""
    shows = (looked_into(lines), remarks(lines, lines), spinning(lines), no_step_since(lines))
    return any(next(each, None) is not None for each in shows)
