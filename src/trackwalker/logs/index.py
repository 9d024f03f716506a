"""Everything triage needs from a job's logs, gathered in one pass over each file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from trackwalker.errors import EvidenceError
from trackwalker.logs import dialect as d
from trackwalker.logs.facts import LogFacts
from trackwalker.logs.lines import parse
from trackwalker.logs.needles import SHORTEST, Needles
from trackwalker.logs.nodelist import expand
from trackwalker.logs.reader import FactReader
from trackwalker.logs.scan import Line, Scan, read_lines
from trackwalker.logs.signatures import Signature, Signatures, load
from trackwalker.logs.steps import NEEDLES, StepReader, Steps

# The fact reader's short literals, in a form long enough for the scanner.
_LONGER = {
    b"== ": (b"== Preflight ", b"== Docker pull ", b"== ECC check ", b"== Training ", b" BEGIN (", b" TIMEOUT ("),
    b"/task:": (b"/replica:",),
    b"Wall:": (b"  Wall: ", b"Wall:  "),
}
_GIT = b"=== GIT SUMMARY "
_EVAL = (b"valid loss at", b"validation loss", b"Evaluating", b"eval metrics after")
_MOST_RANKS = 4096
_QUOTED = 400  # characters of a line that is kept


@dataclass
class Hit:
    """A signature on one rank: where it was first seen, and how often."""

    signature: Signature
    rank: int | None
    line: int
    text: str
    file: str
    clock: float | None = None
    count: int = 1
    last_line: int = 0


@dataclass
class LogIndex:
    """One job's logs as triage sees them."""

    path: Path
    facts: LogFacts
    steps: Steps
    hits: list[Hit] = field(default_factory=list)
    harmless: dict[str, int] = field(default_factory=dict)
    ranks_seen: set[int] = field(default_factory=set)
    eval_line: int = 0  # last line that speaks of evaluation
    silent_s: float | None = None  # how long the log goes on after its last step, where its lines tell the time
    files: list[str] = field(default_factory=list)
    size: int = 0
    lines: int = 0
    skipped: int = 0


def index_logs(log: Path, others: dict[int, Path] | None = None) -> LogIndex:
    """Read the main log and, on Kubernetes, the other ranks' files."""
    signatures = load()
    gatherer = _Gatherer(log, signatures)
    scan = gatherer.read(log, None)
    if scan.size == 0:
        raise EvidenceError(f"the log {log} is empty: the job wrote nothing before it ended, or has not started")
    for rank, path in sorted((others or {}).items()):
        try:
            gatherer.read(path, rank)
        except EvidenceError:
            continue  # one rank's unreadable file must not hide the others'
    return gatherer.result(scan)


@cache
def _needles(signatures: Signatures) -> Needles:
    facts = [n for f in d.NEEDLES for n in ((f,) if len(f) >= SHORTEST else _LONGER[f])]
    facts = [n for n in facts if n != b"completed step:"]  # step lines are handled in bulk
    own = [*signatures.literals, *facts, _GIT, *_EVAL]
    return Needles(own, NEEDLES, frozenset(range(len(signatures.literals), len(own))))


class _Gatherer:
    def __init__(self, log: Path, signatures: Signatures) -> None:
        self._signatures = signatures
        self._facts = LogFacts(log)
        self._fact_reader = FactReader(self._facts)
        self._needles = _needles(signatures)
        self._first_fact = len(signatures.literals)
        self._git = len(self._needles.literals) - len(_EVAL) - 1
        self._hits: dict[tuple[str, int | None], Hit] = {}
        self._harmless: dict[str, int] = {}
        self._ranks: set[int] = set()
        self._main: StepReader | None = None
        self._other_steps: dict[int, int] = {}
        self._index = LogIndex(log, self._facts, Steps())

    def read(self, path: Path, rank: int | None) -> Scan:
        """One file; the first one read is the main log."""
        main = self._main is None
        steps = StepReader(rank)
        in_diff = False

        def on_line(line: Line) -> None:
            nonlocal in_diff
            if self._git in line.needles:  # the launcher prints the working tree's diff: anything may stand there
                in_diff = b"BEGIN" in line.raw
            elif not in_diff:
                self._line(line, path.name, rank, main)

        scan = read_lines(path, self._needles, on_line, steps.take, steps.choose)
        if main:
            self._main = steps
        else:
            self._other_steps.update(steps.ranks)
        self._index.files.append(path.name)
        self._index.size += scan.size
        self._index.lines += scan.lines
        self._index.skipped += scan.skipped
        return scan

    def _line(self, line: Line, file: str, rank: int | None, main: bool) -> None:
        if main and line.needles[-1] >= self._first_fact:
            self._fact_reader.take(line.number, line.raw)
            if line.needles[-1] > self._git:
                self._index.eval_line = line.number
        needles = tuple(n for n in line.needles if n < self._first_fact)
        if not needles:
            return
        body = parse(line.raw, line.before, rank)
        if body is None:
            return
        if body.rank is not None and len(self._ranks) < _MOST_RANKS:
            self._ranks.add(body.rank)
        found, harmless = self._signatures.match(body, needles)
        for name in harmless:
            self._harmless[name] = self._harmless.get(name, 0) + 1
        for signature in found:
            owner = body.rank if body.rank is None or body.rank in self._ranks else None
            key = (signature.id, owner)
            hit = self._hits.get(key)
            if hit is None:
                text = body.text.strip()[:_QUOTED]
                self._hits[key] = Hit(signature, owner, line.number, text, file, body.clock, 1, line.number)
            else:
                hit.count += 1
                hit.last_line = line.number

    def _diverged(self, steps: Steps, file: str) -> None:
        """The first step whose loss is no number: bulk-read step lines do not pass by the signatures."""
        bad = np.flatnonzero(np.isinf(steps.loss) | (np.isnan(steps.loss) & steps.has_loss))
        if len(bad) and not any(h.signature.id == "loss-divergence" for h in self._index.hits):
            at, signature = int(bad[0]), self._signatures.by_id["loss-divergence"]
            line, text = int(steps.line[at]), f"step {steps.step[at]}: loss {steps.loss[at]}"
            self._index.hits.append(
                Hit(signature, steps.rank, line, text, file, None, len(bad), int(steps.line[bad[-1]]))
            )

    def result(self, scan: Scan) -> LogIndex:
        index, facts = self._index, self._facts
        facts.size, facts.lines, facts.ends_mid_line = scan.size, scan.lines, scan.ends_mid_line
        if not facts.hosts and "JOB_NODELIST" in facts.header:
            facts.hosts = expand(facts.header["JOB_NODELIST"])
        index.hits = sorted(self._hits.values(), key=lambda h: (h.file != scan.path.name, h.line))
        index.harmless = dict(sorted(self._harmless.items()))
        index.steps = self._main.result() if self._main else Steps()
        for rank, step in self._other_steps.items():
            index.steps.last_by_rank[rank] = max(step, index.steps.last_by_rank.get(rank, -1))
        index.silent_s = _silence(scan)
        self._diverged(index.steps, scan.path.name)
        index.ranks_seen = self._ranks | set(index.steps.last_by_rank)
        return index


def _silence(scan: Scan) -> float | None:
    """Seconds between the timestamps behind the last step: a hung run may still print heartbeats and notices."""
    tail = 1 << 16
    with scan.path.open("rb") as f:
        f.seek(max(0, scan.size - tail))
        text = f.read(tail)
    at = max(text.rfind(n) for n in (*NEEDLES, *_EVAL))
    if at < 0:
        return None
    clocks = [b.clock for raw in text[at:].split(b"\n")[1:] if (b := parse(raw[:_QUOTED])) and b.clock is not None]
    return max(clocks) - min(clocks) if len(clocks) > 1 else None


_RANK_FILE = re.compile(r"^rank-(\d{1,6})\.log$")


def rank_files(directory: Path | None) -> dict[int, Path]:
    """The other ranks' logs of a Kubernetes job."""
    if directory is None or not directory.is_dir():
        return {}
    found = {int(m[1]): p for p in directory.iterdir() if (m := _RANK_FILE.match(p.name)) and p.is_file()}
    return dict(sorted(found.items()))
