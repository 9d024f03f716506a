"""`trackwalker logs` by lines, text and time: the lines that fit, with their numbers, and how many more there are."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from itertools import islice

from trackwalker.agent import log_lines
from trackwalker.agent.log_lines import Wanted, find_lines, opened
from trackwalker.diagnose.line_clock import LineClock
from trackwalker.diagnose.triage import triage
from trackwalker.errors import EvidenceError
from trackwalker.job.layout import Job
from trackwalker.report.text import json_visible, visible

SCHEMA = "trackwalker.logs/1"


def search(job: Job, rank: int | None, wanted: Wanted, most: int, newest: bool, as_json: bool) -> int:
    """Print them; `most` of -1: all."""
    path, label = job.log, None
    if rank is not None:
        own = [job.dir / "ranks" / f"{rank}.log", job.dir / f"rank-{rank}.log"] if job.dir else []
        path = next((p for p in own if p.is_file()), None)
        if path is None:
            path, label = job.log, re.compile(rb"\s*0*%d: " % rank)
    if path is None or not path.is_file():
        raise EvidenceError(f"{job.label} has no log yet")
    limit = None if most < 0 else most
    with opened(path) as data:
        lines = find_lines(data, 0, 1, replace(wanted, label=label), lambda: LineClock(triage(job).record.timeline))
        if newest:
            every = list(lines)
            shown, more = every[::-1][:limit], len(every) - min(len(every), limit if limit is not None else len(every))
        else:
            shown = log_lines.oldest(lines, limit if limit is not None else sys.maxsize)
            more = sum(1 for _ in islice(lines, 1_000_000))
    rows = [(line.number, line.raw.decode("utf-8", "replace").rstrip("\n")) for line in shown]
    if as_json:
        held = [{"line": number, "text": text} for number, text in rows]
        document = {"schema": SCHEMA, "id": job.id, "log": str(path), "rank": rank, "lines": held, "more": more}
        print(json_visible(json.dumps(document, indent=1)))
        return 0
    for number, text in rows:
        print(f"{number}: {visible(text)}")
    if more:
        print(f"{more} more lines fit: give -n, or ask for less", file=sys.stderr)
    return 0
