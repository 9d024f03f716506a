"""What every kind of sweep has in common on the command line: its options, and how one is started."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trackwalker.cli.common.options import AsJson, JobFlags
from trackwalker.cli.common.say import Screen
from trackwalker.cli.common.words import before, behind
from trackwalker.errors import UsageError
from trackwalker.launch.plan import starred
from trackwalker.launch.request.words import parse_passthrough
from trackwalker.launch.slurm.options import parse_scheduler_words
from trackwalker.logs.formats.nodelist import expand
from trackwalker.sweep.budget import Cost, at_most
from trackwalker.sweep.engine_run import carry_out, executor_of, first_wave, opened
from trackwalker.sweep.executors.protocol import Executor
from trackwalker.sweep.model import SCHEMA, Trial
from trackwalker.sweep.plan import Plan, Setup, new_id, without_secrets
from trackwalker.sweep.progress import Teller
from trackwalker.sweep.report import dumps, report
from trackwalker.sweep.report_text import markdown, render
from trackwalker.sweep.state import load_state
from trackwalker.sweep.strategies import build

STOPPED, INTERRUPTED = 1, 130
_WIDE = 120

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show every job of the first wave and the most there can be.")]


@dataclass(frozen=True)
class Common(JobFlags):
    """Options of every sweep; a command takes them with `@takes(Common)` as its last parameter."""

    on: Annotated[Literal["slurm", "local"], typer.Option("--on", help="Where the jobs run.")] = "slurm"
    nodelist: Annotated[
        str | None,
        typer.Option("--nodelist", help="The nodes of the sweep, as n[1-8]: fixed for all that is compared."),
    ] = None
    spares: Annotated[
        str | None, typer.Option("--spares", help="Nodes that may take the place of one whose hardware fails.")
    ] = None
    steps: Annotated[int, typer.Option("--steps", min=10, help="Steps of each job; the first ones never count.")] = 30
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="Minutes a job is expected to take.")] = 10.0
    budget: Annotated[
        float | None, typer.Option("--budget", min=0.0, metavar="NODE_HOURS", help="Submit nothing beyond this.")
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without asking.")] = False
    dry_run: DryRun = False
    as_json: AsJson = False


def start(kind: str, request: dict[str, Any], common: Common, ctx: typer.Context) -> int:
    """Check, show what it may cost, ask, and run a sweep to its end; what a kind's command returns.

    `request` is plain JSON and becomes the strategy's. Added to it, unless it has them: `nodes` (names, from
    --nodelist; empty on this machine), `steps`, `minutes`, and the words behind `--` as `config` and `env`, which
    every trial is to carry. Sbatch's own words (`ctx` has them) go with each job.

    Exit codes: 0 it is finished, 1 it was stopped before that, 2 refused, 69 the scheduler does not answer.
    """
    plan = _plan(kind, request, common, ctx)
    strategy = build(kind, plan.request)
    executor = executor_of(plan)
    wave = first_wave(strategy, executor)
    cost = at_most(strategy, wave)
    if common.dry_run:
        return _show(plan, executor, wave, cost, common.as_json)
    _ask(cost, common)
    plan.save()
    print(f"sweep {plan.id}: {cost.words()}", file=sys.stderr)
    return carry_out_and_show(plan, common.as_json)


def carry_out_and_show(plan: Plan, as_json: bool, budget: float | None = None) -> int:
    """Run a sweep to its end and print its report; Ctrl-C leaves its jobs running, and says how to go on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcome = carry_out(plan, Teller, budget=budget)
    except KeyboardInterrupt:
        left = [run.job or run.trial.key for run in load_state(plan.folder).open_runs]
        jobs = f"its jobs {', '.join(left)} go on; " if left else ""
        print(f"\ninterrupted: {jobs}'trackwalker sweep resume {plan.id}' continues, "
              f"'trackwalker sweep cancel {plan.id}' ends it", file=sys.stderr)  # fmt: skip
        return INTERRUPTED
    show_report(plan.folder, as_json, False)
    return 0 if outcome.end == "finished" else STOPPED


def show_report(folder: Path, as_json: bool, as_md: bool) -> None:
    """Print how a sweep stands and what it says so far."""
    plan, state, strategy, who = opened(folder)
    if as_json:
        print(dumps(report(plan, state, strategy, who)), end="")
        return
    conclusion = strategy.conclude(state.done)
    if as_md:
        names = [f"plot-{number}.svg" for number in range(1, len(conclusion.plots) + 1)]
        print(markdown(plan, state, conclusion, strategy.at_most(), who, names), end="")
        return
    console = Screen(highlight=False)
    console = console if console.is_terminal or "COLUMNS" in os.environ else Screen(highlight=False, width=_WIDE)
    render(plan, state, conclusion, strategy.at_most(), who, console)
    print(f"\nreport: {plan.folder / 'report.md'}", file=sys.stderr)


def _plan(kind: str, request: dict[str, Any], common: Common, ctx: typer.Context) -> Plan:
    words = before(ctx)
    options = parse_scheduler_words(words)
    if options.nodes is not None:
        raise UsageError("-N: the jobs of a sweep run on the nodes of --nodelist; leave the number away")
    if common.on == "local" and (words or common.nodelist or common.spares):
        given = " ".join(words) or "--nodelist"
        raise UsageError(f"'{given}' is for --on slurm: on this machine there is nothing to choose from")
    nodelist = common.nodelist or options.nodelist
    passthrough = parse_passthrough(behind(ctx))
    now = time.time()
    workspace = common.workspace.absolute()
    shared = {
        "nodes": expand(nodelist) if nodelist else [],
        "steps": common.steps,
        "minutes": common.minutes,
        "config": passthrough.config,
        "env": passthrough.env,
        "workspace": str(workspace),
    }
    alike = {f.name for f in fields(Setup)} & {f.name for f in fields(Common)} - {
        "workspace",
        "spares",
        "code",
        "python",
    }
    setup = Setup(
        workspace=str(workspace),
        words=words,
        spares=expand(common.spares) if common.spares else [],
        code=str(common.code.absolute()) if common.code else "",
        python=common.python or "",
        flags=common.carried(),
        **{name: getattr(common, name) for name in alike - {"workspace", "spares", "code", "python"}},
    )
    argv = [starred(word) for word in sys.argv[1:]]
    return Plan(new_id(kind, now), kind, {**shared, **request}, setup, now, common.budget, argv)


def _ask(cost: Cost, common: Common) -> None:
    if common.budget is not None and cost.node_hours > common.budget:
        print(f"note: the budget of {common.budget:g} node-hours may end it early", file=sys.stderr)
    if common.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{cost.words()}: add --yes to start it, or --dry-run to see its jobs")
    if not typer.confirm(f"{cost.words()}. Start?", err=True):
        raise UsageError("not started")


def _show(plan: Plan, executor: Executor, wave: list[Trial], cost: Cost, as_json: bool) -> int:
    """--dry-run: every job of the first wave, and the most there can be."""
    tags = [f"{plan.id}.{number}" for number in range(1, len(wave) + 1)]
    commands = [executor.describe(trial, tag) for trial, tag in zip(wave, tags, strict=True)]
    trials = [without_secrets(asdict(trial)) for trial in wave]
    jobs = [{"trial": trial, **command} for trial, command in zip(trials, commands, strict=True)]
    if as_json:
        said = {"schema": SCHEMA, **plan.shown(), "dry_run": True, "at_most_jobs": cost.jobs}
        print(dumps({**said, "at_most_node_hours": round(cost.node_hours, 4), "first_wave": jobs}), end="")
        return 0
    print(f"{cost.words()}; the first wave has {len(wave)}, nothing is queued")
    for trial, job in zip(wave, jobs, strict=True):
        where = f" on {','.join(trial.nodes)}" if trial.nodes else ""
        print(f"{trial.key}{where}: {trial.why or trial.model}")
        print(f"    {shlex.join(job.get('sbatch') or job['command'])}")
    return 0
