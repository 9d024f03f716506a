"""The files beside a main log, read one after the other, or by processes of our own where there is much of them.

What a line means costs the interpreter time, which threads do not share; so each process gathers what its part of the
files gives, and the parts are joined in the order of the files: the same as one process would have found.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trackwalker.errors import EvidenceError
from trackwalker.job.sharing import share_out
from trackwalker.logs.failures.whereabouts import Places
from trackwalker.logs.scanning.gathered import Gathered

if TYPE_CHECKING:
    from trackwalker.logs.scanning.index import Gatherer

_WORTH = 96 << 20  # bytes: a process takes half a second to start, in which one reads about as much
_MOST_PROCESSES = 4  # it shares a login node with others


@dataclass(frozen=True)
class Beside:
    """A file beside the main log: whose it is, what to call it, of which host it tells."""

    path: Path
    rank: int | None
    name: str = ""
    host: str = ""


@dataclass(frozen=True)
class Share:
    """One process' part."""

    log: Path  # the main log
    lead: int | None
    files: tuple[Beside, ...]
    places: Places  # who is who, as far as the files before these told


def read_beside(gatherer: Gatherer, files: Sequence[Beside]) -> None:
    """Read them all; one that cannot be read must not hide the others."""
    processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), len(files))
    if processes > 1 and sum(_size(each.path) for each in files) >= _WORTH:
        each = -(-len(files) // processes)
        parts = [tuple(files[at : at + each]) for at in range(0, len(files), each)]
        known = gatherer.gathered.places
        try:
            found = share_out(gather, [Share(gatherer.log, gatherer.lead, part, known) for part in parts])
        except (EvidenceError, OSError):
            pass  # no room for another process, say: read here
        else:
            for part in found:
                for hit in part.hits.values():  # one object for each class, as the rest of the index has it
                    hit.signature = gatherer.signatures.by_id.get(hit.signature.id, hit.signature)
                gatherer.gathered.join(part)
            return
    _read(gatherer, files)


def gather(share: Share) -> Gathered:
    """What one part gives; runs in a process of its own."""
    from trackwalker.logs.failures.signatures import load
    from trackwalker.logs.scanning.index import Gatherer

    gatherer = Gatherer(share.log, load(), lead=share.lead, beside=True)
    gatherer.gathered.places = share.places
    _read(gatherer, share.files)
    return gatherer.gathered


def _read(gatherer: Gatherer, files: Sequence[Beside]) -> None:
    for file in files:
        try:
            gatherer.read(file.path, file.rank, file.name, file.host)
        except EvidenceError:
            continue


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
