"""Slurm's answers as data: `scontrol -o`, `squeue --json` (22.05 to 25.05 differ), `sacct -P`.

`scontrol show job -o` is what one job is asked with: one line, the same in every version, and only that job, while
`squeue --json` of 22.05 prints every job whichever was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from trackwalker.job.slurm.states import JobState, make

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/]*)=")
SACCT_FIELDS = "JobIDRaw,State,ExitCode,NodeList,UID,Start,End,JobName"  # the name last: it alone may hold a '|'


def fields(line: str) -> dict[str, str]:
    """`Key=value Key=value …`, where values may hold spaces; of a key that comes twice the first counts."""
    found: dict[str, str] = {}
    marks = list(_FIELD.finditer(line))
    for mark, after in zip(marks, [*marks[1:], None][: len(marks)], strict=True):
        found.setdefault(mark[1], line[mark.end() : after.start() if after else None].strip())
    return {key: "" if value == "(null)" else value for key, value in found.items()}


def jobs_of_scontrol(text: str) -> list[JobState]:
    """Jobs of `scontrol show job -o`."""
    found = []
    for line in text.splitlines():
        said = fields(line)
        if "JobId" not in said:
            continue
        uid = re.search(r"\((\d+)\)", said.get("UserId", ""))
        found.append(
            make(
                said["JobId"],
                said.get("JobState", ""),
                said.get("Reason", ""),
                said.get("ExitCode", ""),
                nodes=said.get("NodeList", ""),
                restarts=int(said.get("Restarts") or 0),
                uid=int(uid[1]) if uid else None,
                name=said.get("JobName", ""),
                log=said.get("StdOut", ""),
                start=epoch(said.get("StartTime", "")),
                end=epoch(said.get("EndTime", "")),
            )
        )
    return found


def epoch(text: str) -> float | None:
    """A time as Slurm prints it; None for Unknown and None."""
    try:
        return float(text) if text.isdigit() else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def jobs_of_squeue(text: str) -> list[JobState]:
    """Jobs of `squeue --json`; ValueError when it is not what we know."""
    said = json.loads(text)
    if not isinstance(said, dict) or not isinstance(said.get("jobs"), list):
        raise ValueError("squeue --json gave no list of jobs")  # noqa: TRY004
    if said.get("errors"):  # 22.05 exits with 0 and gives an empty list when the controller does not answer
        raise ValueError("squeue --json could not ask for jobs")
    return [_squeue_job(job) for job in said["jobs"]]


def _squeue_job(job: dict[str, Any]) -> JobState:
    state = job.get("job_state", "")
    return make(
        str(_number(job.get("job_id"))),
        ",".join(state) if isinstance(state, list) else str(state),
        str(job.get("state_reason") or ""),
        _exit_of(job.get("exit_code")),
        nodes=str(job.get("nodes") or ""),
        restarts=_number(job.get("restart_cnt")) or 0,
        uid=_number(job.get("user_id")),
        name=str(job.get("name") or ""),
        log=str(job.get("standard_output") or ""),
        start=float(_number(job.get("start_time")) or 0) or None,
        end=float(_number(job.get("end_time")) or 0) or None,
    )


def _number(value: Any) -> int | None:
    """A number, bare as in 22.05 or wrapped as since 23.11: {set, infinite, number}."""
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, int | float) else None


def _exit_of(value: Any) -> str:
    """`exit:signal` from a wait status, bare (22.05) or wrapped (23.02), or from {return_code, signal} (later)."""
    if isinstance(value, dict) and "return_code" in value:
        signal = value.get("signal") or {}
        number = _number(signal.get("id", signal.get("signal_id"))) if isinstance(signal, dict) else None
        return f"{_number(value['return_code']) or 0}:{number or 0}"
    status = _number(value)
    return "" if status is None else f"{status >> 8 & 0xFF}:{status & 0x7F}"


def job_of_sacct(text: str, job: str) -> JobState | None:
    """One job of `sacct -P -n -o SACCT_FIELDS`, its last attempt; steps tell what the job line does not."""
    found: JobState | None = None
    memory = False
    for line in text.splitlines():
        words = line.split("|", 7)
        if len(words) < 8:
            continue
        number, state, code, nodes, uid, start, end, name = words
        if number == job:
            named = "" if nodes in ("None assigned", "(null)") else nodes
            owner = int(uid) if uid.isdigit() else None
            times = {"start": epoch(start), "end": epoch(end)}
            found = make(job, state, "", code, nodes=named, uid=owner, name=name, **times)
            memory = False
        elif number.startswith(f"{job}."):
            memory = memory or state.startswith("OUT_OF_ME")
    # The kernel killed a step for want of memory: the job's own line only says that it failed.
    return replace(found, state="oom") if found and memory and found.state == "failed" else found


_SLACK_S = 900.0  # a node is missed some time after it went, and the job may be over by then
_WHEN = re.compile(r"\[[^@\]]*@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\]\s*$")


def gone(nodes: str, start: float | None, end: float | None) -> list[tuple[str, str]]:
    """Nodes and reasons of `scontrol show node -o` that went down or were drained while a job had them."""
    found = []
    for line in nodes.splitlines():
        said = fields(line)
        state, reason = said.get("State", "").upper(), said.get("Reason", "")
        if "NodeName" not in said or not reason or not ("DOWN" in state or "DRAIN" in state or "NOT_RESP" in state):
            continue
        if _within(reason, start, end):
            found.append((said["NodeName"], _WHEN.sub("", reason).strip()))
    return found


def lost(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Those that are gone; a node drained for its prolog is not."""
    return tuple(name for name, why in found if "prolog" not in why.lower())


def prolog(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Those whose prolog failed."""
    return tuple(name for name, why in found if "prolog" in why.lower())


def _within(reason: str, start: float | None, end: float | None) -> bool:
    stamp = _WHEN.search(reason)
    if stamp is None or start is None:
        return False  # a node may be down for last week's reason
    at = datetime.fromisoformat(stamp[1]).timestamp()
    return start - 1.0 <= at <= (end if end is not None else at) + _SLACK_S
