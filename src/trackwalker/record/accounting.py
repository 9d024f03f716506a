"""What Slurm's accounting says about a job: only it tells a scancel from the time limit, a preemption or a dead node.

Asking is optional in every way: no sacct, a controller that is down or a job it never knew leave the state unknown,
never "finished".
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trackwalker.job.ending import Told, decide
from trackwalker.job.slurm.parse import epoch, fields, gone, lost
from trackwalker.job.slurm.states import RAW, make
from trackwalker.logs.failures.signatures import load
from trackwalker.logs.formats.nodelist import expand
from trackwalker.logs.scanning.index import Hit, LogIndex

__all__ = ["Accounting", "accounting_of", "apply", "ask", "why_no_log", "with_witness"]

_SKEW_S = 900.0  # clocks of login nodes, file servers and controllers, and what is flushed late
_GPUS = re.compile(r"gres/gpu=(\d+)")
_CANCELLED_BY = re.compile(r"CANCELLED by (\S+)")
_LIVE = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "CONFIGURING"}
)
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
_KILLED_SCRIPT = ("0:9", "0:6", "0:11")  # the batch script itself ended by a signal: a step's would be its exit code
_ENDED = frozenset({*_CLASSES, "COMPLETED", "FAILED", "REVOKED"})


# Asking Slurm about jobs, in every way it can be asked: the controller, its accounting, its log of completed jobs.
FIELDS = (
    "JobIDRaw", "JobName", "State", "ExitCode", "Start", "End", "ElapsedRaw", "TimelimitRaw", "NNodes", "NodeList",
    "AllocTRES",
)  # fmt: skip
_COMPLETED = ("JobID", "JobName", "State", "Start", "End", "TimeLimit", "NNodes", "NodeList")  # all the log has
_TIMEOUT_S = 4.0
_MOST_IDS = 400  # a command line has an end
Rows = dict[str, list[dict[str, str]]]


def ask(job_ids: list[str]) -> Rows | str:
    """The rows Slurm has for some jobs, or in a few words why there are none."""
    ids = [j for j in job_ids if j.isascii() and j.isdigit()][:_MOST_IDS]
    if not ids:
        return "not a Slurm job id"
    if shutil.which("sacct") is None and shutil.which("scontrol") is None:
        return "no sacct here"
    told = _sacct(ids)
    rows: Rows = {} if isinstance(told, str) else told
    now = _controller(ids)
    for job, row in now.items():
        _newer(rows.setdefault(job, []), row)
    missing = [job for job in ids if job not in rows]
    if missing and isinstance(told, str):  # with a slurmdbd the log of completed jobs knows nothing more
        rows |= _completed(missing)
    for job in ids:
        _name_lost(rows.get(job, []))
    return rows or told


def _name_lost(rows: list[dict[str, str]]) -> None:
    """Which nodes went: Slurm knows them by what it thinks of them now."""
    own = [r for r in rows if "." not in r["JobIDRaw"]]
    if not own or own[-1]["State"] not in ("NODE_FAIL", "BOOT_FAIL") or not own[-1]["NodeList"]:
        return
    said = _call(["scontrol", "show", "node", "-o", own[-1]["NodeList"]])
    if not isinstance(said, str):
        start, end = (epoch(own[-1][name]) for name in ("Start", "End"))
        own[-1]["Lost"] = ",".join(lost(gone(said[0], start, end)))


def _newer(rows: list[dict[str, str]], row: dict[str, str]) -> None:
    """What the controller says of the last attempt stands above what reached the accounting."""
    own = [at for at, r in enumerate(rows) if "." not in r["JobIDRaw"]]
    same = own and rows[own[-1]]["Start"] in (row["Start"], "Unknown", "")
    if same and rows[own[-1]]["State"].startswith(row["State"]):
        return  # the accounting says it with more words (CANCELLED by whom)
    if same:
        extra = {name: row[name] for name in ("Reason", "StdOut", "Source", "End")}
        rows[own[-1]] = {**rows[own[-1]], "State": row["State"], "ExitCode": row["ExitCode"], **extra}
    elif row["State"] != "PENDING" or not own:
        rows.append(row)


def _sacct(ids: list[str]) -> Rows | str:
    # -D: a requeued job has one row for each time it ran.
    said = _call(["sacct", "-D", "-P", "--noheader", "-j", ",".join(ids), f"--format={','.join(FIELDS)}"])
    return said if isinstance(said, str) else _table(said[0], FIELDS)


def _completed(ids: list[str]) -> Rows:
    said = _call(["sacct", "-c", "-P", "--noheader", "-j", ",".join(ids), f"--format={','.join(_COMPLETED)}"])
    found = {} if isinstance(said, str) else _table(said[0], _COMPLETED, "JobID")
    blank = dict.fromkeys(FIELDS, "")
    return {job: [{**blank, **row, "JobIDRaw": job} for row in rows] for job, rows in found.items()}


def _controller(ids: list[str]) -> dict[str, dict[str, str]]:
    said = _call(["scontrol", "show", "job", "-o", *(ids if len(ids) == 1 else [])])
    if isinstance(said, str):
        return {}
    found: dict[str, dict[str, str]] = {}
    for line in said[0].splitlines():
        job = fields(line)
        if job.get("JobId") in ids and job.get("JobState") != "COMPLETING":
            found[job["JobId"]] = _row(job)
    return found


def _row(job: dict[str, str]) -> dict[str, str]:
    """A job of `scontrol show job -o` in the words of sacct."""
    return {
        "JobIDRaw": job["JobId"],
        "JobName": job.get("JobName", ""),
        "State": job.get("JobState", ""),
        "ExitCode": job.get("ExitCode", ""),
        "Start": job.get("StartTime", ""),
        "End": job.get("EndTime", ""),
        "ElapsedRaw": str(_seconds(job.get("RunTime", ""))),
        "TimelimitRaw": str(_seconds(job.get("TimeLimit", "")) // 60 or ""),
        "NNodes": job.get("NumNodes", ""),
        "NodeList": job.get("NodeList", ""),
        "AllocTRES": job.get("TRES", ""),
        "Reason": job.get("Reason", ""),
        "Restarts": job.get("Restarts", ""),
        "StdOut": job.get("StdOut", ""),
        "Source": "scontrol",
    }


def _seconds(text: str) -> int:
    """`days-hours:minutes:seconds`; 0 for what is none."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(p.isdigit() for p in parts) or (days and not days.isdigit()):
        return 0
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    return total + int(days or 0) * 86400


def _call(argv: list[str]) -> tuple[str] | str:
    """What a command prints, or why it says nothing."""
    name = argv[0]
    if (tool := shutil.which(name)) is None:
        return f"no {name} here"
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard" if argv[2] == "node" else "%s"}
    try:
        done = subprocess.run(
            [tool, *argv[1:]], capture_output=True, timeout=_TIMEOUT_S, env=environment, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{name} did not answer in {_TIMEOUT_S:.0f} s"
    except OSError as e:
        return f"{name} does not start: {e.strerror}"
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"{name} failed: {said[-1][:120]}" if said else f"{name} failed with code {done.returncode}"
    return (done.stdout.decode("utf-8", "replace"),)


def _table(text: str, names: tuple[str, ...], key: str = "JobIDRaw") -> Rows:
    rows: Rows = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == len(names):
            row = dict(zip(names, cells, strict=True))
            rows.setdefault(row[key].split(".")[0], []).append(row)
    return rows


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
    hosts: tuple[str, ...] = ()  # in the scheduler's order
    gpus: int | None = None
    restarts: int = 0
    steps: tuple[str, ...] = ()  # states of its steps that differ from its own
    lost: tuple[str, ...] = ()  # nodes that failed under it
    source: str = "sacct"  # who was asked

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
        if self.state == "FAILED" and self.exit_code in _KILLED_SCRIPT:
            return "launcher-killed"
        return _CLASSES.get(self.state)

    @property
    def says(self) -> str:
        """In one line, as the evidence of a finding."""
        if self.state == "unknown":
            return f"{self.source}: unknown ({self.why_unknown})"
        parts = [f"{self.source}: State={self.state}" + (f" by {self.by}" if self.by else "")]
        parts += [f"Node failure on {host}" for host in self.lost]
        parts += [f"ExitCode={self.exit_code}"] if self.exit_code else []
        parts += [f"Elapsed={self.elapsed_s:.0f}s"] if self.elapsed_s is not None else []
        parts += [f"Timelimit={self.limit_s:.0f}s"] if self.limit_s is not None else []
        parts += [f"steps {', '.join(self.steps)}"] if self.steps else []
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "live": self.live, "ended": self.ended}


def accounting_of(job_id: str, answer: Rows | str, index: LogIndex | None) -> Accounting:
    """One job out of an answer; a job of the same number that is not the one in the log is not believed."""
    if isinstance(answer, str):
        return Accounting(why_unknown=answer)
    rows = answer.get(job_id, [])
    own = [r for r in rows if "." not in r["JobIDRaw"]]
    if not own:
        return Accounting(why_unknown="sacct does not know this job")
    row = own[-1]
    again = int(row["Restarts"]) if row.get("Restarts", "").isdigit() else 0
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
        start=epoch(row["Start"]),
        end=epoch(row["End"]),
        elapsed_s=_number(row["ElapsedRaw"]),
        total_elapsed_s=sum(_number(r["ElapsedRaw"]) or 0.0 for r in own),
        limit_s=None if limit is None else limit * 60.0,
        nodes=int(_number(row["NNodes"]) or 0) or None,
        hosts=tuple(expand(row["NodeList"])) if row["NodeList"] not in ("", "None assigned") else (),
        gpus=int(gpus[1]) if gpus else None,
        restarts=max(len(own) - 1, again),
        steps=tuple(sorted(steps)),
        lost=tuple(filter(None, row.get("Lost", "").split(","))),
        source=row.get("Source", "sacct"),
    )


def with_witness(found: Accounting, told: Told) -> Accounting:
    """The scheduler's word together with what the job left behind: the one answer that `status` gives too."""
    if not found.ended:
        return found
    asked = make("", found.state, "", found.exit_code, where=",".join(found.lost))
    end = decide(asked, told)
    lost = tuple(filter(None, end.where.split(","))) if end.state == "node-fail" else found.lost
    return replace(found, state=RAW.get(end.state, found.state), lost=lost)


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
    if row.get("StdOut"):
        return _same_file(row["StdOut"], index.path)
    name, hosts = index.facts.header.get("JOB_NAME"), set(index.facts.hosts)
    listed = set(expand(row["NodeList"])) if row["NodeList"] not in ("", "None assigned") else set()
    if hosts and listed:
        return bool({h.split(".")[0] for h in hosts} & {h.split(".")[0] for h in listed})
    return row["JobName"] == name if name is not None else _same_time(row, index.path)


def _same_file(told: str, log: Path) -> bool:
    """Whether Slurm wrote this very file; one that was moved is judged by its name."""
    try:
        return Path(told).samefile(log)
    except OSError:
        return Path(told).name == log.name


def _same_time(row: dict[str, str], log: Path) -> bool:
    """Whether the log was last written while such a job ran: a number is given out again, on another cluster too."""
    start, end = epoch(row["Start"]), epoch(row["End"])
    try:
        written = log.stat().st_mtime
    except OSError:
        return False
    return start is None or start - _SKEW_S <= written <= (end or written) + _SKEW_S


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,12}", text) else None
