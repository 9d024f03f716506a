"""What to type next: for each recommended action the command of ours that begins it, ready to copy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from trackwalker.diagnose.verdict import Action, Verdict
from trackwalker.job.layout import NAME_FORM

_OVER = frozenset({"completed", "completed-short", "soft-success", "failed", "cancelled", "unknown-death"})
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# By the first word of an action's name; what is not listed begins with a look at what changed.
_AGAIN = frozenset({"restart", "resume", "exclude", "drain", "reboot", "raise", "lower", "restore", "stop", "repeat"})
_BESIDE = frozenset({"restart-exporter"})  # the observer is at fault: the run needs nothing
_LOGS = frozenset({"read", "next", "verify", "make"})
_FIRST_LOOK = {"find-the-first-failure": "logs", "find-the-killer": "logs", "find-the-right-database": "tsdb",
               "look-at-the-input-pipeline": "perf", "find-the-changing-shape": "perf", "consider-async-saves": "perf",
               "repeat-and-profile": "perf", "dump-stacks": "watch", "inspect-process": "watch"}  # fmt: skip


def drain_of(action: Action, verdict: Verdict) -> str:
    """How the scheduler takes the action's nodes out, where it is about that: nothing of ours drains a node."""
    hosts = ",".join(host for host in action.hosts if _HOST.fullmatch(host))
    if action.do != "drain-node" or not hosts:
        return ""
    if verdict.job.id.startswith("k8s-"):
        return f"kubectl cordon {hosts.replace(',', ' ')}"
    reason = shlex.quote(verdict.roots[0].cause if verdict.roots else "incident")
    slurm = verdict.job.id[:1].isdigit()  # its ids are numbers; a job of one machine has no scheduler
    return f"scontrol update nodename={hosts} state=drain reason={reason}" if slurm else ""


def command_of(action: Action, verdict: Verdict, target: str = "") -> str:
    """The command line that begins an action; `target` is how the reader named the job, with what finds it."""
    job = target or shlex.quote(verdict.job.id)
    over = verdict.status in _OVER
    look = _FIRST_LOOK.get(action.do)
    if look == "tsdb":
        return "trackwalker tsdb list"
    if look == "perf":
        return f"trackwalker perf {job}"
    if look == "watch":
        return f"trackwalker watch {job} --once"
    first = action.do.partition("-")[0]
    if over and first in _AGAIN and action.do not in _BESIDE:
        hosts = [host for host in action.hosts if _HOST.fullmatch(host)]
        left_out = f" --exclude={','.join(hosts)}" if hosts and first in ("exclude", "drain") else ""
        if Path(verdict.job.dir, "run.json").is_file():
            return f"trackwalker resume {job}{left_out}"
        if left_out:  # another launcher's run is asked for anew
            nodes = f" -N {verdict.job.nodes}" if verdict.job.nodes else ""
            return f"trackwalker submit {shlex.quote(_model(verdict))}{nodes}{left_out}"
    if not over and action.do == "restart-job" and Path(verdict.job.dir, "run.json").is_file():
        return f"trackwalker cancel {job}"  # a run that hangs has to end before it can be resumed
    if look == "logs" or first in _LOGS:
        return f"trackwalker logs {job}"
    return first_look(verdict, job)


def _model(verdict: Verdict) -> str:
    """The model by the name of the job's directory, as 8308-JAX-llama2-70b has it."""
    match = NAME_FORM.match(
        Path(verdict.job.dir).stem if verdict.job.dir.endswith(".log") else Path(verdict.job.dir).name
    )
    return match["name"].removeprefix("JAX-") if match else "MODEL"


def first_look(verdict: Verdict, job: str) -> str:
    """Where to look when nothing else is known: what changed in the recording, else the log itself."""
    if verdict.outcome == "healthy":
        return f"trackwalker perf {job}"
    recorded = any(item.kind == "metric" for item in verdict.evidence)
    return f"trackwalker changed {job}" if recorded else f"trackwalker logs {job}"
