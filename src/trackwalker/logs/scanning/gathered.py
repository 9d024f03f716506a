"""What files of a job gave, before anything is concluded; processes gather parts, and the parts are joined."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

from trackwalker.logs.failures.mined import Mined
from trackwalker.logs.failures.signatures import Signature
from trackwalker.logs.failures.structure import Told
from trackwalker.logs.failures.whereabouts import Places
from trackwalker.logs.formats.blocks import Summary
from trackwalker.logs.scanning.lines import Body
from trackwalker.logs.scanning.scan import Line
from trackwalker.logs.scanning.steps import StepReader

MOST_RANKS = 1 << 17  # numbers that a log may call ranks: a hundred thousand GPUs, and a bound for what is no rank
MOST_MORE = 64
MOST_ENDS, END = 512, 2048  # files beside the main log whose last bytes are kept
MOST_HITS = 1 << 17  # of all classes, hosts and ranks: beyond that lines that no rank wrote are one host's
_IGNORED = 30  # lines of a traceback
_RAISES = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w+(?:: |$)")
Key = tuple[str, int | None, str]  # the class, whose line it is: a rank's, or where none is told a host's


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
    last_text: str = ""  # of the last line, where it is another than the first
    more: list[str] = field(default_factory=list)  # of lines that no rank wrote: the next few, of other hosts perhaps
    task: int | None = None  # the launcher's label of the line, where it has one: a task of eight GPUs may hold ranks
    host: str = ""  # who wrote it, as the line itself says
    told: Told | None = None  # what its structure says, of a line that no signature knows
    frame: str = ""  # of an exception: the innermost frame outside libraries
    of_data: bool = False  # of an exception: a frame above it works on data
    kind: str = ""  # the class that more than its line speaks for


@dataclass
class Source:
    """One file while it is read."""

    name: str
    rank: int | None
    steps: StepReader
    main: bool
    host: str = ""  # of which host all its lines tell, where that is known
    clock: float | None = None  # when the last line that told it was written
    wrote: set[str] = field(default_factory=set)  # the hosts whose lines stand at its front
    summary: Summary = field(default_factory=Summary)
    in_diff: bool = False  # the launcher prints the working tree's diff: anything may stand there
    ignored: tuple[int, int | None] = (
        0,
        None,
    )  # up to which line, and of which rank, an error is told that was ignored

    @property
    def of_one_rank(self) -> bool:
        """Whether it is one of many files that each tell of their own rank."""
        return self.rank is not None and not self.main

    def ignores(self, line: Line, body: Body) -> bool:
        """Whether it tells of an error that Python ignored: the traceback below its word on that, and the error."""
        if b"Exception ignored in" in line.raw:
            self.ignored = (line.number + _IGNORED, body.rank)
        until, rank = self.ignored
        said = body.text.lstrip()
        frame = said.startswith(('File "', "Traceback ("))
        if line.number > until or body.rank != rank or not (frame or _RAISES.match(said)):
            return False
        if not frame:
            self.ignored = (0, None)
        return True


@dataclass(frozen=True)
class End:
    """How another rank's own file ends."""

    file: str
    rank: int
    host: str
    lines: int
    text: bytes


@dataclass
class Gathered:
    """What some files gave; `join` adds those of files that come later."""

    hits: dict[Key, Hit] = field(default_factory=dict)
    mined: Mined = field(default_factory=Mined)
    harmless: Counter[str] = field(default_factory=Counter)
    ranks: set[int] = field(default_factory=set)
    last_steps: dict[int, int] = field(default_factory=dict)  # by rank, of files beside the main log
    clocks: dict[int, tuple[int, float]] = field(default_factory=dict)  # by rank, its last step and when it was written
    places: Places = field(default_factory=Places)
    rank_hosts: dict[int, str] = field(default_factory=dict)
    last_task: int = -1
    files: list[str] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    size: int = 0
    lines: int = 0
    skipped: int = 0

    def only_looks_bad(self, harmless: list[str], file: str, number: int) -> None:
        """A line that carries these patterns of what is no failure: no last word either."""
        self.harmless.update(harmless)
        if harmless:
            self.mined.harmless.append((file, number))

    def tried_again(self, file: str, number: int) -> None:
        """What the line before this one of a file told for the first time was not the end."""
        latest = takewhile(lambda each: (each[1].file, each[1].line) == (file, number - 1), reversed(self.hits.items()))
        for key in [key for key, hit in latest if hit.count == 1]:
            del self.hits[key]

    def join(self, later: Gathered) -> None:
        """As if those files had been read after these."""
        for key, hit in later.hits.items():
            known = self.hits.setdefault(key, hit)
            if known is not hit:
                known.count += hit.count
                known.last_line, known.last_text = hit.last_line, hit.last_text or hit.text
                if hit.rank is None:
                    known.more = [*known.more, hit.text, *hit.more][:MOST_MORE]
        self.mined.join(later.mined)
        self.harmless.update(later.harmless)
        self.ranks |= later.ranks
        self.last_steps.update(later.last_steps)
        self.clocks.update(later.clocks)
        self.places.join(later.places)
        self.rank_hosts = {**later.rank_hosts, **self.rank_hosts}
        self.last_task = max(self.last_task, later.last_task)
        self.files += later.files
        self.ends = [*self.ends, *later.ends][:MOST_ENDS]
        self.size, self.lines, self.skipped = (
            self.size + later.size, self.lines + later.lines, self.skipped + later.skipped
        )  # fmt: skip
