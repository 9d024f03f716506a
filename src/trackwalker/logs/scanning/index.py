"""Everything triage needs from a job's logs, gathered in one pass over each file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np

from trackwalker.errors import EvidenceError
from trackwalker.job.dialects import needles as step_needles
from trackwalker.logs.excerpts.shown import shown
from trackwalker.logs.facts import LogFacts
from trackwalker.logs.failures.ends import drop_forged, ended_first
from trackwalker.logs.failures.lastwords import (
    VICTIM_LINES,
    accused,
    asked_by_others,
    failed_by_itself,
    last_words,
    last_words_beside,
    lost_peers,
    next_line,
    raised_below_frames,
    silence,
)
from trackwalker.logs.failures.mined import Mined, new_errors
from trackwalker.logs.failures.reactions import announces, reacts, wraps_up
from trackwalker.logs.failures.signatures import Signature, Signatures, load
from trackwalker.logs.failures.step_numbers import diverged, waits_for_input
from trackwalker.logs.failures.structure import NEEDLES as STRUCTURE
from trackwalker.logs.failures.whereabouts import Places, learn, telling
from trackwalker.logs.formats import dialect as d
from trackwalker.logs.formats.beside import apart, beside, host_told, is_no_log, names_of, rank_of_log
from trackwalker.logs.formats.beside import rank_files as rank_files
from trackwalker.logs.formats.blocks import HEADS, section_hosts
from trackwalker.logs.formats.nodelist import hosts_in
from trackwalker.logs.scanning.gathered import END, MOST_ENDS, MOST_HITS, MOST_MORE, MOST_RANKS, Gathered
from trackwalker.logs.scanning.gathered import End as End
from trackwalker.logs.scanning.gathered import Hit as Hit
from trackwalker.logs.scanning.gathered import Source as Source
from trackwalker.logs.scanning.lines import Body, clean
from trackwalker.logs.scanning.needles import SHORTEST, Needles
from trackwalker.logs.scanning.reader import MOST_TOLD, FactReader
from trackwalker.logs.scanning.scan import BEGINNING, Line, Scan, read_lines
from trackwalker.logs.scanning.shares import Beside, read_beside
from trackwalker.logs.scanning.stamps import moved
from trackwalker.logs.scanning.steps import StepReader, Steps, clocks_off

_LONGER = {  # the fact reader's short literals, in a form long enough for the scanner
    b"== ": (b"== Preflight ", b"== Docker pull ", b"== ECC check ", b"== Training ", b" BEGIN (", b" TIMEOUT ("),
    b"/task:": (b"/replica:",),
    b"Wall:": (b"  Wall: ", b"Wall:  "),
}
_NODE_LISTS = (b"JOB_NODELIST=", b"NODELIST_EXPANDED=")  # a host that is cut off is never accused
_GIT = b"=== GIT SUMMARY "
_EVAL = (b"valid loss at", b"validation loss", b"Evaluating", b"eval metrics after", b"Completed eval step")
_FRAME = b'", line '
_A_FORM = 1 << 20  # bytes: accounting, an error file, a dump; a larger main file is a log
_QUOTED, _APART = 400, 3  # characters of a line that is kept; steps by which ranks' lines are interleaved
_KNOWS = 7  # a signature of this tier or a lower one says what the line means


@dataclass
class LogIndex:
    """One job's logs as triage sees them."""

    path: Path
    facts: LogFacts
    hits: list[Hit] = field(default_factory=list)
    harmless: dict[str, int] = field(default_factory=dict)
    ranks_seen: set[int] = field(default_factory=set)
    last_task: int = -1  # the highest label that the launcher put before a line
    eval_line: int = 0  # last line that speaks of evaluation
    silent_s: float | None = None  # how long the log goes on after its last step, where its lines tell the time
    files: list[str] = field(default_factory=list)
    size: int = 0
    lines: int = 0
    skipped: int = 0
    rank_hosts: dict[int, str] = field(default_factory=dict)  # by rank, the host that lines of the log name for it
    places: Places = field(default_factory=Places)
    earlier: dict[str, int] = field(default_factory=dict)  # parts rotated away -> how many lines before the main log
    clocks_off: dict[int, float] = field(default_factory=dict)  # by rank: seconds that its clock is ahead of most
    scan: Scan | None = None  # of the main log: its front and its end
    _timed: tuple[int, bool] = (-1, False)  # of how many hits it was found out
    _tasks: tuple[int, int] = (-1, -1)

    @property
    def steps(self) -> Steps:
        """The steps that the main log tells of."""
        return self.facts.steps

    @cached_property
    def progress(self) -> list[int]:
        """The lines at the front and the end of the main log that tell of steps in whatever dialect."""
        return [] if self.scan is None or self.facts.launched else moved(self.scan)  # our own trainers are known

    @property
    def timed(self) -> bool:
        """Whether every hit tells its time; asked for every pair of hits, so found out once for that many."""
        if self._timed[0] != len(self.hits):
            self._timed = (len(self.hits), all(h.clock is not None for h in self.hits))
        return self._timed[1]

    @property
    def tasks(self) -> int:
        """How many tasks the launcher started, as far as labels and steps tell."""
        steps = self.steps.last_by_rank
        if self._tasks[0] != len(steps):
            self._tasks = (len(steps), max(steps, default=-1))
        return max(self.last_task, self._tasks[1]) + 1


def index_logs(
    log: Path, others: dict[int, Path] | None = None, every_rank: bool = False, more: Sequence[Path] = ()
) -> LogIndex:
    """Read the main log, the other ranks' files and `more` that tells of the job, once each.

    Step lines are read of one rank in full and of the others the last; `every_rank` asks for all of them.
    """
    found = _index(log, others or {}, every_rank, None, more)
    steps = found.steps
    furthest = max(steps.last_by_rank.items(), key=lambda each: (each[1], -each[0]), default=(0, -1))
    if len(steps) and furthest[1] > int(steps.step.max()) + _APART and furthest[0] not in (others or {}):
        # Ranks train in step, so any one tells of all; only where the lowest fell silent another has to be read.
        found = _index(log, others or {}, every_rank, furthest[0], more)
    return found


def _index(
    log: Path, others: dict[int, Path], every_rank: bool, lead: int | None, more: Sequence[Path] = ()
) -> LogIndex:
    gatherer = Gatherer(log, load(), every_rank, lead)
    rank, name = (rank_of_log(log), names_of([log, *more])[log]) if more else (None, "")
    with apart(log) as parts:
        first = parts[0] if parts else Beside(log, rank, "", host_told(log))
        scan = gatherer.read(first.path, first.rank, name, first.host)
        if log.stat().st_size == 0:
            raise EvidenceError(f"the log {log} is empty: the job wrote nothing before it ended, or has not started")
        read_beside(gatherer, [*parts[1:], *(Beside(path, rank) for rank, path in sorted(others.items()))])
    if scan.size <= _A_FORM and is_no_log(log):  # it is told by what it is, not by words of a log that it holds
        gatherer.forget()
        more = (log, *more)
    if more:
        beside(gatherer, more, log)
    return gatherer.result(scan)


@cache
def needles_of(signatures: Signatures, step_words: tuple[bytes, ...]) -> Needles:
    """What to search a log for; compiling it takes a tenth of a second where no earlier start has kept it."""
    facts = [n for f in d.NEEDLES for n in ((f,) if len(f) >= SHORTEST else _LONGER[f])]
    own = [*signatures.literals, *STRUCTURE, _FRAME, *facts, *HEADS, _GIT, *_EVAL]
    plenty = frozenset({*signatures.every, *range(len(signatures.literals) + len(STRUCTURE) + 1, len(own))})
    return Needles(own, step_words, plenty, frozenset(own.index(n) for n in _NODE_LISTS))


class Gatherer:
    """Sorts what the scanner finds into an index, file after file; the first one is the main log."""

    def __init__(
        self, log: Path, signatures: Signatures, every_rank: bool = False, lead: int | None = None, beside: bool = False
    ) -> None:
        """`beside`: the main log is read by another, no file here is."""
        self._signatures, self._every_rank, self.log, self.lead = signatures, every_rank, log, lead
        self._facts = LogFacts(log)
        self._fact_reader = FactReader(self._facts)
        self.needles = needles_of(signatures, step_needles())
        self._known = len(signatures.literals)
        self._first_fact = self._known + len(STRUCTURE) + 1
        self._git = len(self.needles.literals) - len(_EVAL) - 1
        self._heads = frozenset(range(self._git - len(HEADS), self._git))
        self.gathered = Gathered()
        self._main: StepReader | None = StepReader() if beside else None
        self._index = LogIndex(log, self._facts)

    def read(self, path: Path, rank: int | None, name: str = "", host: str = "") -> Scan:
        """One file, in one pass; `name` is what it is called among several."""
        source = self.source(path, rank)
        source.name, source.host = name or source.name, host
        self._front(path, source)
        take = partial(self.take, source)
        steps = source.steps
        scan = read_lines(path, self.needles, take, steps.take, steps.choose, self._every_rank, steps.brief)
        self.close(source, scan)
        return scan

    def source(self, path: Path, rank: int | None = None) -> Source:
        """Begin with a file."""
        main = self._main is None
        return Source(path.name, rank, StepReader(rank, self.lead, brief=not main), main)

    def take(self, source: Source, line: Line) -> None:
        """A line that the scanner found."""
        if self._git in line.needles:
            source.in_diff = b"BEGIN" in line.raw
        elif not source.in_diff:
            if not self._heads.isdisjoint(line.needles):
                source.summary.head(line.number, line.raw)
                if source.main:
                    self.gathered.places.sections.head(line.number, clean(line.raw))
            self._line(line, source)

    def say(self, signature: Signature, rank: int | None, text: str, file: str, clock: float | None, host: str) -> None:
        """What a form that is no log says, as a hit of its own."""
        if rank is not None:
            self.gathered.ranks.add(rank)
        self.gathered.hits.setdefault(
            (signature.id, rank, host if rank is None else ""),
            Hit(signature, rank, 1, text[:_QUOTED], file, clock, 1, 1, host=host),
        )

    def forget(self) -> None:
        """What was read so far is no log: none of its lines counts."""
        self.gathered.hits.clear()
        self.gathered.mined = Mined()

    @property
    def signatures(self) -> Signatures:
        """What the lines are held against."""
        return self._signatures

    def close(self, source: Source, scan: Scan) -> None:
        """End with a file."""
        if scan.ends_mid_line:
            source.steps.cut_off(scan.lines, scan.tail.rpartition(b"\n")[2])
        if source.main:
            self._main = source.steps
        else:
            self.gathered.last_steps.update(source.steps.ranks)
            if source.rank is not None and len(self.gathered.ends) < MOST_ENDS:
                self.gathered.ends.append(End(source.name, source.rank, source.host, scan.lines, scan.tail[-END:]))
        self.gathered.clocks.update(source.steps.clocks)
        self._learn(source, scan)
        self.gathered.files.append(source.name)
        self.gathered.size += scan.size
        self.gathered.lines += scan.lines
        self.gathered.skipped += scan.skipped

    def _front(self, path: Path, source: Source) -> None:
        """Who is who, from the front of a file: its other lines are read with that."""
        try:
            with path.open("rb") as file:
                front = self._fact_reader.front(file, BEGINNING) if source.main else file.read(BEGINNING)
        except OSError:
            return  # whoever reads it says so
        known, places = self.gathered.rank_hosts, self.gathered.places
        places.front(front, source.main)
        if not source.of_one_rank:
            self.gathered.last_task = max(self.gathered.last_task, places.labels(front, known))
        source.wrote = learn(telling(front, b"", source.of_one_rank), known, source.rank, places)

    def _learn(self, source: Source, scan: Scan) -> None:
        """Who runs where, and who ended first, from the end of a file: there launchers say so."""
        known, places = self.gathered.rank_hosts, self.gathered.places
        wrote = source.wrote | learn(telling(b"", scan.tail, source.of_one_rank), known, source.rank, places)
        if places.sections.lines and source.main:
            told = section_hosts((scan.front + scan.tail).decode("utf-8", "replace"))
            known.update({rank: host for rank, host in told.items() if rank not in known})
        if source.main:
            places.ended_first = ended_first(scan.tail.split(b"\n"), places)
            places.first_host = known.get(-1 if places.ended_first is None else places.ended_first, "")
        if source.rank is not None and len(wrote) == 1:
            known.setdefault(source.rank, wrote.pop())

    def _line(self, line: Line, source: Source) -> None:
        file, main = source.name, source.main
        understood = False
        if main and line.needles[-1] >= self._first_fact:
            understood = self._fact_reader.take(line.number, line.raw)
            if line.needles[-1] > self._git:
                self._index.eval_line = line.number
                if len(self._facts.evals) < MOST_TOLD:
                    self._facts.evals.append(line.number)
        if line.needles[0] >= self._first_fact:
            return
        needles = tuple(n for n in line.needles if n < self._known)
        body = self.gathered.places.read(line.raw, line.before, source.rank)
        if body is None or (source.rank is None and body.speaks_for_the_launcher):
            return
        body = source.summary.owned(body, line.number)
        if main:
            body = self.gathered.places.sections.owned(body, line.number)
        source.clock = body.clock if body.clock is not None else source.clock
        if body.clock is None or (source.host and not body.host):  # a line of a traceback was written with its first
            body = replace(body, clock=source.clock, host=body.host or source.host)
        if source.ignores(line, body):
            return
        if body.rank is not None and len(self.gathered.ranks) < MOST_RANKS:
            self.gathered.ranks.add(body.rank)
        if body.task is not None:
            self.gathered.last_task = max(self.gathered.last_task, body.task)
        if self._first_fact - 1 in line.needles:
            self.gathered.mined.frame(body, file, line.number)
        if body.label:
            self.gathered.mined.labels[body.label] += 1
        if body.text.startswith("Retrying in "):
            self.gathered.tried_again(file, line.number)
        found, harmless = self._signatures.match(body, needles)
        self.gathered.only_looks_bad(harmless, file, line.number)
        if not understood and not harmless and not any(s.order <= _KNOWS for s in found):
            found = [*found, *self._by_structure(body, file, line.number)]
        for signature in found:
            self._hit(signature, body, file, line.number)

    def _by_structure(self, body: Body, file: str, number: int) -> list[Signature]:
        """A line in words that no signature knows: how a process ended stands in codes; else it is kept as an error."""
        told = self.gathered.mined.take(body, file, number)
        raised = self._signatures.by_exception
        if told is not None and raised is not None and told.exception and told.python and not wraps_up(body.text):
            return [raised]
        if told is None or not told.is_end or (wraps_up(body.text) and told.signal is None):
            return []
        known = self._signatures.by_signal.get(told.signal) if told.signal is not None else self._signatures.by_exit
        return [known] if known is not None else []

    def _hit(self, signature: Signature, body: Body, file: str, number: int) -> None:
        owner = body.rank if body.rank is None or body.rank in self.gathered.ranks else None
        full = len(self.gathered.hits) > MOST_HITS
        key = (signature.id, owner, body.host if owner is None and not full else "")
        hit = self.gathered.hits.get(key)
        if hit is None:
            text = body.text.strip()[:_QUOTED]
            self.gathered.hits[key] = Hit(
                signature, owner, number, text, file, body.clock, 1, number, task=body.task, host=body.host
            )
        else:
            hit.count += 1
            hit.last_line, hit.last_text = number, body.text[:_QUOTED]
            if owner is None and len(hit.more) < MOST_MORE:
                hit.more.append(body.text.strip()[:_QUOTED])

    def result(self, scan: Scan) -> LogIndex:
        """The index, once every file was read; `scan` is the main log's."""
        index, facts, found = self._index, self._facts, self.gathered
        facts.size, facts.lines, facts.ends_mid_line = scan.size, scan.lines, scan.ends_mid_line
        facts.hosts = facts.hosts or hosts_in(facts.header)
        index.harmless = dict(sorted(found.harmless.items()))
        index.scan, index.last_task, index.files = scan, found.last_task, found.files
        index.rank_hosts, index.places = found.rank_hosts, found.places
        index.size, index.lines, index.skipped = found.size, found.lines, found.skipped
        index.clocks_off = clocks_off(found.clocks, found.rank_hosts) if len(found.files) > 1 else {}
        facts.steps = self._main.result() if self._main else Steps()
        drop_forged(facts, found.hits)
        index.hits = sorted(found.hits.values(), key=lambda h: (h.file != scan.path.name, h.line))
        for rank, step in found.last_steps.items():
            index.steps.last_by_rank[rank] = max(step, index.steps.last_by_rank.get(rank, -1))
        before = np.searchsorted(facts.steps.line, facts.save_lines) - 1
        facts.saves |= {int(facts.steps.step[at]) for at in before if at >= 0}
        index.silent_s = silence(scan.tail, _EVAL)
        facts.lost = lost_peers(scan, int(facts.steps.line.max()) if len(facts.steps) else 0)
        known = self._signatures.by_id
        if not any(h.signature.id == "loss-divergence" for h in index.hits):
            index.hits += diverged(index.steps, known["loss-divergence"], scan.path.name)
        index.hits += waits_for_input(scan, known["input-stall"])
        index.ranks_seen = found.ranks | set(index.steps.last_by_rank)
        self._add_unnamed(scan)
        index.hits += [] if facts.launched else shown(scan, index.hits, known, found.mined.looks_bad(scan.path.name))
        return index

    def _add_unnamed(self, scan: Scan) -> None:
        """The error lines that no signature knows, and of exceptions where they were raised."""
        index, unnamed, main = self._index, self._signatures.unnamed, scan.path.name
        for hit in index.hits:
            hit.frame, hit.of_data = self.gathered.mined.stands(hit.file, hit.rank, hit.line)
        if unnamed is None:
            return
        found = new_errors(self.gathered.mined, index.steps, main, index.places.prompts)
        found += raised_below_frames(scan, main, self.needles.literals[: self._first_fact], index.places)
        # What is known by a signature or by its structure needs no guess; what comes after it is its consequence.
        ours = [h for h in index.hits if h.file == main]
        known = {at for h in ours for at in (h.line, h.last_line)} | self.gathered.mined.lines(main, found)
        told = {h.line: h.rank for h in index.hits if h.file == main and VICTIM_LINES & set(h.signature.traits)}
        told |= {h.line: h.rank for h in asked_by_others(index) if h.file == main}
        failed = failed_by_itself(index)
        if not failed:  # those who lost somebody may say so in words of their own
            lost = {s.line: s.rank for s in found if s.file == main and reacts(s.text)}
            failed, told = len(set(lost.values()) - {None}) > 1 and not told, told or lost
        index.places.accused = accused(index, found)
        failed = failed or index.places.accused is not None
        found += last_words(scan, main, known, told, index.places, failed)
        if self.gathered.ends and (index.places.reported or len(index.steps)):
            taken = {(h.file, h.line) for h in index.hits} | {(s.file, s.line) for s in self.gathered.mined.all()}
            others = {h.rank for h in index.hits if reacts(h.text)}
            found += last_words_beside(self.gathered.ends, taken, index.places) if failed or len(others) > 1 else []
        for seen in found:
            if seen.file == main and announces(seen.text):  # what it announces stands in its next line
                seen.text = f"{seen.text} {next_line(scan, seen, index.places)}".strip()[:_QUOTED]
            rank = seen.rank if seen.rank is not None else index.places.actors.get(seen.actor)
            raised = seen.told.exception and seen.told.python and not wraps_up(seen.text)
            python = raised and self._signatures.by_exception
            index.hits.append(
                Hit(python or unnamed, rank, seen.line, seen.text, seen.file, seen.clock, seen.count, seen.last_line,
                    task=seen.task, host=seen.host, told=seen.told, frame=seen.frame)
            )  # fmt: skip
