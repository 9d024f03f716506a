"""Asking Slurm about jobs, in every way it can be asked: the controller, its accounting, its log of completed jobs.

The controller is fresher than the accounting, and the only one on a cluster without slurmdbd; the accounting alone
knows every time a job ran and what the controller has forgotten.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from trackwalker.job.slurm.lost import gone, lost
from trackwalker.job.slurm.parse import epoch, fields

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
