"""What an excerpt shows besides failures, and what that makes of errors and ends in the same text."""

from __future__ import annotations

from trackwalker.logs.excerpts.shown import by_hand, ended_bare, stood
from trackwalker.logs.failures.groups import SLOWS, Group
from trackwalker.logs.failures.structure import ERROR
from trackwalker.logs.scanning.index import LogIndex

_BESIDE = 3  # lines
_ENDS = 5  # the tier of who ended a run


def beside_what_is_shown(groups: list[Group], index: LogIndex) -> None:
    """An end of what had stood still, a command's complaint after the run, the reason told one line below it."""
    if any(g.tier == SLOWS for g in groups) and not len(index.steps) and not index.facts.header:
        for end in groups:
            if all(by_hand(h) for h in end.hits):
                end.tier, end.why = 8, "somebody ended by hand what had not got on"
    still = [g.first for g in groups if g.tier == SLOWS and stood(g.first.text)]
    for end in groups if not index.facts.header else ():
        if end.tier <= _ENDS and all(ended_bare(h) and any(t.line < h.line for t in still) for h in end.hits):
            end.tier, end.why = 8, "it had stood still before somebody ended it"
    _explained(groups, index)


def _explained(groups: list[Group], index: LogIndex) -> None:
    """What a command says in unknown words that was typed below the run is not the run's, where a cause is shown."""
    typed = [line for line in index.places.prompts if len(index.steps) and line > int(index.steps.line.max())]
    named = [h.last_line for g in groups if g.tier == SLOWS and g.cause != "unclassified" for h in g.hits]
    for group in groups if named else ():
        unknown = group.first.signature.unnamed and all(h.told is not None and not h.told.python for h in group.hits)
        if unknown and typed and all(h.file == index.path.name and h.line > typed[0] for h in group.hits):
            group.tier, group.why = 8, "a command says it that was typed after the run"
        elif unknown and all(
            h.told.severity < ERROR and any(0 < h.line - at <= _BESIDE for at in named) for h in group.hits if h.told
        ):
            group.tier, group.why = 8, "it explains the line above it"
