"""What to type next: for each recommended action the command of ours that begins it, ready to copy."""

from __future__ import annotations

import re
import shlex

from trackwalker.diagnose.verdict import Action, Verdict

_OVER = frozenset({"completed", "completed-short", "soft-success", "failed", "cancelled", "unknown-death"})
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# By the first word of an action's name; what is not listed begins with a look at what changed.
_AGAIN = frozenset({"restart", "resume", "exclude", "drain", "reboot", "raise", "lower", "restore", "stop", "repeat"})
_LOGS = frozenset({"read", "next", "verify", "make"})
_FIRST_LOOK = {"find-the-first-failure": "logs", "find-the-killer": "logs", "find-the-right-database": "tsdb",
               "look-at-the-input-pipeline": "perf", "find-the-changing-shape": "perf", "consider-async-saves": "perf",
               "repeat-and-profile": "perf", "dump-stacks": "watch", "inspect-process": "watch"}  # fmt: skip


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
    if over and first in _AGAIN:
        hosts = [host for host in action.hosts if _HOST.fullmatch(host)]
        left_out = f" --exclude {','.join(hosts)}" if hosts and first in ("exclude", "drain") else ""
        return f"trackwalker resume {job}{left_out}"
    if look == "logs" or first in _LOGS:
        return f"trackwalker logs {job}"
    return first_look(verdict, job)


def first_look(verdict: Verdict, job: str) -> str:
    """Where to look when nothing else is known: what changed in the recording, else the log itself."""
    if verdict.outcome == "healthy":
        return f"trackwalker perf {job}"
    recorded = any(item.kind == "metric" for item in verdict.evidence)
    return f"trackwalker changed {job}" if recorded else f"trackwalker logs {job}"
