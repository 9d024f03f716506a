"""What to do now, as commands to copy: never run from here, and never more than the verdict advises."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Action, Verdict
from trackwalker.errors import EvidenceError
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord, load_run
from trackwalker.report import words
from trackwalker.report.commands import command_of
from trackwalker.report.text import clip, one_line

_MOST_HOSTS = 64
_LEAVE_OUT = ("exclude-nodes", "drain-node")


@dataclass(frozen=True)
class Advice:
    """One piece of advice: what and why in words, and the command where there is one."""

    head: str
    why: str
    risk: str
    approval: bool
    command: str = ""
    note: str = ""  # what the command does or does not do


def commands(job: Job, verdict: Verdict, seen: Triage | None) -> list[Advice]:
    """The verdict's actions in its order, each with the command that begins it."""
    record = _record(job)
    return [_advice(job, action, verdict, record, seen) for action in verdict.actions[:12]]


def next_command(job: Job) -> list[Advice]:
    """Before there is a verdict: how to get it where there is no browser."""
    why = "the same verdict in a terminal, and as a file that opens anywhere"
    return [Advice("diagnose", why, "none", False, f"trackwalker diagnose {shlex.quote(job.id)} --save")]


def _advice(job: Job, action: Action, verdict: Verdict, record: RunRecord | None, seen: Triage | None) -> Advice:
    hosts = [one_line(host) for host in action.hosts[:_MOST_HOSTS]]
    command, note = "", ""
    if action.do in _LEAVE_OUT and hosts:
        command, note = _without(job, hosts, record, seen)
        if action.do == "drain-node":
            cause = verdict.roots[0].cause if verdict.roots else "incident"
            reason = shlex.quote(f"trackwalker: {one_line(cause)} in job {job.id}")
            command, note = (
                f"scontrol update NodeName={_joined(hosts)} State=DRAIN Reason={reason}",
                "takes capacity away",
            )
    elif action.do == "restart-job" and record is not None:
        command, note = f"trackwalker resume {shlex.quote(job.id)}", "says what it would do; --yes starts it"
    elif action.do in ("find-the-first-failure", "read-traceback"):
        command, note = f"trackwalker triage {shlex.quote(job.id)}", "changes nothing"
    return Advice(
        words.action_title(action),
        clip(one_line(action.why), 600),
        clip(one_line(action.risk), 200),
        action.needs_approval,
        command or command_of(action, verdict),
        note,
    )


def _without(job: Job, hosts: list[str], record: RunRecord | None, seen: Triage | None) -> tuple[str, str]:
    """The same run on other nodes; a run of another launcher is asked for anew."""
    if record is not None:
        command = f"trackwalker resume {shlex.quote(job.id)} --exclude {_joined(hosts)}"
        return command, "says what it would do; --yes starts it"
    header = seen.index.facts.header if seen is not None else {}
    model, nodes = one_line(header.get("MODEL_NAME", "")) or "MODEL", one_line(header.get("NNODES", "")) or "N"
    command = f"trackwalker submit {shlex.quote(model)} -N {shlex.quote(nodes)} --exclude={_joined(hosts)}"
    return command, "the next run without them; add your own settings behind --"


def _joined(hosts: list[str]) -> str:
    return shlex.quote(",".join(hosts))


def _record(job: Job) -> RunRecord | None:
    try:
        return load_run(job.run_json)
    except EvidenceError:
        return None
