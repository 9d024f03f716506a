"""Why the scheduler ends this job, in its own word: every end it makes is the same SIGTERM here."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from typing import Optional

_ASK_S = 3.0  # ranks are ending meanwhile; whoever does not answer by then is not waited for
TIME_LIMIT = "CANCELLED DUE TO TIME LIMIT"
NODE_FAILURE = "CANCELLED DUE TO NODE FAILURE"
SCRIPT_KILLED = "FAILED: the batch script was killed"
PLAIN = "CANCELLED (scancel / SIGTERM)"
# As slurmstepd writes them into the log, which readers know.
_REASONS = {
    "TIMEOUT": TIME_LIMIT,
    "TimeLimit": TIME_LIMIT,
    "NodeDown": NODE_FAILURE,
    "JobLaunchFailure": SCRIPT_KILLED,
    "DEADLINE": TIME_LIMIT,
    "NODE_FAIL": NODE_FAILURE,
    "PREEMPTED": "CANCELLED DUE TO PREEMPTION",
    "PENDING": "CANCELLED DUE TO JOB REQUEUE",
    "REQUEUED": "CANCELLED DUE TO JOB REQUEUE",
}
# The code a shell would see, as `trackwalker wait` gives it; whatever is not here ends with its signal's.
CODES = {TIME_LIMIT: 124, NODE_FAILURE: 1, SCRIPT_KILLED: 137}


def why_ended(env: Optional[Mapping[str, str]] = None) -> str:
    """Slurm's reason, or PLAIN for a cancel; empty when nobody answers, and where there is no Slurm."""
    job = (os.environ if env is None else env).get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return ""
    command = ["scontrol", "show", "job", "-o", job]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_S, stdin=subprocess.DEVNULL, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    attempt = int((os.environ if env is None else env).get("SLURM_RESTART_COUNT") or 0)
    return reason_of(done.stdout, attempt) if done.returncode == 0 else ""


def reason_of(answer: str, attempt: int = 0) -> str:
    """The reason in `scontrol show job -o`, which calls a job that is just being ended COMPLETING, however it ends."""
    said = dict(re.findall(r"\b(JobState|Reason|PreemptTime|Restarts)=(\S+)", answer))
    if said.get("PreemptTime", "None") not in ("None", "(null)", "N/A", "Unknown"):
        return _REASONS["PREEMPTED"]
    if said.get("Restarts", "0").isdigit() and int(said.get("Restarts", "0")) > attempt:
        return _REASONS["REQUEUED"]
    states = re.split(r"[,+]", said.get("JobState", ""))
    # A job that Slurm ends without a reason was cancelled, also in its last minute; one that runs was only signalled.
    plain = PLAIN if {"CANCELLED", "COMPLETING"} & set(states) else ""
    return next((_REASONS[word] for word in [*states, said.get("Reason", "")] if word in _REASONS), plain)
