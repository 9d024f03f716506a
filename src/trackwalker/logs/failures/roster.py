"""Which rank runs on which host, from the tables that launchers and trainers print at the front of a log.

Rows below a heading that names both, ranges and lists of ranks beside a host, host files whose slots are counted on. A
table counts only as a whole: hosts look like hosts, ranks are counted once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count, takewhile

from trackwalker.logs.scanning.lines import Body, holds

_NCCL_START = re.compile(
    rb"(?m)^ *(\d{1,6}): ([A-Za-z][\w.-]{1,63}):\d{1,8}:\d{1,8} \[(\d{1,3})\] NCCL INFO [^\n]{0,120}?\brank (\d{1,6}) nranks \d"  # noqa: E501
)
_ELASTIC = re.compile(r"^\s*rank\s+: (\d{1,6}) \(local_rank: (\d{1,3})\)")
_HOST = r"(?P<host>(?=[\w.-]*[A-Za-z])(?=[\w.-]*\d)[A-Za-z0-9][\w.-]{1,63}|(?:\d{1,3}\.){3}\d{1,3})"
_NAMED = (
    r"(?P<host>(?=[\w.-]*[A-Za-z])(?=[\w.-]*[\d-])[A-Za-z0-9][\w.-]{1,63})"  # a host, where a word says that it is one
)
_SPAN = r"\[?\(?(?P<ranks>\d{1,6}(?:\s*(?:-|\.\.|to|–)\s*\d{1,6}|(?:,\s?\d{1,6})*))\)?\]?"
_JOINED = r"['\"]?\s*(?:->|=>|→|:|=|@|\bon\b|\bat\b|\|)\s*(?:host(?:name)?|node)?[ =:]?\s*['\"]?"
_BESIDE = (
    re.compile(
        rf"(?i)\b(?:global[ _])?(?:ranks?|process(?:es)?|workers?|tasks?)[ =:]{{1,2}}{_SPAN}{_JOINED}{_HOST}(?![\w.-])"
    ),
    re.compile(
        rf"(?i)(?<![\w.-]){_HOST}{_JOINED}(?:global[ _])?(?:ranks?|process(?:es)?|workers?|tasks?)[ =:]{{1,2}}{_SPAN}(?![\w.])"  # noqa: E501
    ),
)
# A range of ranks in a line of one host: its label, or the host that it tells of.
_RANGE = re.compile(
    rf"(?i)(?:^\W*|\b(?:on|is|host|node|pod|machine)[ =:]{{1,2}}){_NAMED}(?![\w.-])[^\n]{{1,200}}?"
    r"\b(?:ranks?|process(?:es)?|workers?)[ =:]{1,2}\[?(?P<ranks>\d{1,6}(?:\s?(?:-|\.\.|to|–)\s?\d{1,6}|(?:,\s?\d{1,6})+))\b"  # noqa: E501
)
_RANKS_HERE = re.compile(r"(?i)\b(?:global[ _])?ranks[ =:]{1,2}\[?(?P<ranks>\d{1,6}\s?(?:-|\.\.|–)\s?\d{1,6})\b")
_GLOBAL = re.compile(r"\bglobal_ranks=\[(?P<ranks>[\d, ]+)\]")  # torchelastic's agent, one a host
_DICT = re.compile(rf"['\"]{_HOST}['\"]: \[(?P<ranks>[\d, ]+)\]")
_SLOTS = re.compile(rf"^\s*{_HOST}(?:\s+(?:slots|max_slots|cpu)=|:)(?P<slots>\d{{1,4}})\s*(?:#.*|max[-_]slots=\d+)?$")
_GIVEN = re.compile(rf"(?:-H|--hosts?|-host|--hostlist)[ =]((?:{_HOST.replace('?P<host>', '')}:\d{{1,4}},?){{2,}})")
_RANK_HEAD = re.compile(r"(?i)^(?:global.?|world.?)?(?:rank|process(?:.?(?:index|id))?|proc|worker|task)s?$")
_HOST_HEAD = re.compile(r"(?i)^(?:host(?:.?name)?|node(?:.?name)?|machine|server|address|ip|pod)s?$")
_HEADS = (("rank", "proc", "worker", "task"), ("host", "node", "machine", "server", "address", "ip", "pod"))
_CELLS = (re.compile(r"\s*\|\s*"), re.compile(r"\t+|\s{2,}"), re.compile(r"\s*,\s*"), re.compile(r"\s+"))
_RULE = re.compile(r"^[\s|+:=-]*$")
_A_HOST = re.compile(rf"^{_HOST}$")
_MOST_ROWS = 1 << 14
_TOLD_BY = ("host", "node", "world", "rank", "slots", "process", "machine", "worker")
_LOOKS = re.compile(rf"(?i){'|'.join(_TOLD_BY)}|:\d+\s*$|\s-H\s")


def read_tables(lines: Sequence[str], hosts: Sequence[str] = ()) -> dict[int, str]:
    """The hosts by rank; `lines` without labels, `hosts` who wrote each of them where that is known."""
    found: dict[int, str] = {}
    counted: list[tuple[str, int]] = []
    for at, line in enumerate(lines):
        if not _looks(line):
            continue
        if (table := _below(lines, at)) and _once(table):
            found.update({r: h for r, h in table.items() if r not in found})
            continue
        for form in _BESIDE:
            if match := form.search(line):
                found.update({r: match["host"] for r in _ranks(match["ranks"]) if r not in found})
                break
        else:
            if match := _RANGE.search(line):
                found.update({r: match["host"] for r in _ranks(match["ranks"]) if r not in found})
            elif at < len(hosts) and hosts[at] and (match := _RANKS_HERE.search(line)):
                found.update({r: hosts[at] for r in _ranks(match["ranks"]) if r not in found})
        if (match := _GLOBAL.search(line)) and at < len(hosts) and hosts[at]:
            found.update(dict.fromkeys(_ranks(match["ranks"]), hosts[at]))
        if len(listed := list(_DICT.finditer(line))) > 1 or (listed and "INFO DICT" in line):
            found.update(dict(_listed([(m["host"], _ranks(m["ranks"])) for m in listed]).items()))
        if match := _SLOTS.match(line):
            counted.append((match["host"], int(match["slots"])))
        elif match := _GIVEN.search(line):
            given = [each.rpartition(":") for each in match[1].strip(",").split(",")]
            counted += [(host, int(slots)) for host, _, slots in given]
    if not found and len({h for h, _ in counted}) > 1:
        numbers = count()
        for host, slots in dict.fromkeys(counted):
            found.update({next(numbers): host for _ in range(min(slots, _MOST_ROWS))})
    return found


def _looks(line: str) -> bool:
    """Whether a line may be part of a table: most are not, and most of those without an expression."""
    if not (holds(line, _TOLD_BY) or line.rstrip()[-1:].isdigit() or "-" in line):
        return False
    return _LOOKS.search(line) is not None


def _ranks(text: str) -> list[int]:
    """A list or a range of numbers."""
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    if len(numbers) == 2 and "," not in text:
        return list(range(numbers[0], min(numbers[1], numbers[0] + _MOST_ROWS) + 1))
    return numbers


def _listed(each: list[tuple[str, list[int]]]) -> dict[int, str]:
    """Lists of several hosts: the ranks themselves, or where all begin at nought how many each host has."""
    numbers = count()
    if len(each) > 1 and all(ranks[:1] == [0] for _, ranks in each):
        return {next(numbers): host for host, ranks in each for _ in ranks}
    return {r: host for host, ranks in each for r in ranks}


def _below(lines: Sequence[str], at: int) -> dict[int, str]:
    """The rows below a heading that names ranks and hosts."""
    for cut in _CELLS if all(holds(lines[at], words) for words in _HEADS) else ():
        heads = cut.split(lines[at].strip())
        ranks = [i for i, head in enumerate(heads) if _RANK_HEAD.match(head.strip())]
        hosts = [i for i, head in enumerate(heads) if _HOST_HEAD.match(head.strip())]
        if not ranks or not hosts or len(heads) < 2:
            continue
        rows = list(lines[at + 1 : at + 1 + _MOST_ROWS])
        table: dict[int, str] = {}
        body = takewhile(
            lambda c: c is not None, (_row(cut, line, len(heads)) for line in rows if not _RULE.match(line))
        )
        for cells in body:
            told, host = cells[ranks[0]].strip(), cells[hosts[0]].strip()  # type: ignore[index]
            if not re.fullmatch(r"\d{1,6}(?:-\d{1,6})?", told) or not _A_HOST.match(host):
                break
            table.update(dict.fromkeys(_ranks(told), host))
        if len(table) > 1:
            return table
    return {}


def _row(cut: re.Pattern[str], line: str, wide: int) -> list[str] | None:
    cells = cut.split(line.strip())
    return cells if len(cells) >= wide else None


def _once(table: dict[int, str]) -> bool:
    """Whether its numbers count ranks: from nought on, without large holes."""
    return min(table) <= 1 and max(table) < 2 * len(table) + 2


def started_below(text: bytes) -> tuple[int, dict[int, str]]:
    """How many ranks a launcher's label holds, and its host: NCCL's start tells several ranks below it, in order."""
    told = [(int(m[1]), m[2].decode(), int(m[3]), int(m[4])) for m in _NCCL_START.finditer(text)]
    each = max((local for _, _, local, _ in told), default=0) + 1
    if each > 1 and all(rank == task * each + local for task, _, local, rank in told):
        return each, {task: host for task, host, _, _ in told}
    return 1, {}


def counted_below(bodies: Sequence[Body]) -> tuple[int, bool]:
    """How many ranks a node has, from the labels below those of nodes; and whether these count from 0 on each.

    They do where the highest is the same below all of several nodes. torchelastic's report tells both numbers.
    """
    highest: dict[int, int] = {}
    told = set()
    for body in bodies:
        number = body.local if body.local is not None else body.rank if body.below else None
        if body.task is not None and number is not None:
            highest[body.task] = max(number, highest.get(body.task, 0))
        if body.task and (match := _ELASTIC.match(body.text)):
            told.add((int(match[1]) - int(match[2])) / body.task)
    top = set(highest.values())
    each = told if len(told) == 1 else {number + 1 for number in top} if len(highest) > 1 else set()
    count = int(each.pop()) if len(each) == 1 else 1
    return count, len(highest) > 1 and max(highest.values()) < count
