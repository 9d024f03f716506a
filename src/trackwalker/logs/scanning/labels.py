"""Who wrote a line, learned from the log: the places in its lines whose values tell writers apart.

Launchers' own labels are known (`lines.py`). Others are the site's: `r03 |`, `<3@cn07>`, `… (w3/cn07)`, fields of a
record called `who` and `where`, process numbers, coordinates in a grid. No form of label is assumed. A line is taken
as words before its text, words behind it, or named fields; a place counts where its values are few and come back after
others: a counter of steps does not come back, a time is new in every line. Which of the places is the rank, the host,
a place on the host, or only a name for all that, follows from how their values go together (`owners.py`).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

# What stands in a head and is no writer's: times, levels, places in the code.
_ASIDE = re.compile(
    r"(?P<time>\b\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\d)"
    r"|\b(?:\d\d/\d\d(?:/\d{2,4})? )?\d\d:\d\d:\d\d(?:[.,]\d+)?Z?\b|\b1[5-9]\d{8}(?:\.\d+)?\b|^\W?\d+\.\d{3,}\b)"
    r"|(?P<level>(?<![\w-])(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERRO?R?|CRIT(?:ICAL)?|FATAL?|PANIC|SEVERE)(?![\w-])"
    r"|(?<=[\[|(<])\s*(?:trace|debug|info|notice|warn(?:ing)?|error|err|crit(?:ical)?|fatal|[IWEFDC])\s*(?=[\]|)>\s])"
    r"|(?:^|(?<=\s))[IWEFD](?=\d{4}\s|\s+\S+:|\s*\|))(?:(?<=[IWEFD])\d{4}(?=\s))?"
    r"|(?P<source>[\w./-]+\.(?:py|cc|cpp|cu|c|h|rs|go|java)[:(]\d+\)?)"
)
_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_PAIR = re.compile(r'(?:^|(?<=[\s,;\[({]))([A-Za-z_][\w.]{0,40})=("(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s,;\])}]*)')
_NAME = re.compile(r"(?<![\w.-])([A-Za-z_]{1,20})([=:# ])$")
_LEVELS = re.compile(
    r"(?i)^(?:trace|debug|info|notice|warn(?:ing)?|error|err|crit(?:ical)?|fatal|panic|[iwefdc]|[1-6]0)$"
)
_GRAVE = {"E": "ERROR", "ERROR": "ERROR", "ERR": "ERROR", "ERRO": "ERROR", "FATA": "FATAL", "F": "FATAL", "FATAL": "FATAL", "PANIC": "FATAL",  # noqa: E501
          "C": "CRITICAL", "CRIT": "CRITICAL", "CRITICAL": "CRITICAL", "SEVERE": "ERROR", "40": "ERROR",
          "50": "CRITICAL", "W": "WARNING", "WARN": "WARNING", "WARNING": "WARNING", "30": "WARNING"}  # fmt: skip
_SPEAKS_ITSELF = re.compile(
    r"\s|Traceback |(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Fault|Interrupt)\b(?::|$)|(?:\w+\.)+[A-Z]\w+: "
)
COUNTERS = frozenset({
    "step", "steps", "iter", "iters", "iteration", "epoch", "update", "batch", "it", "loss", "lr", "took", "layer",
    "attempt", "try", "retry", "version", "seed", "line", "port", "offset", "queue", "done", "chunk", "shard", "part",
})  # fmt: skip
_RULES = frozenset({"==", "--", "##", "**", "~~", ">>", "++"})  # headings
_STACK = re.compile(r"\s*(?:frame )?#\d+:? ")  # its frames are counted, and nobody wrote them apart
NO_HOST = re.compile(
    r"(?i)^(?:cuda|hip|gpu|mlx\d?|ib|eth|dev|device|core|cpu|numa|stage|step|epoch|iter|layer|shard|worker|rank|proc|task|socket|slot"
    r"|dp|tp|pp|ep|cp|lr|r|p|w|t|g|v|d)?[:_-]?\d+$|\.(?:py|cc|cpp|h|rs|go|json|ya?ml|log|out|err|sh)$|^v?\d+(?:\.\d+)*\w?$|^[IWEF]\d{4}$"
    r"|^(?:bf|fp|int|float)\d+$|^[0-9a-f]+$|e[+-]\d+$"
)
_HEAD = 120  # characters of a line in which a label stands
_DEEPEST = 5  # places of one label
_LEAST_LINES = 6
_LEAST_SHARE = 0.15  # of the lines
_MOST_LABELS = 4
_FEW, _BACK, _MOSTLY = 0.75, 0.08, 0.3  # of the lines: distinct values, those that come back, those of who speaks most
_MOST_WORDS = 2  # without a number, before a place: more are a sentence
Key = tuple[str, str, str, int]  # a name before the value, what stands left and right of it, words that were passed
Values = tuple[str, ...]


@dataclass(frozen=True)
class _Place:
    key: Key
    value: str
    start: int
    end: int
    word: str = ""  # the word before it, whatever joins them


@dataclass(frozen=True)
class Form:
    """Where in a line its writer stands, and what the writers are called there."""

    kind: str  # "head", "tail", "json" or "pairs"
    keys: tuple[Key, ...]  # of a record: (field, "", "")
    tells: tuple[int, ...]  # which of the keys vary
    seen: frozenset[Values]
    families: tuple[frozenset[str], ...]  # values without their digits, of each place that varies
    said: str = ""  # the field of a record that holds its text
    level: str = ""

    def split(self, text: str) -> tuple[Values, str] | None:
        """What the places hold, and the line without them; None for a line of another form."""
        if self.kind in ("json", "pairs"):
            fields = _fields(text, self.kind)
            if fields is None or any(key[0] not in fields for key in self.keys):
                return None
            values = tuple(fields[self.keys[i][0]] for i in self.tells)
            return values, _levelled(fields.get(self.level, ""), fields.get(self.said, text))
        places = _places(text, self.kind == "tail", len(self.keys))
        if len(places) < len(self.keys) or any(p.key != k for p, k in zip(places, self.keys, strict=False)):
            return None
        values = tuple(places[i].value for i in self.tells)
        if values not in self.seen and any(
            _bare(v) not in family for v, family in zip(values, self.families, strict=True)
        ):
            return None
        return values, _rest(text, places[len(self.keys) - 1], self.kind == "tail")


def learn_forms(lines: Iterable[str]) -> list[Form]:
    """The forms in which many lines tell who wrote them, the most telling first."""
    texts = [line for line in lines if line.strip() and line[:2] not in _RULES and not _STACK.match(line)]
    least = max(_LEAST_LINES, int(_LEAST_SHARE * len(texts)))
    forms: list[tuple[int, Form]] = []
    for kind in ("json", "pairs"):
        records = [fields for text in texts if (fields := _fields(text, kind))]
        if len(records) >= least and (form := _of_records(kind, records)) is not None:
            forms.append((len(records), form))
    plain = [text for text in texts if not text.startswith("{")]
    for kind in ("head", "tail"):
        if any(2 * n > len(texts) for n, _ in forms):
            break
        rows = [(text, _places(text, kind == "tail", _DEEPEST)) for text in plain]
        forms += _grow(kind, rows, 0, least)
    forms.sort(key=lambda each: (each[1].kind in ("head", "tail"), -len(each[1].tells), -len(each[1].keys), -each[0]))
    return [form for _, form in forms[:_MOST_LABELS]]


def _grow(
    kind: str, rows: list[tuple[str, list[_Place]]], depth: int, least: int, free: bool = False
) -> list[tuple[int, Form]]:
    """Forms of lines that are alike up to a place: as long as their values are few and come back."""
    by_key: dict[Key, list[tuple[str, list[_Place]]]] = defaultdict(list)
    for row in rows:
        if len(row[1]) > depth:
            by_key[row[1][depth].key].append(row)
    found: list[tuple[int, Form]] = []
    for alike in by_key.values():
        if len(alike) < least:
            continue
        places = [row[1][depth] for row in alike]
        words = Counter(p.word.lower() for p in places).most_common(1)[0]
        counts = words[0] in COUNTERS and words[1] > len(places) / 2
        named = places[0].key[0].endswith("rank")
        if (not few([p.value for p in places]) and not named) or counts:
            if not free and not counts:  # a time of the site's own, a number of the line
                found += _grow(kind, alike, depth + 1, max(least, int(0.8 * len(alike))), True)
            continue
        deeper = _grow(kind, alike, depth + 1, max(least, int(0.8 * len(alike))), free)
        found += [*deeper, *_form(kind, alike, depth + 1)]  # lines that do not go on alike have the shorter one
    return found


def _form(kind: str, rows: list[tuple[str, list[_Place]]], depth: int) -> list[tuple[int, Form]]:
    """The form of lines that share so many places, with what varies in them."""
    columns = [[row[1][i].value for row in rows] for i in range(depth)]
    said = {_bare(_rest(text, places[len(columns) - 1], kind == "tail"))[:40] for text, places in rows}
    if len(said) < 2:  # behind a label stands this and that, behind a row's first cells not
        return []
    tells = tuple(
        i
        for i, column in enumerate(columns)
        if len(set(column)) > 1 and (few(column) or rows[0][1][i].key[0].endswith("rank"))
    )
    if not tells:
        return []
    # Who wrote one line only may be no writer, but what a line of another form begins with; one who is called like others is.  # noqa: E501
    counts = Counter(zip(*(columns[i] for i in tells), strict=True))
    named = any(row.key[0].endswith("rank") for row in rows[0][1][:depth])
    often = {tuple(map(_bare, writer)) for writer, n in counts.items() if n > 1 or named}
    seen = frozenset(writer for writer in counts if tuple(map(_bare, writer)) in often)
    columns = [[writer[tells.index(i)] for writer in seen] if i in tells else columns[i] for i in range(len(columns))]
    if len(seen) < 2:
        return []
    families = tuple(frozenset(map(_bare, columns[i])) for i in tells)
    return [(len(rows), Form(kind, tuple(rows[0][1][i].key for i in range(len(columns))), tells, seen, families))]


def _of_records(kind: str, records: list[dict[str, str]]) -> Form | None:
    """Of records: the fields whose values are few and come back, the one that speaks, the one that tells how grave."""
    names = [name for name, n in Counter(k for r in records for k in r).items() if n >= 0.8 * len(records)]
    columns = {name: [r[name] for r in records if name in r] for name in names}
    level = next((n for n in names if all(_LEVELS.match(v) for v in set(columns[n]))), "")
    speaks = [n for n in names if sum(" " in v for v in columns[n]) > 0.5 * len(columns[n])]
    said = max(speaks, key=lambda n: len(set(map(_bare, columns[n]))), default="")
    tells = [
        n for n in names
        if n not in (level, said) and n.lower() not in COUNTERS and len(set(columns[n])) > 1 and few(columns[n])
        and all(re.search(r"\d", v) and " " not in v for v in set(columns[n]))
    ]  # fmt: skip
    if not said or not tells:
        return None
    seen = frozenset(tuple(r[n] for n in tells) for r in records if all(n in r for n in tells))
    families = tuple(frozenset(map(_bare, columns[n])) for n in tells)
    return Form(kind, tuple((n, "", "", 0) for n in tells), tuple(range(len(tells))), seen, families, said, level)


def few(values: list[str]) -> bool:
    """Whether values are one, or a few of which some come back after others or one is there most of the time."""
    distinct = set(values)
    if len(distinct) == 1:
        return True
    if len(distinct) <= _FEW * len(values) and Counter(values).most_common(1)[0][1] >= _MOSTLY * len(values):
        return True
    met: set[str] = set()
    back = 0
    for before, value in zip(["", *values], values, strict=False):
        back += value != before and value in met
        met.add(value)
    return len(distinct) <= _FEW * len(values) and back >= max(2, _BACK * len(values))


@lru_cache(4096)
def is_host(word: str) -> bool:
    """Whether a word has the form of a host's name."""
    return word[:1].isalpha() and len(word) > 2 and any(map(str.isdigit, word)) and NO_HOST.search(word) is None


def family(word: str) -> str:
    """A name without its numbers, and without the letter behind the last of them."""
    return re.sub(r"#[a-z]?$", "#", re.sub(r"\d+", "#", word))


def _bare(text: str) -> str:
    return re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", text)


def _places(text: str, tail: bool, most: int) -> list[_Place]:
    """The words with a number at one end of a line, from that end on."""
    begin = max(0, len(text) - _HEAD) if tail else 0
    part = text[begin:] if tail else text[:_HEAD]
    aside = _ASIDE.sub(lambda m: "\1" * len(m[0]), part)
    found: list[_Place] = []
    words = list(_WORD.finditer(aside))
    passed = 0
    for match in reversed(words) if tail else words:
        if not any(c.isdigit() for c in match[0]):
            passed += 1
            if passed > _MOST_WORDS:
                break
            continue
        start, end = match.span()
        before = _NAME.search(aside[max(0, start - 24) : start])
        left, right = _mark(aside[:start][::-1]), _mark(aside[end:])
        # Between spaces only its name tells a number from any other of a sentence.
        joined = before is not None and (
            before[2] != " " or left == right == " " or aside[: start - len(before[0])].rstrip()[-1:] in "[(<|"
        )
        key = (before[1].lower() if before and joined else "", left, right, passed)
        passed = 0
        found.append(_Place(key, match[0], begin + start, begin + end, before[1] if before else ""))
        if len(found) == most:
            break
    return found


def _mark(beside: str) -> str:
    """What a word stands beside: a mark, with or without a space between, or a space."""
    near = beside.lstrip()[:1]
    return near if near == "|" else " " if beside[:1].isspace() or beside[:1] in ("", "\1") else beside[:1]


def _rest(text: str, last: _Place, tail: bool) -> str:
    """What a line says beside its label, with its level before it."""
    if tail:
        head = text[: last.start]
        head = head[: -len(last.key[0]) - 1] if last.key[0] else head
        return re.sub(r"[\s\[({<|@/,-]*$", "", head)
    rest = re.sub(r"^[^\w\s\"'/]*", "", text[last.end :])
    level = ""
    for aside in _ASIDE.finditer(text[:_HEAD]):
        if aside.start() < last.start or not text[last.end : aside.start()].strip(" \t|:,[]()<>-"):
            level = aside["level"] or level
            if aside.start() >= last.start:
                rest = re.sub(r"^[^\w\s\"'/]*", "", text[aside.end() :])
    rest = re.sub(r"^\d+:", "", rest) if text[last.end : last.end + 1] == ":" else rest  # a line of a file
    rest = rest[1:] if rest[:1] in (" ", "\t") else rest
    if not level and (
        match := re.match(r"([IWEFDC])\s+(?=\S)|(info|debug|warn(?:ing)?|error|fatal|critical): ?", rest)
    ):
        level, rest = match[1] or match[2], rest[match.end() :]
    if rest.lstrip()[:1] in ("|", "]", ":", ">", ",", ")"):
        rest = re.sub(r"^\s*[|\]:>,)]+ ?", "", rest)
    return _levelled(level.strip(), rest)


def _levelled(level: str, said: str) -> str:
    said = said[1:-1] if len(said) > 1 and said[0] == said[-1] == '"' else said
    word = _GRAVE.get(re.sub(r"\d{4}$", "", level).upper(), "")
    return said if not word or _SPEAKS_ITSELF.match(said) or said.startswith(word) else f"{word} {said}"


def _fields(text: str, kind: str) -> dict[str, str] | None:
    """A record's fields by their names; None for a line that is none."""
    if kind == "pairs":
        pairs = {m[1]: m[2].strip("\"'") for m in _PAIR.finditer(text[:2000])} if text.count("=") > 2 else {}
        return pairs if len(pairs) > 2 else None
    if not text.startswith("{"):
        return None
    try:
        held = json.loads(text)
    except ValueError:
        return None
    found: dict[str, str] = {}
    level = [("", held)] if isinstance(held, dict) else []
    while level and len(found) < 64:
        inside = []
        for path, each in level:
            for name, value in each.items():
                if isinstance(value, dict):
                    inside.append((f"{path}{name}.", value))
                elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
                    found.setdefault(f"{path}{name}", str(value))
        level = inside
    return found or None
