"""When a step line was written, for trainers that print a time and no duration; and whether any line shows progress.

Steps that a dialect knows are read for their numbers; of other trainers only the front and the end of a file are asked
whether there were any: bars, rates, losses, counters of epochs or iterations.
"""

from __future__ import annotations

import re
from calendar import timegm
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trackwalker.stats.medians import known_median, median, quantile

if TYPE_CHECKING:
    from trackwalker.logs.scanning.scan import Scan

Floats = NDArray[np.float64]
_STAMP = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_AT_FRONT = 120  # characters: a date further back is part of a text
_STEADY = 0.05  # of a step: a clock by which steps differ no more is fine enough
_STRETCH = 20  # looks at the clock: what each of them may be wrong by is then a twentieth
_MOSTLY = 0.9  # of the lines: rates that only some of them have are no measure
_MOST_STRETCHES, _AGREES = 0.75, 0.1  # so many of them agree so well; pauses take the others


def written_at(text: str) -> float:
    """Seconds since the epoch of a line's own time, read as UTC; nan where it has none."""
    match = _STAMP.search(text, 0, _AT_FRONT)
    if match is None:
        return float("nan")
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    return timegm((year, month, day, hour, minute, second)) + float(f"0.{match[7] or 0}")


def durations(step: NDArray[np.int64], written: Floats, rate: Floats | None = None) -> Floats:
    """Seconds a step took by the times of consecutive lines; where lines skip steps, the mean of those between.

    Lines with one time share the interval before it: whoever wrote the time looks at the file now and then, or has
    whole seconds only. Such a clock makes equal steps differ; printed tokens per second that agree with it over many
    steps, and differ less from one to the next, then tell how long each took.
    The first line has none before it and is given the next one's; a line that repeats or goes back tells nothing.
    """
    out = np.full(len(step), np.nan)
    last = np.flatnonzero(np.diff(written, append=np.nan) != 0)  # of the lines with one time
    if len(last) < 2:
        return out
    steps, seconds = np.diff(step[last]), np.diff(written[last])
    told = (steps > 0) & (seconds > 0)
    shared = np.where(told, seconds / np.where(told, steps, 1), np.nan)
    out = np.repeat(np.concatenate([shared[:1], shared]), np.diff(last, prepend=-1))
    out[1:][np.diff(step) <= 0] = np.nan
    single = len(last) == len(step)  # lines that share an interval evenly look steadier than they are
    if rate is None or (single and _jitter(out) <= _STEADY):
        return out
    by_rate = _by_rate(step, written, rate, known_median(np.abs(seconds)))
    if by_rate is None or (single and _jitter(by_rate) >= _jitter(out)):
        return out
    return np.where(np.isfinite(by_rate), by_rate, out)


def spread(ends: Floats, seconds: Floats) -> Floats:
    """When each step ended: of steps seen at one look the last ended then, the others earlier by what came after."""
    last = np.flatnonzero(np.diff(ends, append=np.nan) != 0)
    if len(last) == len(ends):
        return ends
    elapsed = np.cumsum(np.where(np.isfinite(seconds), seconds, 0.0))
    back = np.repeat(elapsed[last], np.diff(last, prepend=-1)) - elapsed
    before = np.repeat(np.concatenate([[-np.inf], ends[last][:-1]]), np.diff(last, prepend=-1))
    out: Floats = np.maximum(ends - back, before)
    return out


def _jitter(seconds: Floats) -> float:
    """How much a step differs from the one before it, as a share of a step."""
    known = seconds[np.isfinite(seconds)]
    return float(np.mean(np.abs(np.diff(known))) / np.mean(known)) if len(known) > 1 else 0.0


def _by_rate(step: NDArray[np.int64], written: Floats, rate: Floats, grain: float) -> Floats | None:
    """Seconds of each step from its tokens per second; None where the clock does not bear the rates out.

    How many tokens a step has is not printed: it is what makes the rates agree with the clock over stretches that are
    long against the clock's grain. A pause lengthens one stretch, so the median of them counts.
    """
    known = np.isfinite(rate) & (rate > 0)
    if not known.all():
        rate = np.where(known, rate, np.nan)
    each = np.nan_to_num(np.maximum(np.diff(step, prepend=step[0]), 0) / rate)
    edges = np.flatnonzero(np.diff(np.floor((written - written[0]) / (_STRETCH * grain)), append=np.nan) != 0)
    if known.mean() < _MOSTLY or len(edges) < 3:
        return None
    work, clock = np.diff(np.cumsum(each)[edges]), np.diff(written[edges])
    told = work > 0
    if not told.any():
        return None
    tokens = clock[told] / work[told]
    usual = median(tokens)
    if quantile(np.abs(tokens / usual - 1.0), _MOST_STRETCHES) > _AGREES:
        return None
    return usual / rate


_SHOWS = re.compile(
    rb"(?i)(?<!\d)(?:[1-9]\d?|100)%\|"  # a bar, as tqdm draws it, that has moved
    rb"|\b[1-9]\d*/(?:\d+|\?) \[\d[^\]\n]{0,80}\]"
    rb"|\b\d+(?:\.\d+)? ?(?:it|iter|iters|batch|batches|steps?|samples?|tok|tokens?|examples?)/s(?:ec)?\b|\b\d+(?:\.\d+)? ?s(?:ec)?/(?:it|iter|batch|step)\b"  # noqa: E501
    rb"|\b(?:train_|lm_|mlm_)?loss['\"]?\s{0,3}[=: ]\s{0,3}['\"]?-?\d"
)
# A counter may stand in a setting as well: only several lines with one count on.
_COUNTS = re.compile(
    rb"(?i)\b(?:epochs?|iters?|iterations?|global_?steps?|steps?|episodes?|updates?)\b['\"]?\s{0,3}[=:#\[(-]{0,2}\s{0,6}\d+\b(?!\s*(?:gpus?|nodes?|ranks?|workers?)\b)"
)
_SEVERAL = 2
_TYPED = re.compile(
    rb"^\s*(?:[\w.@-]+[:~][\w~/.-]*)?[$#] |--\w[\w-]*[ =]"
    rb"|\*\*\* (?:JOB|STEP)\b|\b(?:Namespace|Config)\(|Config param |\bsrun: |\| 0/\d"
)
# What is counted before training begins shows that a program ran, not that it trained.
_BEFORE = re.compile(
    rb"(?i)\b(?:download\w*|tokeni[sz]\w*|load(?:ing)?|fetch\w*|extract\w*|generating|map|filter\w*|resolving|warm(?:ing)?[ -]?up|num_?epochs|max_?steps|total|resum\w*|restor\w*)\b"  # noqa: E501
)
_WORDS = (b"/", b"oss", b"tep", b"ter", b"poch", b"pisode", b"pdate", b"%|", b"OSS", b"TEP", b"TER", b"POCH")


def moves(text: bytes, first: int = 1) -> list[int]:
    """The numbers of the lines that tell of progress in training; `first` is the number of the text's first line."""
    shows: list[int] = []
    counts: list[int] = []
    for number, line in enumerate(text.split(b"\n"), first):
        if not any(word in line for word in _WORDS):
            continue
        shown = _SHOWS.search(line, 0, 2000)
        if not (shown or _COUNTS.search(line, 0, 2000)) or _TYPED.search(line, 0, 200) or _BEFORE.search(line, 0, 200):
            continue
        (shows if shown else counts).append(number)
    return sorted([*shows, *counts]) if shows or len(counts) >= _SEVERAL else []


def moved(scan: Scan) -> list[int]:
    """The same of a file's front and end."""
    ahead = [] if len(scan.tail) == scan.size else moves(scan.front)
    first = scan.lines - scan.tail.count(b"\n") + (0 if scan.ends_mid_line else 1)
    return sorted({*ahead, *moves(scan.tail, max(first, 1))})
