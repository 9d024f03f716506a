"""Tables in a text, by their own header: comma separated, boxed, aligned by blanks; and blocks of "name : value".

What a column is, its name tells; nothing here knows which program printed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_NUMBER = re.compile(r"^[-+]?(\d[\d,]*(?:\.\d*)?|\.\d+)\s*(?:%|[A-Za-z][\w/%]*)?$")
_GAP = re.compile(r"\s{2,}|\t+")
_RULE = re.compile(r"^[\s|+=-]+$")
_PAIR = re.compile(r"^(?P<indent>\s*)(?P<name>[A-Za-z][\w %()./-]{0,60}?)\s*:\s+(?P<value>\S.*?)\s*$")
_SECTION = re.compile(r"^(?P<indent>\s*)(?P<name>[A-Z][\w %()./-]{0,60}?)\s*$")
_DEVICE = re.compile(r"^GPU \S+:\S+\s*$")
_LEAST = 3  # columns
_MOST_ROWS = 2000


@dataclass
class Row:
    """One row: where it stands, how it is written, its cells by the columns' names in small letters."""

    line: int
    text: str
    cells: dict[str, str]

    def number(self, *words: str, without: Sequence[str] = ()) -> float | None:
        """The number in the first column whose name holds all of these words and none of the others."""
        for name, cell in self.cells.items():
            if all(w in name for w in words) and not any(w in name for w in without):
                return number_of(cell)
        return None


@dataclass
class Table:
    """A header and the rows below it."""

    columns: list[str]
    rows: list[Row] = field(default_factory=list)


def number_of(cell: str) -> float | None:
    """The number that a cell holds, whatever its unit; None for words."""
    match = _NUMBER.match(cell.strip())
    return float(match[1].replace(",", "")) if match else None


def tables(lines: Sequence[str]) -> Iterator[Table]:
    """Every table: a line of names with at least one line of as many cells below it."""
    at = 0
    while at < len(lines) - 1:
        for split in (_by_comma, _by_bar, _by_gap, _by_blank):
            names = split(lines[at])
            if len(names) > _LEAST and names[0].endswith(":") and len(split(lines[at + 1])) == len(names) - 1:
                names = names[1:]  # a title before the columns
            if len(names) < _LEAST or not _is_header(names):
                continue
            table = Table([name.strip().lower() for name in names])
            end = at + 1
            while end < len(lines) and end - at < _MOST_ROWS:
                if _RULE.match(lines[end]) and split is not _by_comma:
                    end += 1
                    continue
                cells = split(lines[end])
                if len(cells) != len(names) or cells == names:
                    break
                table.rows.append(Row(end, lines[end], dict(zip(table.columns, cells, strict=True))))
                end += 1
            if table.rows:
                yield table
                at = end - 1
                break
        at += 1


def blocks(lines: Sequence[str]) -> Iterator[list[Row]]:
    """Blocks of "name : value" below one device each, the names led by those of the sections they stand in."""
    rows: list[Row] = []
    above: list[tuple[int, str]] = []
    for at, line in enumerate(lines):
        if _DEVICE.match(line):
            if rows:
                yield rows
            rows, above = [], []
            continue
        pair = _PAIR.match(line)
        section = None if pair else _SECTION.match(line)
        told = pair or section
        if told is None:
            continue
        indent = len(told["indent"])
        above = [each for each in above if each[0] < indent]
        name = told["name"].strip().lower()
        if pair is not None:
            rows.append(Row(at, line, {"/".join([*(each[1] for each in above), name]): pair["value"]}))
        above.append((indent, name))
    if rows:
        yield rows


_UNITS = r"(?:(?:tok(?:en)?s?|samples?|images?|imgs?|examples?|seq(?:uence)?s?|iter(?:ation)?s?|it|steps?|batch(?:es)?|frames?)(?:[_ ]?per[_ ]?s(?:ec\w*)?|/s(?:ec\w*)?)(?:/(?:gpu|dev\w*))?\b|\b(?:tps|tgs|wps|ips|fps|qps)\b)"  # noqa: E501
RATE = re.compile(rf"(?i)\b\w*?{_UNITS}\W{{1,4}}(\d[\d,]*\.?\d*)|(?<![\d.])(\d[\d,]*\.?\d*) ?{_UNITS}(?!\W{{1,4}}\d)")


def per_second(rate: re.Match[str]) -> float:
    """What a rate counts each second."""
    return float((rate[1] or rate[2]).replace(",", ""))


def _is_header(names: list[str]) -> bool:
    worded = [name for name in names if any(c.isalpha() or c == "%" for c in name) and number_of(name) is None]
    return len(worded) >= len(names) - 1 and len({name.strip().lower() for name in names}) == len(names)


def _by_comma(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")] if line.count(",") >= _LEAST - 1 and len(line) < 2000 else []


def _by_bar(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.lstrip().startswith("|") else []


def _by_gap(line: str) -> list[str]:
    return _GAP.split(line.strip()) if len(line) < 2000 else []


def _by_blank(line: str) -> list[str]:
    words = line.removeprefix("#").split()
    return words if len(words) < 60 else []
