"""Which case each pattern decides: python bench/patterns.py [--write docs/patterns.json] [--redundant]

A case is a line of the tests' texts (said.yml holds what programs print, by failure class), of the lab's scenarios, of
the unit tests' logs or, where it is there, of the collection of real excerpts. A pattern, a literal or a code in all
its spellings, decides a line when no other pattern of its failure class finds it: without it the line would be of
another class or of none. Exits 1 when a pattern decides nothing. --redundant lists the patterns that can never decide,
whatever the text: another one of the class finds every line they find and asks no more of it. A shorter literal with an
expression covers nothing: of a word that floods a log only the first lines are looked at. Exits 1 when there is one.
"""
# ruff: noqa: E501

from __future__ import annotations

import argparse
import ast
import json
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import yaml

from trackwalker.logs.failures.signatures import FOLDER, Signatures, load
from trackwalker.logs.scanning.lines import parse

ROOT = Path(__file__).parents[1]
REAL = ROOT.parent / "shared" / "data" / "reallogs"
SAID = "said"  # the lines in our own wording
_LONGEST = 4000
_SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Rule:
    """One pattern of one failure class."""

    owner: str
    number: int  # of the pattern among all
    has: str  # empty for a code
    shown: str
    expression: str | None
    case: bool
    every: bool  # it also asks for every rank's line

    @property
    def name(self) -> str:
        return self.shown + (f"  /{self.expression}/" if self.expression else "")


def rules(signatures: Signatures) -> list[Rule]:
    """All of them, in the order in which they are asked."""
    return [
        Rule(owner, number, p.has, p.name, p.expression, p.case, p.every)
        for number, (owner, p) in enumerate(signatures.patterns)
    ]


def corpus() -> Iterator[tuple[str, str]]:
    """(where it is from, a line)."""
    texts = sorted((ROOT / "tests/data/triage").glob("*.yml"), key=lambda path: (path.stem == SAID, path))
    for path in texts[:-1]:
        yield from _texts(path)
    for path in sorted((ROOT / "src/trackwalker/lab/scenarios").rglob("*.yml")):
        for text in _strings(yaml.load(path.read_text(), Loader=_SAFE).get("faults", [])):  # noqa: S506 - the safe one
            for line in text.splitlines():
                yield f"lab:{path.stem}", line
    for path in sorted((ROOT / "tests/unit").rglob("test_*.py")):
        if not path.stem.startswith(
            ("test_triage", "test_logs", "test_unclass", "test_diagnose", "test_first", "test_record")
        ):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for line in node.value.splitlines():
                    yield f"{path.stem}:{node.lineno}", line
    for path in sorted(REAL.glob("*.log")):
        for line in path.read_text(errors="replace").splitlines():
            yield f"real:{path.stem}", line
    yield from _texts(texts[-1])  # last: what stands on our own wording alone is told apart


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    for name, held in yaml.load(path.read_text(), Loader=_SAFE).items():  # noqa: S506 - the safe one
        for text in [held] if isinstance(held, str) else held:
            for line in text.splitlines():
                yield f"{path.stem}:{name}", line


def _strings(held: object) -> Iterator[str]:
    if isinstance(held, str):
        yield held
    elif isinstance(held, dict):
        for each in held.values():
            yield from _strings(each)
    elif isinstance(held, list):
        for each in held:
            yield from _strings(each)


def decided(signatures: Signatures) -> dict[int, str]:
    """By pattern, the first case it decides."""
    lines = [(where, body.text) for where, line in dict.fromkeys(corpus()) if (body := parse(line[:_LONGEST].encode()))]
    exact, lower = _Joined([text for _, text in lines]), _Joined([text.lower() for _, text in lines])
    found: list[dict[str, set[int]]] = [{} for _ in lines]
    for rule in signatures.rules:
        for at in (exact if rule.case else lower).holding(rule.literal.rstrip("\n")):
            if rule.place(exact.texts[at], lower.texts[at]) >= 0:
                found[at].setdefault(rule.owner, set()).add(rule.asked)
    out: dict[int, str] = {}
    for (where, _), owners in zip(lines, found, strict=True):
        for numbers in owners.values():
            if len(numbers) == 1:
                out.setdefault(min(numbers), where)
    return out


class _Joined:
    """Many lines as one text: a literal is looked for in all of them at once."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self._all = "\0".join(texts)
        self._ends = list(accumulate(len(text) + 1 for text in texts))

    def holding(self, literal: str) -> Iterator[int]:
        """The places of the lines that hold it."""
        at = self._all.find(literal)
        while at >= 0:
            line = bisect_right(self._ends, at)
            yield line
            at = self._all.find(literal, self._ends[line])


def redundant(told: list[Rule]) -> list[tuple[Rule, Rule]]:
    """Patterns with the one that finds all they find: a part of their literal, with no expression."""
    out = []
    for rule in told:
        for other in told:
            if other is rule or other.owner != rule.owner or rule.every or (other.case and not rule.case):
                continue
            if not rule.has or not other.has:  # a code is covered by nothing
                continue
            inside = (other.has in rule.has) if other.case else (other.has.lower() in rule.has.lower())
            twin = other.has.lower() == rule.has.lower() and other.expression == rule.expression
            if inside and (other.expression is None or twin) and not (twin and other.number > rule.number):
                out.append((rule, other))
                break
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the report there, as JSON")
    parser.add_argument("--redundant", action="store_true")
    options = parser.parse_args()
    signatures = load(FOLDER)
    told = rules(signatures)
    again = redundant(told)
    if options.redundant:
        for rule, other in again:
            print(f"{rule.owner}: {rule.name}  is found by  {other.name}")
        return 1 if again else 0
    cases = decided(signatures)
    report: dict[str, dict[str, str | None]] = {}
    for rule in told:
        report.setdefault(rule.owner, {})[rule.name] = cases.get(rule.number)
    print(f"{len(signatures.by_id)} failure classes and {len(signatures.harmless)} harmless ones, {len(told)} patterns: "
          f"{len(cases)} decide a case, {len(told) - len(cases)} have none in this corpus, {len(again)} can never decide; "
          f"{sum(case.startswith(SAID) for case in cases.values())} stand on said.yml alone")  # fmt: skip
    if options.write:
        options.write.write_text(json.dumps(report, indent=0, ensure_ascii=False) + "\n")
    idle = [rule for rule in told if rule.number not in cases]
    for rule in idle:
        print(f"decides nothing: {rule.owner}: {rule.name}")
    return 1 if idle else 0


if __name__ == "__main__":
    sys.exit(main())
