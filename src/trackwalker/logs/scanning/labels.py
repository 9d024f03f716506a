"""How a log labels its lines, learned from the log: a prefix of one form in which a rank's number and a host vary.

Launchers' own labels are known (`lines.py`). Others are the site's: `r03 |`, `[cn07][rank 3]`, `cn07/3:`, `tr-3 main`.
What makes a prefix a label is that lines of one form carry it throughout, that its number names few and dense values
which return, and that its host goes with its number. A counter of steps does not return, a time is not dense.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

_WORD = re.compile(r"[A-Za-z0-9_.-]*\d[A-Za-z0-9_.-]*")
_ENDS = re.compile(r"(?:[\]:|>)](?=\s)|[\]:|>)](?=[^\s\d:|>)])|^\S+(?=\s+[A-Za-z]\S*\s))\s*")
_TWO_WORDS = re.compile(r"^\S+\s+[A-Za-z][\w-]*\s+")  # a pod and its container
_CLOCK = re.compile(
    r"^\[?(?:\d{4}[-/]\d\d[-/]\d\d[T ]|\d\d/\d\d(?:/\d{2,4})? )?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?(?:\s+|$)"  # noqa: E501
)
_IDENTITY = frozenset({
    "rank", "r", "ranks", "grank", "global_rank", "world_rank", "worker", "w", "proc", "process", "p", "task", "t",
    "replica", "pe", "member", "trainer", "node_rank", "process_index", "proc_id",
})  # fmt: skip
_NUMBER = re.compile(r"^(?P<stem>.*?)(?P<number>\d{1,5})$")
_NO_HOST = re.compile(
    r"(?i)^(?:cuda|hip|gpu|mlx\d?|ib|eth|dev|device|core|cpu|numa|stage|step|epoch|iter|layer|shard|worker|rank|proc|task|r|p|w|t)?"
    r"[:_-]?\d+$|\.(?:py|cc|cpp|h|rs|go|json|yaml)$|^v?\d+(?:\.\d+)*$|^[IWEF]\d{4}$"
)
_NO_LABEL = re.compile(r"[{\"\t]|\0:\0:\0|ts=|time=")  # a record, a time, a row of a table
_LONGEST = 72
_LEAST_LINES = 6
_LEAST_SHARE = 0.25  # of the lines
_ABOUT = 0.9
_AGAIN = 1.2  # lines for each number, at least
_EACH = 3  # what else a label holds, a process's number say, has few values for each of its owners
_MOST_FORMS = 5  # of one line


@dataclass(frozen=True)
class Label:
    """The form of a log's labels."""

    form: re.Pattern[str]
    rank: int | None  # which of its words ends in the rank
    host: int | None  # which of its words is the host
    nodes: tuple[str, ...] = ()  # its number counts within the host: the hosts in the order of their names
    each: int = 1  # ranks of one host, then

    def split(self, text: str) -> tuple[int | None, str, str] | None:
        """Rank, host and the rest of a line that carries it."""
        clock = _CLOCK.match(text)
        match = self.form.match(text, clock.end() if clock else 0)
        if match is None:
            return None
        words = match.groups()
        number = _NUMBER.match(words[self.rank]) if self.rank is not None else None
        if self.rank is not None and number is None:
            return None
        host = words[self.host] if self.host is not None else ""
        return int(number["number"]) if number else None, host, text[match.end() :]

    def rank_of(self, number: int, host: str) -> int | None:
        """The rank of the whole job."""
        if not self.nodes:
            return number
        return self.nodes.index(host) * self.each + number if host in self.nodes else None


def learn_label(lines: Iterable[str]) -> Label | None:
    """The label that most lines carry, None where there is none; `lines` without any that a known label begins."""
    seen: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    said: dict[str, set[str]] = defaultdict(set)  # behind a label stands this and that, behind a row's first cells not
    count = 0
    for line in lines:
        clock = _CLOCK.match(line)
        text = line[clock.end() if clock else 0 :][:_LONGEST]
        if not text.strip():
            continue
        count += 1
        for prefix in _prefixes(text):
            shape = _WORD.sub("\0", prefix)
            seen[shape].append(tuple(_WORD.findall(prefix)))
            said[shape].add(_WORD.sub("\0", text[len(prefix) :]))
    labels: list[tuple[int, int, int, Label]] = []
    for shape, rows in seen.items():
        least = max(_LEAST_LINES, _LEAST_SHARE * count)
        if len(rows) < least or "\0" not in shape or len(said[shape]) < 2 or _NO_LABEL.search(shape):
            continue
        if (found := _columns(shape, rows)) is not None:
            known = 2 * (found.rank is not None) + (found.host is not None)
            labels.append((len(rows) * known, known, len(shape.strip()), found))
    # The longest form says most, among those that about as many lines carry.
    most = max((weight for weight, *_ in labels), default=0)
    return max(
        (each for each in labels if each[0] >= _ABOUT * most), key=lambda each: each[1:3], default=(0, 0, 0, None)
    )[3]


def _prefixes(text: str) -> list[str]:
    """The beginnings of a line that may be its label."""
    ends = [m.end() for m in (_ENDS.finditer(text))]
    ends += [m.end() for m in (_TWO_WORDS.match(text),) if m]
    # What stands indented behind a label is not the label's.
    return list(
        dict.fromkeys(text[:end].rstrip() + " " * text[end - 1].isspace() for end in sorted(ends)[:_MOST_FORMS])
    )


def _columns(shape: str, rows: list[tuple[str, ...]]) -> Label | None:
    """Which of the words in a form is the rank, which the host."""
    before = re.split("\0", shape)
    named, plain, bare = None, None, None
    for at in range(len(rows[0])):
        values = [row[at] for row in rows]
        stems = {m["stem"] if (m := _NUMBER.match(v)) else None for v in values}
        if None in stems or len(stems) != 1:
            continue
        stem = (stems.pop() or "").lower()
        numbers = [int(_NUMBER.match(v)["number"]) for v in values]  # type: ignore[index]
        stem = re.split(r"[-_.]", stem.rstrip("-_"))[-1] if stem else ""
        word = re.findall(r"[a-z_]+", before[at].lower())
        identity = stem in _IDENTITY or (not stem and bool(word) and word[-1] in _IDENTITY)
        if not _dense(numbers):
            continue
        if identity and named is None:
            named = at
        elif (
            (plain is None or (bare is None and not stem))
            and _returns(numbers)
            and not (word and word[-1] in ("step", "iter", "epoch", "iteration"))
        ):
            plain, bare = at, at if not stem else None  # a number by itself before one that ends a name
    if named is not None and bare is not None and all("-" in row[named] for row in rows):
        named = None  # a pod's or a host's number, beside the rank's
    rank = named if named is not None else plain
    host = _host_column(rows, rank)
    if rank is None and host is None:
        return None
    own = [at for at in (rank, host) if at is not None]
    told = {tuple(row[at] for at in own) for row in rows}
    rest = [{row[at] for row in rows} for at in range(len(rows[0])) if at not in own]
    if len(set(rows)) > _EACH * len(told) or any(len(each) > 1 and all(map(str.isdigit, each)) for each in rest):
        return None  # more than who and where varies in it: what the line says has begun
    nodes: tuple[str, ...] = ()
    each = 1
    if rank is not None and host is not None and host != rank:
        places = defaultdict(set)
        for row in rows:
            places[row[rank]].add(row[host])
        if any(len(hosts) > 1 for hosts in places.values()):
            nodes = tuple(sorted({row[host] for row in rows}, key=_natural))
            each = max(int(_NUMBER.match(row[rank])["number"]) for row in rows) + 1  # type: ignore[index]
    pattern = "".join(
        re.sub(r"(?:\\ )+", r"\\s+", re.escape(part))
        + ("([A-Za-z0-9_.-]*\\d[A-Za-z0-9_.-]*)" if i < len(before) - 1 else "")
        for i, part in enumerate(before)
    )
    pattern = pattern.removesuffix(r"\s+") + r"\s?" if pattern.endswith(r"\s+") else pattern  # a frame stands indented
    return Label(re.compile(rf"\s*{pattern}"), rank, host, nodes, each)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _dense(numbers: list[int]) -> bool:
    """Whether numbers count something from nought on."""
    values = set(numbers)
    return len(values) > 1 and min(values) <= 1 and max(values) < 4 * len(values) + 4


def _returns(numbers: list[int]) -> bool:
    """Whether a number comes back after others: what counts steps or rows does not."""
    return any(b < a for a, b in pairwise(numbers)) and len(numbers) >= _AGAIN * len(set(numbers))


def _host_column(rows: list[tuple[str, ...]], rank: int | None) -> int | None:
    for at in range(len(rows[0])):
        values = {row[at] for row in rows}
        if any(_NO_HOST.search(v) or not re.match(r"[A-Za-z]|\d+\.\d+\.\d+\.\d", v) for v in values):
            continue
        stems = Counter(re.sub(r"\d+", "", v) for v in values)
        if at == rank:  # a pod's name ends in its number
            last = {re.split(r"[-_.]", v.rstrip("0123456789").rstrip("-_"))[-1].lower() for v in values}
            if all("-" in v for v in values) and not last & _IDENTITY - {
                "worker",
                "w" * all(v.count("-") > 1 for v in values),
            }:
                return at
            continue
        if (
            len(values) > 1
            and len(stems) <= max(2, len(values) // 2)
            and (rank is not None or _returns_names(rows, at))
        ):
            return at
    return None


def _returns_names(rows: list[tuple[str, ...]], at: int) -> bool:
    """Whether names come back: what a label holds does, what a table lists does not."""
    return len(rows) > 2 * len({row[at] for row in rows})
