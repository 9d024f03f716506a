"""What a preflight check looks at and what it says. A check reads; it never kills, deletes or sets anything."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trackwalker.node.sensors.commands import ask

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
OFF = "off"  # in a policy


# Commands of the machine, asked without a terminal, without a password and with a time limit.
_TIMEOUT_S = 10.0

Command = Callable[[Sequence[str]], "str | None"]


# The lines of the log: upstream's form, which triage already knows.
_ONE_LINE = str.maketrans("\n\r", "  ")


def lines(results: Iterable[Result], host: str = "") -> list[str]:
    """One line for each result: `FATAL: n1 | [CHECK_IPV6_RULES] 7 (expected 8)`, `n1 | [CHECK_DCQCN] OK (8)`."""
    return [_line(result, result.host or host) for result in results]


def _line(result: Result, host: str) -> str:
    name = f"{host} | [CHECK_{result.id.upper()}]"
    text = result.text.translate(_ONE_LINE)  # a file name or an error may hold a newline
    if result.status == PASS:
        return f"{name} OK ({text})"
    if result.status == SKIP:
        return f"{name} skipped ({text})"
    word = "FATAL" if result.status == FAIL else "WARNING"
    return f"{word}: {name} {text}{f'; {result.remedy}' if result.remedy else ''}"


def output(argv: Sequence[str], timeout: float = _TIMEOUT_S) -> str | None:
    """What a command printed; None when it is not there, failed, or took too long."""
    answer = ask(argv, timeout, {**os.environ, "LC_ALL": "C"})
    return answer.output if answer.code == 0 else None


def as_root(command: Command, argv: Sequence[str]) -> str | None:
    """The same, with `sudo -n` when the command alone says nothing: sudo must never ask for a password here."""
    return command(argv) or command(["sudo", "-n", *argv])


@dataclass(frozen=True)
class Context:
    """The machine and the job that are checked; tests give other roots and other commands."""

    host: str = field(default_factory=socket.gethostname)
    nodes: int = 1
    gpus: int | None = None  # how many of this node's GPUs the job will use; None: whatever is there, 0: none
    job_dir: str = ""
    meeting: tuple[str, int] | None = None  # the coordinator's address and port, once the network plan is made
    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    tmp: str = "/tmp"  # noqa: S108 - its free space is looked at, nothing is written there
    nvml: str | None = None  # another NVML library than the machine's own
    command: Callable[[Sequence[str]], str | None] = output  # what a command printed, None when it cannot be had


@dataclass(frozen=True)
class Result:
    """One check's finding on one host: one line of text for people, the same as data for programs and other nodes."""

    id: str
    status: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""  # what to do, when something is wrong
    host: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Check:
    """One check: its function answers `fail` for what is wrong, and the policy says whether that ends the job."""

    id: str
    run: Callable[[Context], Result]
    gates: bool  # by default
    seconds: float = 20.0  # after which it is given up


def passed(text: str, **data: Any) -> Result:
    """All is well."""
    return Result("", PASS, text, data)


def failed(text: str, remedy: str, **data: Any) -> Result:
    """Something is wrong; the policy decides whether the job may go on."""
    return Result("", FAIL, text, data, remedy)


def warned(text: str, remedy: str = "", **data: Any) -> Result:
    """Worth knowing, never a reason to stop."""
    return Result("", WARN, text, data, remedy)


def skipped(text: str, **data: Any) -> Result:
    """There is nothing here to look at."""
    return Result("", SKIP, text, data)


def several(count: int, one: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
