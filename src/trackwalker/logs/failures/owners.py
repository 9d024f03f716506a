"""Which rank and host a writer is that a log's own labels tell of, from how the values in its lines go together.

A number that tells all writers apart and counts from nought is the rank. One that begins anew on each host is a place
there. Names that say neither (a process, a pod, a grid's coordinates) are those of the rank with which a line of the
start-up shows them. A host that is only counted (`node1`) is the name that a line shows beside it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trackwalker.logs.failures.reactions import reacts
from trackwalker.logs.scanning.labels import NO_HOST, Form, Values, family, is_host
from trackwalker.logs.scanning.lines import holds

_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_NUMBER = re.compile(r"^(.*?)(\d{1,6})$")
_JOINED = re.compile(r"^(?P<host>[A-Za-z][\w.-]*?\d[\w.-]*?)[-_.:](?P<stem>[A-Za-z]{0,6})(?P<number>\d{1,4})$")
_RANK_WORDS = frozenset({
    "rank", "r", "ranks", "grank", "global_rank", "world_rank", "proc", "process", "p", "task", "t", "pe", "member",
    "trainer", "process_index", "proc_id", "worker", "w", "replica", "who", "actor",
})  # fmt: skip
_HERE_WORDS = frozenset(
    {"local", "local_rank", "lrank", "lr", "gpu", "g", "cuda", "dev", "device", "slot", "card", "npu", "chip"}
)
_TELLS_RANK = re.compile(
    r"(?i)(?<!local)(?<!local[ _-])(?<!node)(?<!node[ _-])(?<!group[ _-])(?<![a-z])(?:global|world)?[ _-]?(?:rank|process(?:_index|_id| index)?|proc|worker|task|member|replica|trainer|actor)"  # noqa: E501
    r"(?:_?id)?[ _=:#-]{0,3}(\d{1,6})(?!-?[\w.])"
)
_RANK_STEMS = ("rank", "proc", "worker", "task", "member", "replica", "trainer", "actor")
_ONLY_RANK = re.compile(
    r"(?i)(?<!local)(?<!local[ _-])(?<!node)(?<!node[ _-])(?<!group[ _-])rank[ _=:#-]{0,3}(\d{1,6})(?![\w.])"
)
_ON = re.compile(
    r"(?i)(?:\b(?:on|at|host|hostname|node|nodename|machine|server|to)['\"]?[ =:]{1,3}['\"]?|@ ?|[-=]> ?|= )$"
)
_ADDRESS = re.compile(r"^\d{1,3}(?:\.\d{1,3}){3}$")
_PORT = re.compile(r":\d{2,5}\b(?!:)")
_INDEX_WORDS = frozenset({"node", "host", "worker", "pod", "machine", "n", "h", "server"})
_OF_WORLD = re.compile(r"(?<![\w./-])(\d{1,5})(?:/| of )(\d{1,5})(?![\w./])")
_NODE_NUMBER = re.compile(r"(?i)\b(?:node|host|machine)[ _-]?(?:rank|index|id|number|no)?[ =:#]{1,2}(\d{1,5})\b")
_MOST_LINES = 1200
_MOST_CELLS = 8


@dataclass(frozen=True)
class Label:
    """A form of labels, and who its writers are."""

    form: Form
    rank: int | None = None  # the place whose number is the rank
    host: int | None = None  # the place that holds the host
    outer: int | None = None  # the place that holds a node, and the one that counts within it
    inner: int | None = None
    nodes: tuple[str, ...] = ()  # in their order
    each: int = 1  # ranks of one node
    joined: bool = False  # places are parts of one word: a host and a number
    ranks: dict[Values, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of hosts that are only counted

    def of_hosts(self) -> Label:
        """The same without ranks."""
        return replace(self, rank=None, outer=None, inner=None, ranks={})

    def split(self, text: str) -> tuple[int | None, str, str] | None:
        """Rank, host and the rest of a line that carries it."""
        told = self.form.split(text)
        if told is None:
            return None
        values = _apart(told[0]) if self.joined else told[0]
        if values is None:
            return None
        rank = self.ranks.get(values)
        if rank is None and self.rank is not None:
            rank = _number(values[self.rank])
        if rank is None and self.outer is not None and self.inner is not None and values[self.outer] in self.nodes:
            here = _number(values[self.inner])
            rank = None if here is None else self.nodes.index(values[self.outer]) * self.each + here
        host = values[self.host] if self.host is not None else ""
        return rank, self.names.get(host, host), told[1]


def label_of(form: Form, lines: Sequence[str], known: dict[int, str]) -> Label | None:
    """Who the writers of a form are; `lines` of the log's front, `known` hosts by rank. None where it tells nobody."""
    writers = sorted(form.seen)
    joined = False
    names = [form.keys[i][0] for i in form.tells]
    if (split := [_apart(w) for w in writers]) and all(split) and _worth([w for w in split if w]):
        writers, joined, names = [w for w in split if w], True, ["", ""]
    columns = list(zip(*writers, strict=True))
    numbers = [_numbers(column) for column in columns]
    words = [_word(name, column) for name, column in zip(names, columns, strict=True)]
    hosts = (i for i, column in enumerate(columns) if set(column) <= set(known.values()))
    host = next(hosts, _host_place(columns, words, numbers))
    told = [i for i in range(len(columns)) if numbers[i] is not None or i == host]
    full = len({tuple(w[i] for i in told) for w in writers})
    whole = [i for i in told if numbers[i] is not None and len(set(columns[i])) == full and words[i] not in _HERE_WORDS]
    if host is None:  # nothing else tells that a number counts writers: none is left out, or a word or marks say it
        whole = [
            i for i in whole
            if words[i] in _RANK_WORDS or len(set(numbers[i] or ())) == max(numbers[i] or [0]) + 1
            or " " not in form.keys[form.tells[i]][1:3]
        ]  # fmt: skip
    whole.sort(key=lambda i: (words[i] not in _RANK_WORDS, i == host))
    label = Label(form, host=host, joined=joined)
    named = bool(whole) and "rank" in words[whole[0]]
    ranks = {} if named else _shown_with(writers, lines)
    rank = whole[0] if whole and not ranks else None
    if rank is not None and rank == host and not named:
        # A pod's number is its rank unless it is only a host's name, or a whole node.
        world = max(known, default=-1) + 1
        counts = words[rank] in _RANK_WORDS or (
            _dashed(columns[rank]) and sorted(numbers[rank] or ()) == list(range(full))
        )
        rank = rank if counts and world in (0, full) else None
    outer = inner = None
    nodes: tuple[str, ...] = ()
    each = 1
    if rank is None and not ranks:
        pairs = [
            (words[i] not in _HERE_WORDS, o != host, o, i)
            for i in told for o in told
            if i != o and numbers[i] is not None
            and len({(w[o], w[i]) for w in writers}) == full > len({w[o] for w in writers})
        ]  # fmt: skip
        outer, inner = min(pairs)[2:] if pairs else (host, None)
        if inner is not None and outer is not None:
            nodes = _order(set(columns[outer]), lines)
            each = max(numbers[inner] or [0]) + 1
            ranks = _places_there(writers, outer, inner, known)
        elif host is not None and not known and (listed := _listed(set(columns[host]), lines)):
            ranks = {w: listed.index(w[host]) for w in writers}
        else:
            alone = {h: r for r, h in known.items() if sum(h == each for each in known.values()) == 1}
            ranks = {w: alone[w[host]] for w in writers if host is not None and w[host] in alone}
    if rank is None and not ranks and outer is None and host is None:
        return None
    counted = host is not None and (numbers[host] is not None or _of_pods(columns[host]))
    names_of = named_by(set(columns[host]), lines) if host is not None and counted else {}
    if (
        host is not None
        and numbers[host] is not None
        and not names_of
        and words[host] in _INDEX_WORDS | _RANK_WORDS
        and not _dashed(columns[host])
    ):
        host = None
    return Label(form, rank, host, outer, inner, nodes, each, label.joined, ranks, names_of)


def _apart(values: Values) -> Values | None:
    """A host and a number that are one word."""
    if len(values) != 1:
        return None
    if match := _JOINED.match(values[0]):
        return match["host"], match["stem"] + match["number"]
    parts = tuple(part for part in values[0].split(".") if any(c.isdigit() for c in part))
    return tuple(sorted(parts, key=lambda part: not is_host(part))) if len(parts) == 2 else None


def _worth(writers: list[Values]) -> bool:
    """Whether words that can be taken apart are hosts with a number each: several hosts, numbers from nought."""
    hosts = {w[0] for w in writers}
    return len(hosts) > 1 and all(map(is_host, hosts)) and _numbers([w[1] for w in writers]) is not None


def _number(value: str) -> int | None:
    match = _NUMBER.match(value)
    return int(match[2]) if match else None


def _numbers(column: Sequence[str]) -> list[int] | None:
    """The numbers of values that count something from nought on, in one form."""
    matches = [_NUMBER.match(v) for v in column]
    if not all(matches) or len({m[1] for m in matches if m}) != 1:
        return None
    numbers = [int(m[2]) for m in matches if m]
    values = set(numbers)
    return numbers if min(values) <= 1 and max(values) < 4 * len(values) + 4 else None


def _word(name: str, column: Sequence[str]) -> str:
    """What a place is called: the word before it, or the one that its values begin with."""
    stem = (m[1] if (m := _NUMBER.match(column[0])) else "").rstrip("-_.:#")
    return (
        (re.split(r"[-_.]", stem)[-1] or name.rpartition(".")[2]).lower() if stem else name.rpartition(".")[2].lower()
    )


def _dashed(column: Sequence[str]) -> bool:
    return all("-" in v for v in column)


def _of_pods(column: Sequence[str]) -> bool:
    return all(v.count("-") > 1 and not v.startswith("ip-") for v in column)


def _host_place(columns: list[tuple[str, ...]], words: list[str], numbers: list[list[int] | None]) -> int | None:
    """The place that holds hosts: names with letters and numbers, of one or two forms."""
    found = []
    for i, column in enumerate(columns):
        values = set(column)
        if all(_ADDRESS.match(v) for v in values) or (
            all(re.match(r"[A-Za-z]", v) for v in values)
            and not any(NO_HOST.search(v) for v in values)
            and len({family(v) for v in values}) <= max(2, len(values) // 2)
        ):
            found.append((numbers[i] is not None and not _dashed(column), numbers[i] is not None, i))
    return min(found)[2] if found else None


def _shown_with(writers: list[Values], lines: Sequence[str]) -> dict[Values, int]:
    """The rank beside which a line shows a writer's name: of most writers, and each its own."""
    rows: list[tuple[int, Counter[str]]] = []
    for line in lines[:_MOST_LINES]:
        numbers = _ranks_in(line)
        if len(numbers) == 1 and not reacts(line):
            words = Counter(_WORD.findall(line))
            own = next(m for form in (_ONLY_RANK, _TELLS_RANK) if (m := form.search(line)))
            words.subtract(_WORD.findall(own[0].strip()))
            rows.append((int(numbers.pop()), words))
    rows += _counted(lines) + _of_world(lines)
    found: dict[Values, int] = {}
    for writer in writers:
        beside = [rank for rank, words in rows if all(words[value] > 0 for value in writer)]
        if beside and any(len(v) > 1 for v in writer) and 2 * beside.count(beside[0]) > len(beside):
            found[writer] = beside[0]
    whole = 2 * len(found) > len(writers) and len(set(found.values())) == len(found)
    return found if whole else {}


def _ranks_in(line: str) -> set[str]:
    """The numbers that a line calls ranks."""
    if not holds(line, _RANK_STEMS):
        return set()
    return {m[1] for m in _ONLY_RANK.finditer(line)} or {m[1] for m in _TELLS_RANK.finditer(line)}


def _of_world(lines: Sequence[str]) -> list[tuple[int, Counter[str]]]:
    """Lines that say one number of a whole which is the same in all, and say most of them: "I am 3/24"."""
    found: dict[int, list[tuple[int, Counter[str]]]] = defaultdict(list)
    for line in lines[:_MOST_LINES]:
        if (match := _OF_WORLD.search(line)) and int(match[1]) < int(match[2]):
            words = Counter(_WORD.findall(line))
            words.subtract([match[1], match[2]])
            found[int(match[2])].append((int(match[1]), words))
    return [row for world, rows in found.items() if len({r for r, _ in rows}) > world / 2 > 1 for row in rows]


def _counted(lines: Sequence[str]) -> list[tuple[int, Counter[str]]]:
    """Rows that are alike and whose first number counts them: the number, and the other words."""
    alike: dict[str, list[list[str]]] = defaultdict(list)
    for line in lines[:_MOST_LINES]:
        words = _WORD.findall(line)
        if len(words) <= _MOST_CELLS:
            alike[re.sub(r"\s+", " ", re.sub(r"\d+", "#", line.strip()))].append(words)
    out = []
    for rows in alike.values():
        firsts = [next((w for w in row if w.isdigit()), "") for row in rows]
        if len(rows) > 1 and firsts == [str(n) for n in range(len(rows))]:
            for n, row in enumerate(rows):
                others = Counter(row)
                others.subtract([str(n)])
                out.append((n, others))
    return out


def actors_shown(actors: set[str], lines: Sequence[str]) -> dict[str, int]:
    """The ranks of processes or pods that a launcher's labels name; `lines` with those labels."""
    writers = {tuple(w for w in _WORD.findall(actor) if any(c.isdigit() for c in w)): actor for actor in actors}
    return {writers[w]: rank for w, rank in _shown_with(sorted(w for w in writers if w), lines).items()}


def rows_shown(lines: Sequence[str], world: int) -> dict[int, str]:
    """The hosts by rank from rows that are alike, in whatever words: each has a name and a number that counts them.

    The numbers are ranks, or the first ranks of hosts, or, where there are fewer than ranks, those of the hosts.
    """
    alike: dict[str, list[list[str]]] = defaultdict(list)
    for line in lines[:_MOST_LINES]:
        words = [w for w in _WORD.findall(line) if any(c.isdigit() for c in w)]
        if 2 <= len(words) <= _MOST_CELLS and any(is_host(w) for w in words):
            alike[re.sub(r"\s+", " ", re.sub(r"\d+", "#", line.strip()))].append(words)
    for rows in alike.values():
        if len(rows) < 2 or len({len(row) for row in rows}) > 1:
            continue
        columns = list(zip(*rows, strict=True))
        hosts = next((c for c in columns if all(map(is_host, c)) and len(set(c)) > 1), None)
        counts = [[int(v) for v in c] for c in columns if all(v.isdigit() and len(v) < 7 for v in c)]
        for numbers in counts if hosts is not None else ():
            first, step = numbers[0], numbers[1] - numbers[0]
            if first != 0 or step < 1 or numbers != list(range(0, step * len(rows), step)):
                continue
            each = max(step, -(-world // len(rows)))
            return {n * each + i: host for n, host in enumerate(hosts or ()) for i in range(each)}
    return {}


def _places_there(writers: list[Values], outer: int, inner: int, known: dict[int, str]) -> dict[Values, int]:
    """The ranks by node and place there, where it is known which ranks a node has."""
    here: dict[str, list[int]] = defaultdict(list)
    for rank, host in sorted(known.items()):
        here[host].append(rank)
    found = {}
    for writer in writers:
        number, ranks = _number(writer[inner]), here.get(writer[outer], [])
        if number is not None and number < len(ranks):
            found[writer] = ranks[number]
    return found if len(found) == len(writers) else {}


def _order(nodes: set[str], lines: Sequence[str]) -> tuple[str, ...]:
    """Nodes in the order in which one line lists them all, or of their numbers."""
    told: dict[str, int] = {}
    for line in lines[:_MOST_LINES]:
        here = {word for word in _WORD.findall(line) if word in nodes}
        if len(here) == 1 and (match := _NODE_NUMBER.search(line)):
            told.setdefault(here.pop(), int(match[1]))
    if told.keys() == nodes and len(set(told.values())) == len(nodes):
        return tuple(sorted(nodes, key=told.__getitem__))
    return _listed(nodes, lines) or tuple(sorted(nodes, key=_natural))


def _listed(nodes: set[str], lines: Sequence[str]) -> tuple[str, ...]:
    for line in lines[:_MOST_LINES]:
        listed = [word for word in _WORD.findall(line) if word in nodes]
        if len(set(listed)) == len(nodes) > 1:
            return tuple(dict.fromkeys(listed))
    return ()


def hosts_listed(lines: Sequence[str], world: int) -> dict[int, str]:
    """The hosts by rank where one line lists them: ranks fill one host after the other."""
    for line in lines[:_MOST_LINES]:
        hosts = [word for word in dict.fromkeys(_WORD.findall(line)) if is_host(word)]
        alike = Counter(family(word) for word in hosts).most_common(1)
        if alike and alike[0][1] > 1 and world % alike[0][1] == 0:
            hosts = [word for word in hosts if family(word) == alike[0][0]]
            return {rank: hosts[rank * len(hosts) // world] for rank in range(world)}
    return {}


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def named_by(counted: set[str], lines: Sequence[str]) -> dict[str, str]:
    """The names of hosts that are only counted: each stands in one line beside one name of a form that all share."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for line in lines[:_MOST_LINES]:
        words = _WORD.findall(line)
        own = {w for w in words if w in counted}
        if len(own) != 1:
            continue
        one = own.pop()
        for at, word in enumerate(words):
            if word not in counted and is_host(word) and not word.startswith(one):
                found[family(word)].setdefault(one, word)
                found[f"{at} {len(words)}"].setdefault(one, word)  # names of no common form: the column of a table
            elif word not in counted and "-" in word and word.islower() and not any(c.isdigit() for c in word):
                found["-"].setdefault(one, word)  # a name without a number, where it is each one's own
    whole = [m for m in found.values() if m.keys() == counted and len(set(m.values())) == len(counted)]
    return whole[0] if whole else {}


def hosts_shown(lines: Sequence[str]) -> dict[int, str]:
    """The hosts by rank, where lines show one rank and one name of a form whose names go with ranks throughout."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    weight: Counter[str] = Counter()
    broken: set[str] = set()
    met: set[str] = set()  # addresses with a port: several ranks tell where they meet, not where they are
    for line in lines[:_MOST_LINES]:
        numbers = _ranks_in(line)
        words = _WORD.finditer(line) if len(numbers) == 1 else iter(())
        names = [m for m in words if is_host(m[0]) and "/" not in line[m.end() : m.end() + 1]]  # a folder is no host
        if not names or reacts(line):
            continue
        rank = int(numbers.pop())
        for match in names:
            kin = family(match[0])
            if _PORT.match(line, match.end()):
                met.add(kin)
            weight[kin] += 2 if _ON.search(line[: match.start()]) else len(match[0]) > 3
            if found[kin].setdefault(rank, match[0]) != match[0]:
                broken.add(kin)
    broken |= {kin for kin in met if len(set(found[kin].values())) == 1}
    families = [f for f, m in found.items() if f not in broken and len(m) > 1 and weight[f] >= len(m)]
    return max((found[f] for f in families), key=lambda m: (len(m), len(set(m.values())) > 1), default={})
