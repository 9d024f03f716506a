"""Stacks of many ranks: read what py-spy, faulthandler and gdb print, put equal ones together, name the odd ones.

A stack is one moment and text from outside: it is parsed, never believed beyond what the ranks have in common. Line
numbers are left out of the comparison, because ranks that wait in the same loop stand on different lines of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_PYSPY = re.compile(r"^Thread (?P<id>\S+) \((?P<state>[^)]*)\)(?:: \"(?P<name>.*)\")?\s*$")
_PYSPY_FRAME = re.compile(r"^\s{2,}(?P<function>.+?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)\s*$")
_FAULT = re.compile(
    r"^(?P<current>Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>\S.*)$')
_GDB = re.compile(r"^Thread (?P<number>\d+) \((?P<rest>.*)\):\s*$")
_GDB_FRAME = re.compile(
    r"^#\d+\s+(?:0x[0-9a-f]+ in )?(?P<function>[^\s(]+(?:<[^(]*>)?)\s*\(.*?\)"
    r"(?: (?:at|from) (?P<file>\S+?)(?::(?P<line>\d+))?)?\s*$"
)
_MOST_LINES = 200_000
_MOST_FRAMES = 400

# The main thread of a rank that waits for others, or for a device that waits for others, stands in one of these.
_WAITING = re.compile(
    r"(?:^|\.)(?:_value|block_until_ready|sync_global_devices|wait_at_barrier) \(.*\bjax/"
    r"|\(.*\bdistributed_c10d\.py\)"
    r"|(?:^|\.)(?:synchronize|wait_stream|wait) \(.*\btorch/"
    r"|BlockUntilReady|^p?nccl[A-Z]\w+ \(|\bgloo::|^P?MPI_(?:All|Barrier|Bcast|Reduce|Gather|Wait|Recv)"
    r"|^(?:cuda|hip)(?:Stream|Event|Device)Synchronize|^cu(?:Stream|Event|Ctx)Synchronize"
)
# And one that waits for its next batch in one of these.
_DATA = re.compile(
    r"\(.*(?:\bdata\.py|data_?load|input_pipeline|\bgrain/|tensorflow/python/data/|torch/utils/data/|tensorflow_datasets/)"
    r"|(?:^|[._])(?:load_)?next_batch \(",
    re.IGNORECASE,
)
_LOOKED_AT = 25  # frames from the innermost: below them every rank looks the same


@dataclass(frozen=True)
class Frame:
    """One call, as far as the text names it."""

    function: str
    file: str = ""
    line: int | None = None

    @property
    def key(self) -> str:
        """What is compared between ranks."""
        return f"{self.function} ({short(self.file)})"

    def __str__(self) -> str:
        return f"{self.function} ({short(self.file)}{'' if self.line is None else f':{self.line}'})"


@dataclass(frozen=True)
class Thread:
    """One thread; frames from the innermost."""

    name: str
    frames: tuple[Frame, ...]
    main: bool = False


@dataclass(frozen=True)
class RankStack:
    """A rank at one moment: what the kernel said of its process, and where its main thread stood."""

    rank: int
    host: str
    state: str = ""  # as /proc has it; empty where nobody looked
    frames: tuple[Frame, ...] = ()
    source: str = ""  # the file it was read from
    later: str | None = None  # the state seconds later, where it was looked at twice
    wchan: str = ""
    later_frames: tuple[Frame, ...] = ()  # where it stood seconds later, where it was read twice
    native: tuple[Frame, ...] = ()  # with the C frames, where the rank could be held for them

    @property
    def stopped(self) -> bool:
        """Somebody stopped the process, and nobody continued it."""
        return self.state in ("T", "t") and self.later in (None, "T", "t")

    @property
    def stuck_in_kernel(self) -> bool:
        """It did not leave the kernel between two looks; one look alone may have met it reading a file."""
        return self.state == "D" and self.later == "D"

    @property
    def waits(self) -> bool:
        """Its main thread waits for other ranks or for a device."""
        frames = (*self.frames[:_LOOKED_AT], *self.native[:_LOOKED_AT])
        return any(_WAITING.search(frame.key) for frame in frames)

    @property
    def moved(self) -> bool:
        """It stood in two places: it runs, and where it was met is chance."""
        return bool(self.later_frames) and [f.key for f in self.frames] != [f.key for f in self.later_frames]

    @property
    def in_data(self) -> bool:
        """Its main thread stands in the code that brings the next batch."""
        return not self.waits and any(_DATA.search(frame.key) for frame in self.frames[:_LOOKED_AT])


@dataclass(frozen=True)
class Group:
    """Ranks that stand in the same place."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    waits: bool

    @property
    def place(self) -> str:
        """The innermost frame that says something to a person."""
        return str(_telling(self.frames)) if self.frames else "nowhere that could be read"


@dataclass(frozen=True)
class Odd:
    """A rank that holds the others up, and what tells it apart."""

    rank: int
    host: str
    why: str
    source: str = ""


def parse(text: str) -> list[Thread]:
    """The threads of one process, whichever of the three tools printed them; unknown lines are passed over."""
    threads: list[Thread] = []
    name, frames, main = "", list[Frame](), False
    open_ = False

    def close() -> None:
        if open_ and (frames or name):
            threads.append(Thread(name, tuple(frames), main))

    for line in text.splitlines()[:_MOST_LINES]:
        head = _PYSPY.match(line) or _FAULT.match(line) or _GDB.match(line)
        if head is not None:
            close()
            found = head.groupdict()
            name, frames, open_ = found.get("name") or found.get("rest") or found.get("id") or "", [], True
            main = name == "MainThread" or found.get("number") == "1" or bool(found.get("current") == "Current thread")
            continue
        frame = _PYSPY_FRAME.match(line) or _FAULT_FRAME.match(line) or _GDB_FRAME.match(line)
        if frame is not None and open_ and len(frames) < _MOST_FRAMES:
            number = frame["line"]
            frames.append(Frame(frame["function"].strip(), frame["file"] or "", int(number) if number else None))
    close()
    return threads


def main_thread(threads: Sequence[Thread]) -> Thread | None:
    """The thread that runs the program: the one whose outermost call is a module's, else the one that is called so."""
    outermost = [t for t in threads if t.frames and any(f.function in _ENTRY for f in t.frames[-6:])]
    return next(iter([*(t for t in outermost if t.main), *outermost, *(t for t in threads if t.main), *threads]), None)


_ENTRY = ("<module>", "_run_module_as_main", "main", "_start", "Py_RunMain")


def group(stacks: Iterable[RankStack]) -> list[Group]:
    """Ranks with the same main-thread calls together, the largest group first; those without a stack are left out."""
    by_place: dict[tuple[str, ...], list[RankStack]] = {}
    for stack in stacks:
        if stack.frames:
            by_place.setdefault(tuple(frame.key for frame in stack.frames), []).append(stack)
    found = [Group(tuple(sorted(s.rank for s in many)), many[0].frames, many[0].waits) for many in by_place.values()]
    return sorted(found, key=lambda g: (-len(g.ranks), g.ranks))


def odd_ones(stacks: Sequence[RankStack]) -> list[Odd]:
    """Ranks that keep the others waiting. Nobody is named when it is not clear who waits for whom.

    A stopped process and one that hangs in the kernel say so themselves. Otherwise most ranks have to wait in one
    place, and only few may stand elsewhere, both times one looked: a rank that waits is a witness, one that moves runs.
    """
    few = max(1, len(stacks) // 4)
    stopped = [s for s in stacks if s.stopped]
    if 0 < len(stopped) <= few and len(stopped) < len(stacks):
        return [Odd(s.rank, s.host, f"its process is stopped (state {s.state}){place(s)}", s.source) for s in stopped]
    stuck = [s for s in stacks if s.stuck_in_kernel]
    if 0 < len(stuck) <= few and len(stuck) < len(stacks):
        return [Odd(s.rank, s.host, f"it hangs in the kernel ({s.wchan or '?'}){place(s)}", s.source) for s in stuck]
    waiting = [s for s in stacks if s.waits]
    elsewhere = [s for s in stacks if s.frames and not s.waits and not s.moved]
    if not elsewhere or len(elsewhere) > few or 2 * len(waiting) <= len(stacks):
        return []
    why = "it is not in the collective that the others wait in, but"
    return [Odd(s.rank, s.host, f"{why}{place(s)}", s.source) for s in elsewhere]


def short(file: str) -> str:
    """The end of a path, which is the same on every node: from the package on, else the last three parts."""
    _, packages, rest = file.rpartition("-packages/")
    if packages or not file.startswith("/"):
        return rest or file
    return "/".join(file.rsplit("/", 3)[-3:])


def place(stack: RankStack) -> str:
    """Where a rank stands, for the end of a sentence; empty where it is not known."""
    return f" in {_telling(stack.frames)}" if stack.frames else ""


def _telling(frames: Sequence[Frame]) -> Frame:
    """The innermost frame that tells something: of a program, not of Python's own library or a bare address."""
    python = [f for f in frames if f.file.endswith(".py")]
    named = [f for f in frames if not f.function.startswith("0x")]
    return next(iter([*(f for f in python if not _of_python(f.file)), *python, *named, *frames]))


def _of_python(file: str) -> bool:
    """Whether a file is of the standard library: py-spy names those without a folder, others with Python's own."""
    inside = re.search(r"/lib/python3[^/]*/(?!(?:site|dist)-packages/)", file) is not None
    return "/" not in file or inside or file.startswith(("concurrent/", "asyncio/", "multiprocessing/"))
