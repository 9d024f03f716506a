"""Which case each pattern decides: python bench/patterns.py [--write docs/patterns.json] [--redundant]

A case is a line of the tests' texts, of the lab's scenarios, of the unit tests' logs or, where it is there, of the
collection of real excerpts. A pattern decides a line when no other pattern of its failure class finds it: without it
the line would be of another class or of none. --redundant lists the patterns that can never decide, whatever the text:
another one of the class finds every line they find. Exits 1 when there is one.
"""
# ruff: noqa: E501

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from trackwalker.logs.lines import parse
from trackwalker.logs.signatures import FOLDER, Pattern, Signatures, load

ROOT = Path(__file__).parents[1]
REAL = ROOT.parent / "shared" / "data" / "reallogs"
_LONGEST = 4000


@dataclass(frozen=True)
class Rule:
    """One pattern of one failure class."""

    owner: str
    number: int
    has: str
    expression: str | None
    case: bool
    every: bool  # it also asks for every rank's line

    @property
    def name(self) -> str:
        return self.has + (f"  /{self.expression}/" if self.expression else "")


def rules(signatures: Signatures) -> list[Rule]:
    """All of them, in the order in which they are asked."""
    told = []
    for owner in (*signatures.harmless.values(), *signatures.by_id.values()):
        for pattern in owner.any:
            each = pattern if isinstance(pattern, Pattern) else Pattern(has=pattern)
            told.append(Rule(owner.id, len(told), each.has, each.expression, each.case, each.every))
    return told


def corpus() -> Iterator[tuple[str, str]]:
    """(where it is from, a line)."""
    for path in sorted((ROOT / "tests/data/triage").glob("*.yml")):
        for name, held in yaml.safe_load(path.read_text()).items():
            for text in [held] if isinstance(held, str) else held:
                for line in text.splitlines():
                    yield f"{path.stem}:{name}", line
    for path in sorted((ROOT / "src/trackwalker/lab/scenarios").glob("*.yml")):
        for text in _strings(yaml.safe_load(path.read_text()).get("faults", [])):
            for line in text.splitlines():
                yield f"lab:{path.stem}", line
    for path in sorted((ROOT / "tests/unit").glob("test_*.py")):
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


def _strings(held: object) -> Iterator[str]:
    if isinstance(held, str):
        yield held
    elif isinstance(held, dict):
        for each in held.values():
            yield from _strings(each)
    elif isinstance(held, list):
        for each in held:
            yield from _strings(each)


def decided(signatures: Signatures, told: list[Rule]) -> dict[int, str]:
    """By pattern, the first case it decides."""
    out: dict[int, str] = {}
    for where, line in dict.fromkeys(corpus()):
        body = parse(line[:_LONGEST].encode())
        if body is None:
            continue
        lower = body.text.lower()
        found: dict[str, list[int]] = {}
        for rule in told:
            if (rule.has if rule.case else rule.has.lower()).rstrip("\n") not in (body.text if rule.case else lower):
                continue
            if signatures.rules[rule.number].place(body.text, lower) >= 0:
                found.setdefault(rule.owner, []).append(rule.number)
        for numbers in found.values():
            if len(numbers) == 1:
                out.setdefault(numbers[0], where)
    return out


def redundant(told: list[Rule]) -> list[tuple[Rule, Rule]]:
    """Patterns with the one that finds all they find: a part of their literal, with no expression or the same one."""
    out = []
    for rule in told:
        for other in told:
            if other is rule or other.owner != rule.owner or rule.every or (other.case and not rule.case):
                continue
            inside = (other.has in rule.has) if other.case else (other.has.lower() in rule.has.lower())
            wider = other.expression is None or (other.expression == rule.expression and other.case == rule.case)
            same = other.has.lower() == rule.has.lower() and other.expression == rule.expression
            if inside and wider and not (same and other.number > rule.number):
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
    cases = decided(signatures, told)
    report: dict[str, dict[str, str | None]] = {}
    for rule in told:
        report.setdefault(rule.owner, {})[rule.name] = cases.get(rule.number)
    print(f"{len(signatures.by_id)} failure classes and {len(signatures.harmless)} harmless ones, {len(told)} patterns: "
          f"{len(cases)} decide a case, {len(told) - len(cases)} have none in this corpus, {len(again)} can never decide")  # fmt: skip
    if options.write:
        options.write.write_text(json.dumps(report, indent=0, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
