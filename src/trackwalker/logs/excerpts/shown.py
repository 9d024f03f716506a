"""An excerpt in which nothing failed: what it shows of why a run is slow, stopped or was ended, as hits.

Only a short text is read so: it is what a person cut out to show it. A long log is told by its lines, steps and ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from trackwalker.logs.excerpts.gpus import Shown, slow_gpus
from trackwalker.logs.excerpts.hosts import busy_hosts
from trackwalker.logs.excerpts.programs import ended_well, slow_programs, slow_words
from trackwalker.logs.excerpts.schedulers import ended_by_schedulers
from trackwalker.logs.excerpts.tables import tables
from trackwalker.logs.scanning.gathered import Hit
from trackwalker.logs.scanning.lines import clean

if TYPE_CHECKING:
    from trackwalker.logs.failures.signatures import Signature
    from trackwalker.logs.scanning.scan import Scan
    from trackwalker.logs.scanning.steps import Steps

_LONGEST = 1 << 16  # bytes
_SLOWS = 7  # the tier of what slows a run and does not end it
_QUOTED = 400
_FEWEST = 3  # steps before and after
_SLOWER = 1.5  # times
_LEVELS = 20  # steps: of so many the shape of the whole run is told elsewhere
_LABEL = re.compile(r"^(?:\[\w{0,12}\d{1,6}\]:?|\s*\d{1,6}: )\s?")


def shown(scan: Scan, hits: Sequence[Hit], steps: Steps, known: Mapping[str, Signature]) -> list[Hit]:
    """Hits of classes that no line has brought up; the words of slowness only where nothing else is known."""
    if scan.size > _LONGEST or len(scan.tail) < scan.size:
        return []
    lines = [_LABEL.sub("", clean(raw)) for raw in scan.tail.split(b"\n")]
    taken = {hit.signature.id for hit in hits}
    found = list(tables(lines))
    said: dict[str, list[Shown]] = {}
    for each in chain(
        ended_by_schedulers(lines), slow_gpus(lines, found), busy_hosts(lines, found), slow_programs(lines, found)
    ):
        if each[0] not in taken:
            said.setdefault(each[0], []).append(each)
    if not said and (slower := _slower(steps)) is not None:
        said["slower"] = [("slower", slower - 1, lines[slower - 1].strip() if slower <= len(lines) else "")]
    if not said and not any(hit.signature.order <= _SLOWS for hit in hits):
        for each in slow_words(lines):
            said.setdefault(each[0], []).append(each)
    for each in ended_well(lines) if hits else ():
        said.setdefault(each[0], []).append(each)
    return [_hit(known[name], told, scan.path.name) for name, told in said.items()]


def _hit(signature: Signature, told: Sequence[Shown], file: str) -> Hit:
    if 1 <= signature.order <= 4:  # what a table shows slowed the run: an error beside it says more
        signature = signature.model_copy(update={"tier": _SLOWS, "traits": []})
    (_, first, text), (_, last, _) = told[0], told[-1]
    return Hit(signature, None, first + 1, text[:_QUOTED], file, None, len(told), last + 1)


def _slower(steps: Steps) -> int | None:
    """The line of the first of few steps from which on all take far longer than all before."""
    seconds = steps.seconds
    count = len(seconds)
    if not 2 * _FEWEST <= count < _LEVELS or not np.isfinite(seconds[1:]).all():
        return None
    for at in range(_FEWEST, count - _FEWEST + 1):
        before, after = seconds[1:at], seconds[at:]
        if len(before) >= 2 and float(after.min()) >= _SLOWER * float(before.max()):
            return int(steps.line[at])
    return None
