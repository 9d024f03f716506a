"""Other people's forms of evidence beside a log: what each says, as lines of a log or as findings of its own.

Known by content, not by name: Slurm's accounting (`sacct -P`), torchelastic's error files, PyTorch's flight recorder,
NCCL's RAS, core dump summaries, `nvidia-smi -q`, `kubectl describe`, Kubernetes' objects and events. Kernel logs are
logs and need nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackwalker.errors import EvidenceError
from trackwalker.logs.formats.flight_recorder import behind, load, stragglers

_MOST_BYTES = 16 << 20
_FRONT = 1 << 16  # a form that is a text says what it is near its beginning: no log is read twice for it
_NAMED = re.compile(r"(?i)(?<!local)(?<!local[_-])rank[-_.]?(\d{1,6})(?!\d)")
_NUMBER = re.compile(r"(?:rank|worker|proc|process|task|node|_|-|/)[_.-]?(\d{1,5})(?=[._/-]|$)")
_SACCT = re.compile(r"^[^\n|]*JobID(?:Raw)?\|[^\n]*\bState\b[^\n]*$", re.MULTILINE)
_RAS = re.compile(r"^NCCL version [\d.]+ compiled with CUDA|^Communicators\.\.\.", re.MULTILINE)
_DESCRIBED = re.compile(r"^Node:\s+([\w.-]+?)(?:/[\d.:a-f]*)?\s*$", re.MULTILINE)
_NVSMI = re.compile(r"\s*=+NVSMI LOG=+")
_ASSIGNED = re.compile(r"Successfully assigned \S+ to ([\w.-]+)")
_NODE_NAME = re.compile(r"^\s+nodeName: ([\w.-]+)\s*$", re.MULTILINE)
_OBJECT = re.compile(r"^(?:apiVersion: |LAST SEEN +TYPE +REASON)", re.MULTILINE)
_CORE_HOST = re.compile(r"^\s*Hostname:\s+([\w.-]+)\s*$", re.MULTILINE)
_GOOD = frozenset({"COMPLETED", "RUNNING", "PENDING"})


@dataclass(frozen=True)
class Says:
    """One thing that a form says: a state of Slurm's, or a rank that holds the others up."""

    state: str = ""
    rank: int | None = None
    host: str = ""
    text: str = ""
    clock: str = ""


@dataclass
class Form:
    """What a file is, beside a log."""

    name: str = "log"
    host: str = ""  # of which host it tells
    lines: list[str] = field(default_factory=list)  # its words as a log would print them, where it is no text
    says: list[Says] = field(default_factory=list)
    dump: Any = None  # of one rank, to be looked at beside the others'


def rank_in(path: Path) -> int | None:
    """The rank that a file's name, or the folder it is in, tells."""
    if named := _NAMED.search(path.name):
        return int(named[1])
    found = _NUMBER.findall(path.stem) or _NUMBER.findall(f"/{path.parent.name}/")
    return int(found[-1]) if found else None


def form_of(path: Path) -> Form:
    """What a file is; a plain log for all that is not known."""
    try:
        with path.open("rb") as f:
            data = f.read(_FRONT)
            if data[:1] in (b"{", b"\x80"):
                data += f.read(_MOST_BYTES - len(data))
    except OSError as e:
        raise EvidenceError(f"cannot read {path}: {e.strerror}") from e
    if data[:1] in (b"{", b"\x80"):
        return _document(data)
    text = data.decode("utf-8", "replace")
    if _SACCT.search(text[:4096]):
        return _accounting(_whole(path))
    if _RAS.search(text):
        found = [
            Says(host=s.node, text=f"NCCL RAS: process {s.pid} on {s.node} {s.why}") for s in stragglers(_whole(path))
        ]
        return Form("nccl-ras", says=found)
    if _NVSMI.match(text):  # a heading speaks of errors and counts none: only rows with a value say something
        return Form("nvidia-smi", lines=[line for line in _whole(path).splitlines() if " : " in line])
    if match := _CORE_HOST.search(text):
        return Form("core-dump", host=match[1])
    if match := _DESCRIBED.search(text):
        return Form("kubectl-describe", host=match[1])
    if _OBJECT.match(text):  # kubectl get or events: the host only where they tell of one
        text = _whole(path)
        hosts = {*_ASSIGNED.findall(text), *_NODE_NAME.findall(text)}
        return Form("kubernetes", host=hosts.pop() if len(hosts) == 1 else "")
    return Form()


def _whole(path: Path) -> str:
    """The text of a form, as far as one is read."""
    try:
        with path.open("rb") as f:
            return f.read(1 << 20).decode("utf-8", "replace")
    except OSError as e:
        raise EvidenceError(f"cannot read {path}: {e.strerror}") from e


def _document(data: bytes) -> Form:
    """JSON or a pickle of plain values: a flight recorder's dump or a torchelastic error file."""
    try:
        value = load(data)
    except EvidenceError:
        return Form()  # a log whose lines are JSON
    if not isinstance(value, dict):
        return Form()
    if "entries" in value and "pg_config" in value:
        return Form("flight-recorder", dump=value)
    if "message" in value:
        return _error_file(value["message"])
    return Form()


def _error_file(message: Any) -> Form:
    """The exception with its stack, as the rank would have printed it."""
    if isinstance(message, str):
        return Form("elastic-error", lines=message.splitlines())
    if not isinstance(message, dict):
        return Form()
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack = [str(extra.get("py_callstack", "")), str(message.get("message", ""))]
    lines = [line for part in stack for line in part.splitlines() if line.strip()]
    return Form("elastic-error", lines=list(dict.fromkeys(lines)))


def _accounting(text: str) -> Form:
    """Rows of `sacct -P`: those of the job and its steps that did not end well."""
    rows = [line.split("|") for line in text.splitlines() if "|" in line]
    names, found = rows[0], []
    for cells in rows[1:]:
        row = dict(zip(names, cells, strict=False))
        state = row.get("State", "").split(" ")[0].rstrip("+")
        if not state or state in _GOOD:
            continue
        said = [
            f"{n}={row[n]}" for n in ("JobID", "JobIDRaw", "State", "ExitCode", "Elapsed", "NodeList") if row.get(n)
        ]
        host = row.get("NodeList", "")
        alone = host if re.fullmatch(r"[\w.-]+", host) and host != "None" else ""
        found.append(Says(state=state, host=alone, text=f"sacct: {' '.join(said)}", clock=row.get("End", "")))
    return Form("sacct", says=found)


def held_up(dumps: Mapping[int, Any]) -> list[Says]:
    """What the flight recorders of several ranks say together."""
    return [Says(rank=rank, text=f"flight recorder of rank {rank}: {why}") for rank, why in behind(dumps).items()]
