"""Whether a run made progress, in whatever dialect: bars, rates, losses, counters of epochs or iterations.

Steps that a dialect knows are read for their numbers; this only asks whether there were any. So it looks at the front
and the end of a file, and nobody has to know how a trainer calls its steps.
"""

from __future__ import annotations

import re

from trackwalker.logs.scanning.scan import Scan

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
