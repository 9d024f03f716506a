"""The lines around what the evidence cites, for a page that leaves the machine with the logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trackwalker.diagnose.verdict import Verdict
from trackwalker.errors import EvidenceError
from trackwalker.job.layout import Job
from trackwalker.job.scrub import Scrubber
from trackwalker.logs.window import Line, around
from trackwalker.report.text import clip, visible

_AROUND = 3
_MOST = 40  # excerpts of one page
_LONGEST = 240  # characters of a line
_PLACE = re.compile(r"(?P<file>[^:\0]{1,400}):(?P<line>\d{1,12})")


@dataclass(frozen=True)
class Excerpt:
    """A few lines of one log: number, text, and whether it is the line that is cited."""

    file: str
    rows: tuple[tuple[int, str, bool], ...]


def excerpts(job: Job, verdict: Verdict, scrubber: Scrubber) -> dict[str, Excerpt]:
    """By evidence id; what is cited first comes first when there are too many. A log that is gone has none."""
    cited = [key for part in (verdict.causes, verdict.ruled_out) for item in part for key in item.evidence]
    rank = {key: place for place, key in reversed(list(enumerate(cited)))}
    items = [item for item in verdict.evidence if item.kind == "log"]
    out: dict[str, Excerpt] = {}
    for item in sorted(items, key=lambda item: rank.get(item.id, len(rank))):
        match = _PLACE.fullmatch(item.source)
        path = next(_places(job, match["file"]), None) if match else None
        if match and path is not None and item.id not in out and len(out) < _MOST:
            try:
                lines = around(path, int(match["line"]), _AROUND, _AROUND)
            except EvidenceError:
                continue
            if lines:
                rows = ((number, _shown(line, scrubber), number == int(match["line"])) for number, line in lines)
                out[item.id] = Excerpt(match["file"], tuple(rows))
    return out


def _places(job: Job, name: str) -> Iterator[Path]:
    """The log that a source names: the main one, a part of it, a rank's own, a worker's of Ray."""
    if job.log is not None and Path(name).name == name:
        beside = job.log.with_name(name)
        if name.startswith(job.log.name) and beside.is_file():
            yield beside
    if job.dir is None or ".." in Path(name).parts or name.startswith("/"):
        return
    for path in (job.dir / name, *sorted((job.dir / "ray_logs").glob(f"*/{_escaped(name)}"))):
        if path.is_file():
            yield path


def _escaped(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def _shown(line: Line, scrubber: Scrubber) -> str:
    # Cut behind the scrubbing: half a token has no shape.
    return clip(visible(scrubber.clean(line.raw.decode("utf-8", "replace"))), _LONGEST)
