"""Whether a run made progress, in whatever dialect: bars, counters of epochs or iterations, percentages.

Steps that a dialect knows are read for their numbers; this only asks whether there were any. So it looks at the front
and the end of a file, and nobody has to know how a trainer calls its steps.
"""

from __future__ import annotations

import re

# What a person types or a program is told counts nothing; nor does a device's load, which nvidia-smi gives in percent.
_MOVES = re.compile(
    rb"(?i)(?<!\d)(?:[1-9]\d?|100)%\|"  # a bar, as tqdm draws it, that has moved
    rb"|\b[1-9]\d*/(?:\d+|\?) \[\d[^\]\n]{0,80}\]"
    rb"|\b\d+(?:\.\d+)? ?(?:it|iter|iters|batch|batches|steps?|samples?|tok|tokens?|examples?)/s(?:ec)?\b|\b\d+(?:\.\d+)? ?s(?:ec)?/(?:it|iter|batch|step)\b"  # noqa: E501
    rb"|\b(?:epochs?|iters?|iterations?|global_?steps?|steps?|episodes?|updates?)\b['\"]?\s{0,3}[=:#\[(-]{0,2}\s{0,6}\d+\b(?!\s*(?:gpus?|nodes?|ranks?|workers?)\b)"  # noqa: E501
    rb"|\b(?:train_|lm_|mlm_)?loss['\"]?\s{0,3}[=:]\s{0,3}['\"]?-?\d"
)
_TYPED = re.compile(rb"^\s*(?:[\w.@-]+[:~][\w~/.-]*)?[$#] |--\w[\w-]*[ =]|\*\*\* (?:JOB|STEP)\b|\b(?:Namespace|Config)\(|\bsrun: |\| 0/\d")
# What is counted before training begins shows that a program ran, not that it trained.
_BEFORE = re.compile(
    rb"(?i)\b(?:download\w*|tokeni[sz]\w*|load(?:ing)?|fetch\w*|extract\w*|generating|map|filter\w*|resolving|warm(?:ing)?[ -]?up|num_?epochs|max_?steps|total|resum\w*|restor\w*)\b"  # noqa: E501
)


def moves(text: bytes, first: int = 1) -> list[int]:
    """The numbers of the lines that tell of progress in training; `first` is the number of the text's first line."""
    return [
        number
        for number, line in enumerate(text.split(b"\n"), first)
        if _MOVES.search(line, 0, 2000) and not _TYPED.search(line, 0, 200) and not _BEFORE.search(line, 0, 200)
    ]
