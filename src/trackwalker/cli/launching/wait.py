"""`trackwalker wait` and `cancel`: until a job ends, and to end it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trackwalker.agent.standing_now import UNDECIDED, standing_now
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, JobName, Workspace
from trackwalker.cli.common.say import say
from trackwalker.cli.jobs.status import as_dict, sentence
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.shorthand import LATEST
from trackwalker.launch.job_state import Standing, find_job

if TYPE_CHECKING:
    from trackwalker.watch.supervise.resume_policy import ResumePolicy
from trackwalker.launch import job_state as standing

SCHEMA = "trackwalker.wait/1"
STILL_THERE = 75  # as sysexits has it: try again later
_FIRST_S, _LONGEST_S = 0.3, 10.0  # between two questions: soon for a short job, gently for a long one


def wait(
    job: JobName = LATEST,
    seconds: Annotated[float | None, typer.Option("--timeout", min=0, help="Give up after this many seconds.")] = None,
    auto_resume: Annotated[
        bool, typer.Option("--auto-resume", help="Start further attempts as 'resume' decides; stays until the last.")
    ] = False,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="With --auto-resume: a file whose section 'resume:' limits it.")
    ] = None,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Wait until a job ends and exit with its exit code; a scheduler that does not answer is asked again.

    Exit codes: the job's own; 124 its time limit, 143 cancelled or preempted, 1 it failed without a code of its own or
    is held until somebody helps; 75 --timeout passed, 2 no such job.
    """
    rules = _policy(policy, auto_resume)
    found = find_job(job, workspace)
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        seen = _until_ended(found, deadline)
        found = find_job(found.id if found.dir is None else str(found.dir), workspace)  # its log may be there by now
        if not (auto_resume and seen.ended and (after := _next(found, seen, workspace, rules)) is not None):
            break
        found = after
    code = _code(seen)
    say(
        json.dumps({"schema": SCHEMA, "code": code, **as_dict(found, seen)}, indent=1)
        if as_json
        else sentence(found, seen)
    )
    return code


def _until_ended(found: Job, deadline: float | None) -> Standing:
    pause, silent = _FIRST_S, False
    while True:
        seen = standing_now(found)
        if seen.ended or seen.stuck or (deadline is not None and time.monotonic() >= deadline):
            return seen
        if seen.state in UNDECIDED and not silent:
            say(f"{sentence(found, seen)}; still waiting", file=sys.stderr)
        silent = seen.state in UNDECIDED
        left = _LONGEST_S if deadline is None else max(0.0, deadline - time.monotonic())
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_S)


def _policy(path: Path | None, auto_resume: bool) -> ResumePolicy | None:
    """Read before the waiting begins: a mistake in it is not found out at the end."""
    if path is None:
        return None
    if not auto_resume:
        raise UsageError("--policy says what --auto-resume may do: give both")
    from trackwalker.watch.supervise.resume_policy import load_policy

    return load_policy(path)


def _next(job: Job, seen: Standing, workspace: Path, policy: ResumePolicy | None) -> Job | None:
    """The job of the next attempt; None when there is none to be."""
    # Reading logs is heavy, and most waits need none of it.
    from trackwalker.watch.supervise import attempts as supervise
    from trackwalker.watch.supervise.resume import resume, weigh

    if policy is not None:
        decision = supervise.consider(job, seen, policy)
        say(decision.sentence(), file=sys.stderr, flush=True)
        started = supervise.carry_out(decision, seen)
        return find_job(str(started.job_dir), workspace) if started else None

    weighed = weigh(job, seen)
    say(weighed.sentence(), file=sys.stderr, flush=True)
    if not weighed.decision.resume:
        return None
    begun = resume(weighed, seen)
    return find_job(str(begun.job_dir), workspace)


def _code(seen: Standing) -> int:
    if seen.ended:
        return 1 if seen.exit is None else seen.exit
    return 1 if seen.stuck else STILL_THERE


CANCEL_SCHEMA = "trackwalker.cancel/1"


def cancel(
    job: JobName,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """End a job of this workspace; its ranks are signalled and save what they have. Other jobs are refused.

    Exit codes: 0 it was asked to end or had ended, 2 no such job or not ours, 69 the scheduler does not answer.
    """
    found = standing.find_job(job, workspace)
    if job not in (found.id, found.label) and "/" not in job:
        raise UsageError(f"'{job}' is not the whole id: did you mean job {found.id}?")
    before = standing.cancel(found)
    told = not before.ended
    if as_json:
        print(json.dumps({"schema": CANCEL_SCHEMA, "told": told, "before": as_dict(found, before)}, indent=1))
    else:
        say(f"job {found.id} was asked to end" if told else f"{sentence(found, before)}: nothing to cancel")
    return 0
