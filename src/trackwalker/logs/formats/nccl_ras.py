"""What NCCL's RAS says of single ranks: who is behind in a communicator, who does not answer.

The text is meant for people and changes between releases; a line that is not understood is left out, never guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ALONE = re.compile(
    r"^\s*Rank (?P<rank>\d+) has (?:launched up to operation (?P<operation>\d+)|not launched any operations)"
    r" -- GPU \S+ managed by process (?P<pid>\d+) on node (?P<node>\S+)"
)
_COUNT = re.compile(r"^\s*\d+ ranks have (?:launched up to operation (?P<operation>\d+)|not launched any operations)")
_MEMBER = re.compile(r"^\s*Rank (?P<rank>\d+) -- GPU \S+ managed by process (?P<pid>\d+) on node (?P<node>\S+)")
_PROCESS = re.compile(r"^\s*Process (?P<pid>\d+) on node (?P<node>\S+) managing GPU")
_SECTION = re.compile(r"^\s*(?:#\d+-\d+ \([0-9a-fx]+\) )?(?P<name>MISMATCH|INCOMPLETE|DEAD|TIMEOUT)\b")


@dataclass(frozen=True)
class Straggler:
    """A process that RAS tells apart from the rest."""

    pid: int
    node: str  # as NCCL names it: mostly an address
    why: str


def stragglers(text: str) -> list[Straggler]:
    """Processes that are behind, silent or dead; the highest operation of a communicator is what the rest reached."""
    found: list[tuple[int, str, int | None, str]] = []  # pid, node, operation, section
    section, operation, reached = "", None, 0
    for line in text.splitlines():
        if head := _SECTION.match(line):
            section, operation = head["name"], None
        elif alone := _ALONE.match(line):
            at = int(alone["operation"] or 0)
            reached = max(reached, at)
            found.append((int(alone["pid"]), alone["node"], at, section))
        elif count := _COUNT.match(line):
            operation = int(count["operation"] or 0)
            reached = max(reached, operation)
        elif (member := _MEMBER.match(line)) and operation is not None:
            found.append((int(member["pid"]), member["node"], operation, section))
        elif (process := _PROCESS.match(line)) and section in ("INCOMPLETE", "DEAD"):
            found.append((int(process["pid"]), process["node"], None, section))
    told: dict[int, Straggler] = {}
    for pid, node, at_, part in found:
        if at_ is None:
            why = "is considered dead by NCCL" if part == "DEAD" else "does not answer NCCL's RAS"
            told.setdefault(pid, Straggler(pid, node, why))
        elif at_ < reached:
            told.setdefault(pid, Straggler(pid, node, f"has launched {at_} operations, the others {reached}"))
    return list(told.values())
