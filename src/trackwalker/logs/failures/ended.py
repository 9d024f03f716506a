"""Which rank ended first by the launcher's own word: srun, torchrun, mpirun, DeepSpeed's launcher, Ray Train, gcloud.

Only a line that no rank wrote counts: what a rank prints about the end of others is not believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trackwalker.logs.failures.whereabouts import Places
from trackwalker.logs.scanning.lines import parse

# What announces it, and the line of that report that holds the rank (the same line where nothing announces it).
_FORMS = (
    (None, re.compile(r"^srun: error: \S+: task (?P<rank>\d{1,6}): (?!Term|Exited with exit code (?:0|130|143)\b)")),
    (re.compile(r"^Root Cause \(first observed"), re.compile(r"^\s*rank\s+: (?P<rank>\d{1,6}) \(local_rank")),
    (re.compile(r"The first process to do so was"), re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d{1,6})\]")),
    (None, re.compile(r"^mpirun noticed that process rank (?P<rank>\d{1,6}) ")),
    (re.compile(r"Training failed due to worker errors"), re.compile(r"^\[Rank (?P<rank>\d{1,6})\]")),
    (None, re.compile(r"^#{3,} Command execution on worker (?P<rank>\d{1,6}) failed")),
    (None, re.compile(r"'--local_rank=(?P<local>\d{1,3})'.* exits with return code = (?!0\b)")),
)
_WORDS = re.compile(rb"srun: error|rank|irst process|rocess name|worker|\[Rank |Root Cause")
_REPORT = 20  # lines


def ended_first(raws: Iterable[bytes], places: Places, hosts: dict[int, str]) -> int | None:
    """The rank, where the end of a log names one; `hosts` by rank."""
    announced: dict[int, int] = {}
    for number, raw in enumerate(raws):
        if _WORDS.search(raw) is None or (body := parse(raw[:600])) is None:
            continue
        body = places.placed(body)
        for at, (before, told) in enumerate(_FORMS):
            if before is not None and before.search(body.text):
                announced[at] = number
            match = told.search(body.text)
            if match is None or (before is not None and number - announced.get(at, -_REPORT - 1) > _REPORT):
                continue
            names = match.groupdict()
            if names.get("rank") and places.per_node > 1 and told is _FORMS[0][1]:
                continue  # srun's task is a whole node there
            if names.get("rank") and body.rank in (None, int(names["rank"])):
                return int(names["rank"])
            if names.get("local") and body.rank is None:
                here = sorted(r for r, host in hosts.items() if host in (body.host, body.label))
                if int(names["local"]) < len(here):
                    return here[int(names["local"])]
    return None
