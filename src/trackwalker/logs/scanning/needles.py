"""The literals a scan looks for, compiled so that one pass over the bytes finds all of them in any case of letters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import hyperscan
import numpy as np
import orjson
from numpy.typing import NDArray

from trackwalker.logs.scanning.disk_cache import forget, kept

SHORTEST = 7  # bytes of a needle: shorter words stand in too many lines that mean nothing
_ANCHOR = 10  # bytes; with fewer the search is not faster, and false alarms are more
# What a long run's log mostly says, in small letters: anchors are chosen from the rest.
_ORDINARY = (
    b"00: completed step: 1234, seconds: 30.567, tflop/s/device: 812.345, mfu: 32.49%, tokens/s/device: 2034.890, "
    b"total_weights: 262144, loss: 9.123\n07: i1115 00:44:52.139872 pjrt_client.cc:99] enabling async dispatch for 7\n"
    b"12: node012:88:99 [0] nccl info channel 00/0 : 3[3] -> 5[4] via p2p/ipc\n(actor pid=4242, ip=10.0.0.7) "
)
_COMMON = Counter(_ORDINARY[i : i + 3] for i in range(len(_ORDINARY) - 2))
_FLOOD = 1024  # of one needle in one search: each costs a call, so a line that floods the log is searched for no longer
_MOST_ENGINES = 16
_STRETCH = 1 << 16  # bytes: of ranks that share a file, the last step lines of all of them
Ints = NDArray[np.int64]
_Places = set[tuple[int, int]]  # where, and which text


class Hits(NamedTuple):
    """Where a search found what."""

    places: Ints
    texts: Ints
    dropped: int  # repeats of flooding needles that were only counted


class _Flood(NamedTuple):
    """What was found so often that the search is begun anew without it."""

    key: int
    end: int


class Finder:
    """Finds every occurrence of some literals; safe to share between threads.

    Searched for are rare pieces of them, their anchors, and where one stands the data around it is compared: many
    literals share an anchor, and pieces that ordinary lines hardly hold are searched for twice as fast. An anchor that
    floods the data after all gives way to its literals.
    """

    def __init__(self, literals: Sequence[bytes], endless: frozenset[int]) -> None:
        numbers: dict[bytes, list[int]] = {}
        for number, literal in enumerate(literals):
            numbers.setdefault(literal.lower(), []).append(number)
        self.numbers = list(numbers.values())  # by text: the needles that read so
        self._texts = list(numbers)
        self._longest = max(map(len, self._texts), default=0)
        self._endless = {i for i, n in enumerate(self.numbers) if not endless.isdisjoint(n)}
        held = _kept_anchors(self._texts)
        # A key is a text's own number, or behind those the number of an anchor.
        self._patterns = [*self._texts, *held]
        self._means = [[(i, len(t))] for i, t in enumerate(self._texts)]
        self._means += [[(i, at + len(anchor)) for i, at in means] for anchor, means in held.items()]
        self._engines: dict[tuple[frozenset[int], frozenset[int]], _Engine] = {}
        self._engine(frozenset(), frozenset())

    def find(self, data: memoryview) -> Hits:
        """Every occurrence, in the order of their places; of what floods the data the first thousand."""
        found: _Places = set()
        counts: Counter[int] = Counter()
        whole: frozenset[int] = frozenset()  # texts searched for as they are
        quiet: frozenset[int] = frozenset()  # and those searched for no longer
        begin = stop = dropped = 0
        while (flood := self._search(data, begin, stop, self._engine(whole, quiet), found, counts)) is not None:
            key, stop = flood
            if key < len(self._texts):
                quiet |= {key}
                dropped += bytes(data[stop:]).count(bytes(data[stop - len(self._texts[key]) : stop]))
            else:
                whole |= {text for text, _ in self._means[key]}
            begin = max(0, stop - self._longest)
        places, texts = np.array(sorted(found), np.int64).reshape(-1, 2).T
        return Hits(places, texts, dropped)

    def _search(
        self,
        data: memoryview,
        begin: int,
        stop: int,
        engine: _Engine,
        found: set[tuple[int, int]],
        counts: Counter[int],
    ) -> _Flood | None:
        floods: list[_Flood] = []

        def hit(key: int, _begin: int, end: int, _flags: int, _context: object) -> bool | None:
            at = end + begin
            if at <= stop:
                return None  # seen before the search was begun anew
            counts[key] += 1
            for text, back in self._means[key]:
                place, size = at - back, len(self._texts[text])
                same = key == text or bytes(data[max(place, 0) : place + size]).lower() == self._texts[text]
                if same and place >= 0:
                    found.add((place, text))
                    counts[text] += key != text
            if counts[key] >= _FLOOD and self._endless.isdisjoint(t for t, _ in self._means[key]):
                floods.append(_Flood(key, at))
                return True
            return None

        engine.search(data[begin:], hit)
        return floods[0] if floods else None

    def _engine(self, whole: frozenset[int], quiet: frozenset[int]) -> _Engine:
        """The search with some texts as they are and without others; they are few and the same again and again."""
        if (whole, quiet) not in self._engines:
            first = len(self._texts)
            keys = {k for k in range(first, len(self._patterns)) if not whole.issuperset(t for t, _ in self._means[k])}
            engine = _Engine({key: self._patterns[key] for key in sorted(keys | whole - quiet)})
            if len(self._engines) >= _MOST_ENGINES:
                return engine
            self._engines[whole, quiet] = engine
        return self._engines[whole, quiet]


def _kept_anchors(texts: Sequence[bytes]) -> dict[bytes, list[tuple[int, int]]]:
    """What `anchors_of` gives, or gave at an earlier start."""
    made = kept(
        "anchors",
        repr((_ANCHOR, SHORTEST, _ORDINARY, texts)).encode(),
        lambda: orjson.dumps([(a.decode("latin-1"), means) for a, means in anchors_of(texts).items()]),
    )
    return {a.encode("latin-1"): [(i, at) for i, at in means] for a, means in orjson.loads(made)}


def anchors_of(texts: Sequence[bytes]) -> dict[bytes, list[tuple[int, int]]]:
    """A piece of every text to search for: anchor -> the texts that hold it, each with where.

    Short texts come first and are anchors themselves; a longer one that holds an anchor already shares it.
    """
    anchors: dict[bytes, list[tuple[int, int]]] = {}
    begin_so: dict[bytes, list[bytes]] = {}  # the anchors by their first letters: this runs at every start
    for number in sorted(range(len(texts)), key=lambda i: (len(texts[i]), texts[i])):
        text = texts[number]
        places = range(len(text) - SHORTEST + 1)
        held = ((i, a) for i in places for a in begin_so.get(text[i : i + SHORTEST], ()) if text.startswith(a, i))
        at, anchor = next(held, None) or _rarest(text)
        if anchor not in anchors:
            anchors[anchor] = []
            begin_so.setdefault(anchor[:SHORTEST], []).append(anchor)
        anchors[anchor].append((number, at))
    return anchors


def _rarest(text: bytes) -> tuple[int, bytes]:
    """The piece that ordinary lines hold least of, its end above all: the search looks at the last letters first."""
    counts = [_COMMON.get(text[i : i + 3], 0) for i in range(len(text) - 2)]
    ends = range(min(_ANCHOR, len(text)), len(text) + 1)
    end = min(ends, key=lambda e: (counts[e - 3], sum(counts[max(0, e - _ANCHOR) : e - 2])))
    return max(0, end - _ANCHOR), text[max(0, end - _ANCHOR) : end]


def _compiled(texts: dict[int, bytes], once: bool) -> hyperscan.Database:
    """The search for some texts; compiling takes a tenth of a second, reading what was compiled before takes none."""

    def compile_() -> bytes:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        flag = hyperscan.HS_FLAG_CASELESS | (hyperscan.HS_FLAG_SINGLEMATCH if once else 0)
        flags = [flag] * len(texts)
        database.compile(list(texts.values()), list(texts), len(texts), flags, literal=True)
        return hyperscan.dumpb(database)

    source = repr((getattr(hyperscan, "__version__", ""), texts, once)).encode()
    try:
        return hyperscan.loadb(kept("search", source, compile_), hyperscan.HS_MODE_BLOCK)
    except hyperscan.HyperscanError:  # compiled on another processor: a home that several machines share
        forget("search", source)
        return hyperscan.loadb(compile_(), hyperscan.HS_MODE_BLOCK)


class _Engine:
    """One compiled set of texts; `once` tells of each only that it is there."""

    def __init__(self, texts: dict[int, bytes], once: bool = False) -> None:
        self._scratch = threading.local()  # what a search writes to: one for each thread
        self._database = _compiled(texts, once)

    def search(self, data: memoryview, found: Callable[[int, int, int, int, object], bool | None]) -> bool:
        """Call `found` for every occurrence; whether the end was reached before it said stop."""
        if not hasattr(self._scratch, "space"):
            self._scratch.space = hyperscan.Scratch(self._database)
        try:
            self._database.scan(data, found, scratch=self._scratch.space)  # type: ignore[type-var]  # any buffer will do
        except hyperscan.ScanTerminated:
            return False
        return True


class Needles:
    """The literals to look for; those at `steps` are so frequent that their lines are handled in bulk."""

    def __init__(
        self,
        literals: Sequence[bytes],
        steps: Sequence[bytes] = (),
        plenty: frozenset[int] = frozenset(),
        whole: frozenset[int] = frozenset(),
    ) -> None:
        self.literals = list(literals)
        self.steps = [n.lower() for n in steps]
        self.plenty = plenty  # needles whose every line counts, however many there are
        self.whole = whole  # needles whose line is read to its end, however long it is
        short = [n for n in (*self.literals, *self.steps) if len(n) < SHORTEST]
        if short:
            raise ValueError(f"needles shorter than {SHORTEST} bytes: {short}")
        self.text = Finder(self.literals, plenty)
        self._step_engine = _Engine(dict(enumerate(self.steps)), once=True) if self.steps else None

    def find_steps(self, data: memoryview) -> Ints:
        """Where step lines hold their needle, in order.

        A piece holds thousands of them and a call for each would take longer than all else: the engine tells which
        there are, and the two or three that there are, are searched for one by one.
        """
        present: set[int] = set()
        if self._step_engine:
            self._step_engine.search(data, lambda key, *_: present.add(key))
        small = bytes(data).lower() if present else b""
        return np.sort(np.concatenate([np.zeros(0, np.int64), *(_places(small, self.steps[key]) for key in present)]))

    def find_last_steps(self, data: memoryview) -> Ints:
        """The same of the last stretch that holds any: all that is wanted of a file where only its end counts."""
        end, overlap = len(data), max(map(len, self.steps), default=1)
        while end > overlap:
            begin = max(0, end - _STRETCH)
            if len(found := self.find_steps(data[begin:end])):
                return found + begin
            end = begin + overlap if begin else 0
        return np.zeros(0, np.int64)


def _places(data: bytes, text: bytes) -> Ints:
    """Where a text stands, from the sizes of what stands between: one call instead of thousands."""
    between = np.fromiter(map(len, data.split(text)), np.int64)
    return np.asarray(np.cumsum(between[:-1] + len(text)) - len(text))
