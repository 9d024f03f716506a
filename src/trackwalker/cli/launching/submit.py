"""`trackwalker submit` and `trackwalker plan`: a run on a cluster, checked before it is queued."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from trackwalker.cli.common.options import AsJson, JobFlags, takes
from trackwalker.cli.common.words import before, behind
from trackwalker.cli.jobs.nodes import suspect_lines
from trackwalker.cli.launching.plan_view import show
from trackwalker.errors import UsageError
from trackwalker.job.trust import shared_badly
from trackwalker.launch.code.provenance import Provenance, code_of
from trackwalker.launch.code.snapshot import Snapshot, frozen
from trackwalker.launch.here import allocation_of
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.request.words import Watching, parse_watching
from trackwalker.launch.schedulers import SCHEDULERS, kubernetes, scheduler_named, slurm
from trackwalker.launch.slurm.client import Slurm, left_behind, slurm_here
from trackwalker.launch.slurm.options import SubmitOptions, parse_scheduler_words
from trackwalker.launch.slurm.own_script import queue, read_script, wrapped
from trackwalker.launch.submission import How, Submission, how_of, packages_of, plan_submission, runtime_of
from trackwalker.node.checks.runner import BadPolicy, policy
from trackwalker.node.runtimes import NAMES as RUNTIMES
from trackwalker.node.runtimes.image import is_archive, normalise
from trackwalker.observe.prometheus import ensure_prometheus
from trackwalker.observe.ray_home import missing_ray

SUBMITTED = "trackwalker.submitted/1"

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model, as model[[:alias]:tag].")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would run, and queue nothing.")]


# `trackwalker submit --script job.sbatch`: a user's own batch script, queued as it is and recorded.
_HOW = {
    "tasks": "what its srun lines start is recorded",
    "whole": "it has no srun line: the script is recorded as one command",
    "itself": "it calls trackwalker record itself",
}


def submit_own(
    path: Path, options: list[str], words: list[str], on: str, workspace: Path, dry_run: bool, as_json: bool
) -> int:
    """Queue it; options of the command line are sbatch's, words behind `--` the script's."""
    if on != "slurm":
        raise UsageError("--script is for Slurm: in a pod put 'trackwalker record --' before its command")
    script = read_script(path)
    if dry_run:
        print(wrapped(script, Path("FOLDER"), workspace.absolute(), sys.executable), end="")
        return 0
    job = queue(script, options, words, workspace)
    if as_json:
        print(json.dumps({"schema": SUBMITTED, "id": job, "workspace": str(workspace.absolute())}))
    else:
        print(f"job {job}  workspace {workspace.absolute()}", flush=True)
        print(f"note: {_HOW[script.how]}", file=sys.stderr)
    return 0


@dataclass(frozen=True)
class Wanted(JobFlags):
    """How a run on a cluster is asked for: what `submit` and `plan` have in common."""

    on: Annotated[Literal[*SCHEDULERS], typer.Option("--on", help="The scheduler.")] = "slurm"  # type: ignore[valid-type]
    ray: Annotated[bool, typer.Option("--ray", help="Record, and keep a Ray cluster beside the run.")] = False
    checks: Annotated[
        list[str] | None, typer.Option("--check", help="Preflight policy, as ecc=warn or gpus_free=off; repeatable.")
    ] = None
    jobset: Annotated[bool, typer.Option("--jobset", help="On k8s: a JobSet instead of an Indexed Job.")] = False
    no_apply: Annotated[
        bool, typer.Option("--no-apply", help="On k8s: write the folder and its manifest, and create nothing.")
    ] = False
    script: Annotated[
        bool,
        typer.Option(
            "--script",
            help="MODEL is a batch script of your own: it is queued as it is and recorded. Of a model, with plan or "
            "--dry-run: print the whole script and environment, too.",
        ),
    ] = False
    auto_resume: Annotated[
        int,
        typer.Option(
            "--auto-resume", min=0, metavar="[N]", help="Up to N (3) further attempts, by failure class; see 'resume'."
        ),
    ] = 0

    def asked(self, model: str, words: list[str], nodes: int, gpus_per_node: int | None) -> Asked:
        """The request, nothing of it checked."""
        where = (self.gpu, self.fabric, self.image, self.registry, self.stage_timeouts, self.workspace)
        return Asked(model, words, nodes, gpus_per_node, *where)

    def how(self, scheduler: str, python: str, runtime: str, code: Snapshot | None, source: Provenance | None) -> How:
        """How it is to be carried out."""
        told = {"python": python, "provenance": source, "policy": _policy(self.checks or []), "flags": self.carried()}
        beside = {"observe": self.watching.observe, "ray": self.watching.ray}
        return how_of(self, scheduler, sys.argv[1:], runtime, code, **told, **beside)

    @property
    def watching(self) -> Watching:
        """What runs beside training; whether Ray is there is a question for the pods' image, not for this machine."""
        return parse_watching(self.observe, self.ray, os.environ, None if self.on == "k8s" else missing_ray())


@takes(Wanted)
def submit(
    ctx: typer.Context,
    model: Model,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    options: Wanted = Wanted(),  # noqa: B008
) -> int:
    """Queue a run on Slurm or Kubernetes; options before '--' go to the scheduler, those after it to the trainer.

    Exit codes: 0 it is queued, 1 it died at once, 2 it was refused, 69 the scheduler did not answer.
    """
    if options.script and (os.path.isfile(model) or "/" in model or model.endswith((".sh", ".sbatch", ".slurm"))):
        return submit_own(Path(model), before(ctx), behind(ctx), options.on, options.workspace, dry_run, as_json)
    if options.watching.note:
        print(options.watching.note, file=sys.stderr)
    return _TO.get(options.on, _to_other)(ctx, model, options, dry_run, as_json)


@takes(Wanted)
def plan(
    ctx: typer.Context,
    model: Model,
    as_json: AsJson = False,
    options: Wanted = Wanted(),  # noqa: B008
) -> int:
    """Say whether a run would start and fit, and print what `submit` would queue; nothing is queued.

    `submit --dry-run` prints the same.
    Exit codes: 0 it would run, 1 it would probably run out of GPU memory, 2 it would be refused.
    """
    return _TO.get(options.on, _to_other)(ctx, model, options, True, as_json)


def _to_slurm(ctx: typer.Context, model: str, options: Wanted, dry_run: bool, as_json: bool) -> int:
    if options.jobset or options.no_apply:
        raise UsageError(f"--{'jobset' if options.jobset else 'no-apply'} is for --on k8s")
    if options.runtime not in (None, "auto", *RUNTIMES):
        raise UsageError(f"--runtime {options.runtime}: there are {', '.join(RUNTIMES)} and auto")
    client, python = Slurm(), options.python or sys.executable
    partition, account = (os.environ.get(f"TRACKWALKER_{name}") or None for name in ("PARTITION", "ACCOUNT"))
    words = parse_scheduler_words(before(ctx), SubmitOptions(partition=partition, account=account))
    words = replace(words, requeue=True) if options.auto_resume else words
    asked = options.asked(model, behind(ctx), words.nodes or 1, words.gpus_per_node)
    runtime = runtime_of(options)
    with frozen(None if dry_run else options.code, options.workspace) as code:
        source = _code(options, dry_run, packages_of(runtime, python))
        how = options.how("slurm", python, runtime, code, source)
        submission = plan_submission(asked, how)
        record = submission.record.model_copy(update={"auto_resume": options.auto_resume})
        submission = replace(submission, record=record)
        batch = slurm.plan_batch(submission, words, None if dry_run else client, python)
        word = slurm.word_beforehand(batch, model, words.partition, client)
        if dry_run:
            scheduled = {"sbatch": batch.argv(), "script": batch.script, "slurm": asdict(word)}
            return show(batch.submission, scheduled, as_json, options.script)
        if how.observe:
            ensure_prometheus(lambda text: print(text, file=sys.stderr))
        queued = slurm.submit(batch, client)
    _warn(batch.submission)
    if names := left_behind(os.environ):
        print(f"note: of your shell's variables {', '.join(names)} do not reach the trainer: write _env_NAME=VALUE "
              "behind '--'", file=sys.stderr)  # fmt: skip
    if word.warning and slurm_here():
        print(f"warning: {word.warning}", file=sys.stderr)
    if (inside := allocation_of(os.environ)) is not None:
        print(f"note: this is a new job, outside of your {inside.words()}; 'trackwalker run' uses those nodes",
              file=sys.stderr)  # fmt: skip
    for line in suspect_lines(options.workspace, words.nodelist, words.exclude):
        print(line, file=sys.stderr)
    state = slurm.first_look(queued, client)
    _say_queued(as_json, queued.id, queued.job_dir, state=state.state, reason=state.reason)
    if options.auto_resume:
        print(f"note: after a lost node or a preemption Slurm itself restarts it; for the rest, "
              f"'trackwalker wait {queued.id} --auto-resume' has to run", file=sys.stderr)  # fmt: skip
    if state.stuck:
        print(f"warning: job {queued.id} {state.meaning}", file=sys.stderr)
    if slurm.died_silently(queued, state):
        print(f"job {queued.id} died before it wrote a line: {state.state} ({state.reason or 'no reason given'}); "
              "see slurmd's log on the node (a prolog that fails looks like this)", file=sys.stderr)  # fmt: skip
        return 1
    return 0


def _to_kubernetes(ctx: typer.Context, model: str, options: Wanted, dry_run: bool, as_json: bool) -> int:
    settings = kubernetes.read_settings(before(ctx), os.environ)
    if options.auto_resume:
        raise UsageError("--auto-resume is for Slurm: a job on k8s is asked for again by hand (resubmit)")
    if options.runtime:
        raise UsageError("the pods are the containers of a Kubernetes run: leave --runtime away")
    if not options.image or is_archive(options.image):
        given = f", not the file {options.image}" if options.image else ""
        raise UsageError(f"pods need an image that their nodes can pull{given}: --image or DOCKER_IMAGE")
    python = options.python or "python3"
    asked = options.asked(model, behind(ctx), settings.nodes, settings.gpus_per_node or None)
    with frozen(None if dry_run else options.code, options.workspace) as code:
        how = options.how("kubernetes", python, "native", code, _code(options, dry_run, ""))
        submission = plan_submission(asked, how)  # says what is wrong with the image, too
        image = str(normalise(options.image, options.registry))
        batch = kubernetes.plan_pod_batch(submission, settings, image, Path.cwd(), python, options.jobset)
        if dry_run:
            scheduled = {"manifest": batch.manifests(), "container": list(batch.plan.argv)}
            return show(batch.in_pod, scheduled, as_json, options.script)
        job = kubernetes.submit(batch, apply=not options.no_apply)
    _warn(submission)
    by_hand = shlex.join(job.apply_argv)
    state = {"state": "pending" if job.applied else "not applied", "reason": "" if job.applied else by_hand}
    _say_queued(as_json, job.id, job.job_dir, manifest=str(job.manifest), **state)
    if not job.applied:
        why = "--no-apply" if options.no_apply else "kubectl is not here"
        print(f"{why}: nothing is queued yet; to queue it: {by_hand}", file=sys.stderr)
    return 0


def _to_other(ctx: typer.Context, model: str, options: Wanted, dry_run: bool, as_json: bool) -> int:
    """Any scheduler that answers as `launch.schedulers.Scheduler` says."""
    scheduler = scheduler_named(options.on)
    if scheduler is None or options.jobset or options.no_apply or options.auto_resume:
        raise UsageError(f"--jobset, --no-apply and --auto-resume are not for --on {options.on}")
    wishes, python = scheduler.wishes(before(ctx), os.environ), options.python or sys.executable
    asked = options.asked(model, behind(ctx), wishes.nodes or 1, wishes.gpus_per_node)
    runtime = runtime_of(options)
    with frozen(None if dry_run else options.code, options.workspace) as code:
        source = _code(options, dry_run, packages_of(runtime, python))
        how = options.how(options.on, python, runtime, code, source)
        submission = plan_submission(asked, how)
        if dry_run:
            return show(submission, scheduler.shown(submission, wishes), as_json, options.script)
        if how.observe:
            ensure_prometheus(lambda text: print(text, file=sys.stderr))
        job_id = scheduler.submit(submission, wishes)
    job_dir = submission.open_job(job_id)
    _warn(submission)
    _say_queued(as_json, job_id, job_dir, state="pending")
    return 0


# These two have flags of their own, and say more of what they were told.
_TO = {"slurm": _to_slurm, "k8s": _to_kubernetes}


def _code(options: Wanted, dry_run: bool, packages: str | None) -> Provenance | None:
    return None if dry_run else code_of(options.code or Path.cwd(), options.workspace, packages)


def _say_queued(as_json: bool, job: str, job_dir: Path, **more: str) -> None:
    log = str(job_dir.parent / f"{job_dir.name}.log")
    if as_json:
        print(json.dumps({"schema": SUBMITTED, "id": job, "dir": str(job_dir), "log": log, **more}))
    else:
        print(f"job {job}  log {log}", flush=True)


def _warn(submission: Submission) -> None:
    if unsafe := shared_badly(submission.folder.parents[1]):
        print(f"warning: {unsafe}", file=sys.stderr)
    for problem in submission.checked.problems:
        print(f"warning: {problem.text}", file=sys.stderr)


def _policy(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, eq, decision = word.partition("=")
        if not eq or decision not in ("fail", "warn", "off"):
            raise UsageError(f"--check {word}: the form is name=fail, name=warn or name=off")
        found[name] = decision
    try:
        policy(found)
    except BadPolicy as e:
        raise UsageError(f"--check: {e}") from e
    return found
