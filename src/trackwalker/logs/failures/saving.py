"""What is raised where checkpoints are written or read: the file system's refusal, or the program's own error there.

(And what stands beside a failure that an excerpt is shown for, or shows why memory could not be locked.)

Where a program stood is no cause. A save fails for its file system only where the system or a writer says so.
"""

from __future__ import annotations

import re

from trackwalker.logs.excerpts.shown import by_hand, ended_bare, stood
from trackwalker.logs.failures.groups import SLOWS, Group, having, only
from trackwalker.logs.failures.reactions import VICTIMS
from trackwalker.logs.failures.structure import ERROR
from trackwalker.logs.scanning.index import LogIndex

_TRACEBACK = 60  # lines of a traceback, interleaved with those of other ranks
_WRITING = re.compile(
    r"(?i)\bErrno\b|os error|\bI/O\b|OSError|IOError|FileExists|PermissionError|StreamWriter|TensorStore|\bzip\b"
    r"|\b(?:writ(?:e|es|ing|ten)|wrote|flush\w*|fsync|renam\w*|uploads?|uploading|bucket|mount\w*|no such file|quota)\b"
)
# A number of the system's other than "no such file" and "not allowed", which are as often a path of one's own.
_OF_THE_SYSTEM = re.compile(r"(?:Errno |os error )(?!(?:2|13)\b)\d+")
# What a saver writes last, in the folder of one step: without it the save was not finished.
_LAST_WRITTEN = re.compile(
    r"\d[\w.-]*/(?:\.metadata|_?METADATA|_CHECKPOINT_METADATA|metadata\.json|commit_success\.txt|manifest\.ocdbt)\b"
)
_SAVES = re.compile(r"(?i)^(?!.*(?:load|restor|resum)).*(?:ckpt|checkpoint|\bsav(?:e|ing))")

_NO_MEMORY = re.compile(r"Cannot allocate memory|\bENOMEM\b|\berrno 12\b")
TRANSPORT = re.compile(
    r"(?i)\b(?:mlx\d|ib\d|hfi\d|i?b?verbs|ibv_|rdma|infiniband|roce|uct|ucx|ucp|openib|libfabric|efa|cxi|ofi|psm\d?|btl|mtl)"
)


def around_checkpoints(groups: list[Group]) -> None:
    """Which of a disk, a missing file, an exception and the frame it passed through is the cause."""
    error, frames = only(groups, "exception"), having(groups, "checkpoint-frame")
    saving = [f for f in frames if f.has("saving-frame")]
    for disk in having(groups, "disk-or-mount"):
        if any(near(disk, frame) for frame in saving):
            disk.become("while-saving", "it was raised while a checkpoint was written")
    for absent in having(groups, "absent-file"):
        loading = (f for f in frames if f not in saving)
        if "No such file" in absent.first.text and any(near(absent, frame) for frame in loading):
            if all(_LAST_WRITTEN.search(h.text) for h in absent.hits):
                absent.become("never-finished", "the file that a save writes last is not there")
                continue
            absent.become("while-loading", "a file that this run expects is not in the checkpoint it loads")
    raised = [g for g in (error, *having(groups, *VICTIMS)) if g is not None and g.tier <= 4]
    for frame in saving:
        beside = [g for g in raised if near(g, frame)]
        if beside and not any(_WRITING.search(h.text) for g in beside for h in g.hits):
            frame.tier, frame.why = 6, "it says only where the program stood"
            if error in beside and error is not None:
                error.tier = min(error.tier, 3)
    if error is None:
        return
    if error.tier == 3 and any(near(error, frame) and frame.tier <= 3 for frame in frames):
        error.tier, error.why = 4, "it was raised while a checkpoint was read or written"
    elif any(_OF_THE_SYSTEM.search(h.text) and _SAVES.search(h.frame) for h in error.hits):
        error.become("while-saving", "the system refused it in the code that saves checkpoints")


def near(error: Group, frame: Group) -> bool:
    """Whether an error line and a frame belong to one traceback, or to those of ranks that failed together."""
    return any(e.file == f.file and abs(e.line - f.line) <= _TRACEBACK for e in error.hits for f in frame.hits)


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


def limit_met(groups: list[Group]) -> None:
    """A small limit of locked memory that is shown, and a transport that got no memory: its buffers are locked."""
    shown = next((g for g in having(groups, "locked-memory") if g.tier == SLOWS), None)
    for group in groups if shown else ():
        if (
            shown
            and group.tier <= 4
            and any(_NO_MEMORY.search(h.text) and TRANSPORT.search(h.text) for h in group.hits)
        ):
            shown.tier, shown.why = 2, "a transport got no memory for its buffers, and the limit is small"
