"""What Slurm's accounting says about a job: only it tells a scancel from the time limit, a preemption or a dead node.

Asking is optional in every way: no sacct, a controller that is down or a job it never knew leave the state unknown,
never "finished".
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from trackwalker.logs.index import Hit, LogIndex
from trackwalker.logs.nodelist import expand
from trackwalker.logs.signatures import load

_FIELDS = (
    "JobIDRaw", "JobName", "State", "ExitCode", "Start", "End", "ElapsedRaw", "TimelimitRaw", "NNodes", "NodeList",
    "AllocTRES",
)  # fmt: skip
_TIMEOUT_S = 4.0
_MOST_IDS = 400  # a command line has an end
_GPUS = re.compile(r"gres/gpu=(\d+)")
_CANCELLED_BY = re.compile(r"CANCELLED by (\S+)")
_LIVE = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "CONFIGURING"}
)
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
# States that name how a job ended, and the failure class they prove. FAILED and COMPLETED name none.
_CLASSES = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "walltime",
    "DEADLINE": "walltime",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node-failure",
    "BOOT_FAIL": "node-failure",
    "LAUNCH_FAILED": "node-failure",
    "OUT_OF_MEMORY": "oom-host",
}
_ENDED = frozenset({*_CLASSES, "COMPLETED", "FAILED", "REVOKED"})


@dataclass(frozen=True)
class Accounting:
    """One job as sacct knows it; `state` is "unknown" when it could not be asked."""

    state: str = "unknown"
    why_unknown: str = ""
    exit_code: str = ""
    by: str = ""  # who cancelled it
    start: float | None = None
    end: float | None = None
    elapsed_s: float | None = None
    total_elapsed_s: float | None = None  # of every time it ran
    limit_s: float | None = None
    nodes: int | None = None
    gpus: int | None = None
    restarts: int = 0
    steps: tuple[str, ...] = ()  # states of its steps that differ from its own

    @property
    def live(self) -> bool:
        """The scheduler says that it runs."""
        return self.state in _LIVE

    @property
    def ended(self) -> bool:
        """The scheduler says that it is over; a state we do not know is not."""
        return self.state in _ENDED

    @property
    def failure_class(self) -> str | None:
        """The failure class that the state proves."""
        if "OUT_OF_MEMORY" in self.steps and self.state in ("FAILED", "CANCELLED"):
            return "oom-host"
        return _CLASSES.get(self.state)

    @property
    def says(self) -> str:
        """In one line, as the evidence of a finding."""
        if self.state == "unknown":
            return f"sacct: unknown ({self.why_unknown})"
        parts = [f"sacct: State={self.state}" + (f" by {self.by}" if self.by else "")]
        parts += [f"ExitCode={self.exit_code}"] if self.exit_code else []
        parts += [f"Elapsed={self.elapsed_s:.0f}s"] if self.elapsed_s is not None else []
        parts += [f"Timelimit={self.limit_s:.0f}s"] if self.limit_s is not None else []
        parts += [f"steps {', '.join(self.steps)}"] if self.steps else []
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "live": self.live, "ended": self.ended}


def ask(job_ids: list[str]) -> dict[str, list[dict[str, str]]] | str:
    """The rows sacct has for some jobs, or in a few words why there are none."""
    ids = [j for j in job_ids if j.isascii() and j.isdigit()][:_MOST_IDS]
    if not ids:
        return "not a Slurm job id"
    tool = shutil.which("sacct")
    if tool is None:
        return "no sacct here"
    # -D: a requeued job has one row for each time it ran.
    command = [tool, "-D", "-P", "--noheader", "-j", ",".join(ids), f"--format={','.join(_FIELDS)}"]
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_S, env=environment, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return f"sacct did not answer in {_TIMEOUT_S:.0f} s"
    except OSError as e:
        return f"sacct does not start: {e.strerror}"
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"sacct failed: {said[-1][:120]}" if said else f"sacct failed with code {done.returncode}"
    rows: dict[str, list[dict[str, str]]] = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        cells = line.split("|")
        if len(cells) == len(_FIELDS):
            row = dict(zip(_FIELDS, cells, strict=True))
            rows.setdefault(row["JobIDRaw"].split(".")[0], []).append(row)
    return rows


def accounting_of(job_id: str, answer: dict[str, list[dict[str, str]]] | str, index: LogIndex | None) -> Accounting:
    """One job out of an answer; a job of the same number that is not the one in the log is not believed."""
    if isinstance(answer, str):
        return Accounting(why_unknown=answer)
    rows = answer.get(job_id, [])
    own = [r for r in rows if "." not in r["JobIDRaw"]]
    if not own:
        return Accounting(why_unknown="sacct does not know this job")
    row = own[-1]
    if index is not None and not _same_job(row, index):
        return Accounting(why_unknown="sacct knows another job under this number: this log is from elsewhere")
    state = row["State"].split(" ")[0].rstrip("+")
    by = _CANCELLED_BY.search(row["State"])
    steps = {r["State"].split(" ")[0].rstrip("+") for r in rows if "." in r["JobIDRaw"]} - {state, "COMPLETED"}
    gpus = _GPUS.search(row["AllocTRES"])
    limit = _number(row["TimelimitRaw"])
    return Accounting(
        state=state or "unknown",
        exit_code=row["ExitCode"],
        by=by[1] if by else "",
        start=_time(row["Start"]),
        end=_time(row["End"]),
        elapsed_s=_number(row["ElapsedRaw"]),
        total_elapsed_s=sum(_number(r["ElapsedRaw"]) or 0.0 for r in own),
        limit_s=None if limit is None else limit * 60.0,
        nodes=int(_number(row["NNodes"]) or 0) or None,
        gpus=int(gpus[1]) if gpus else None,
        restarts=len(own) - 1,
        steps=tuple(sorted(steps)),
    )


def why_no_log(job_id: str) -> str:
    """What the scheduler knows about a job that left no log (FC-01), empty when it knows nothing."""
    found = accounting_of(job_id, ask([job_id]), None)
    if found.state == "unknown":
        return ""
    in_prolog = found.state == "FAILED" and found.exit_code.endswith(":53") and (found.elapsed_s or 0.0) <= 5.0
    prolog = ": it died in the prolog (a job name of more than 243 bytes does this, or a node's prolog failed)"
    return found.says + (prolog if in_prolog else "")


def apply(found: Accounting, index: LogIndex) -> dict[str, str]:
    """Add the scheduler's class to the log's; returns the classes it overrules, with why."""
    name = found.failure_class
    if name is None:
        return {}
    if name != "cancelled" or not any(h.signature.id == "cancelled" for h in index.hits):
        signature = load().by_id[name]
        index.hits.append(Hit(signature, None, index.lines, found.says, "sacct", None, 1, index.lines))
    # The launcher prints the words of a cancel for every SIGTERM; the scheduler knows which one it was.
    return {} if name == "cancelled" else {"cancelled": f"{found.says}; the launcher calls every SIGTERM a cancel"}


def _same_job(row: dict[str, str], index: LogIndex) -> bool:
    name, hosts = index.facts.header.get("JOB_NAME"), set(index.facts.hosts)
    listed = set(expand(row["NodeList"])) if row["NodeList"] not in ("", "None assigned") else set()
    if hosts and listed:
        return bool({h.split(".")[0] for h in hosts} & {h.split(".")[0] for h in listed})
    return name is None or row["JobName"] == name


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,12}", text) else None


def _time(text: str) -> float | None:
    if (seconds := _number(text)) is not None:
        return seconds
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None  # Unknown, None
