"""The commands by name; a module is imported when its command is called: `--help` and `--version` need none."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_group

from trackwalker.cli.words import WordsCommand


class Entry(NamedTuple):
    """Where a command is, and what the list of commands says about it."""

    place: str  # module of this package and its function, or its Typer with commands of its own
    help: str
    example: str = ""  # without "Example: trackwalker"
    takes_words: bool = False  # upstream's grammar: scheduler words, then the trainer's behind `--`


# How the list of commands is divided; a command that is in no group would be missing from it, and a test looks.
GROUPS = {
    "Run": "run submit record attach plan resume resubmit cancel wait repro shell demo",
    "Inspect": "jobs status logs files rank-tails metrics tsdb perf tunnel serve dashboards explain",
    "Diagnose": "diagnose triage changed compare ask",
    "Fleet": "watch nodes sweep",
    "Agents": "mcp skills",
    "Lab": "lab",
    "Set up": "config setup doctor clean rm completion help version",
}


COMMANDS = {
    "run": Entry(
        "run:run",
        "Train a model on this machine, one lane per process; Ctrl-C ends the run.",
        "run tiny -n 4 --observe -- steps=200 _env_XLA_FLAGS=…",
    ),
    "record": Entry(
        "record:record",
        "Run any command recorded: metrics, rank logs, first failure and a verdict at its end; it notices nothing.",
        "record -- torchrun --nproc-per-node 8 train.py",
        takes_words=True,
    ),
    "attach": Entry(
        "attach:attach",
        "Record a run that is going already: metrics from now on, its log from the beginning; it notices nothing.",
        "attach --slurm 8308",
    ),
    "submit": Entry(
        "submit:submit",
        "Queue a run on Slurm or Kubernetes; options before '--' go to the scheduler, those after it to the trainer.",
        "submit 70b -N 8 --observe -- remat_policy=full",
        takes_words=True,
    ),
    "plan": Entry(
        "submit:plan",
        "Say whether a run would start and fit, and print what `submit` would queue; nothing is queued.",
        "plan 405b -N 8 --gpu MI355X --json -- per_device_batch_size=5",
        takes_words=True,
    ),
    "status": Entry(
        "status:status",
        "Say how a job stands: waiting, running, or how it ended, as its scheduler sees it.",
        "status 8308 --json",
    ),
    "logs": Entry(
        "logs:logs",
        "Print the end of a job's log, and with -f what it writes from now on; the job is not changed.",
        "logs 8308 -f --rank 3",
    ),
    "wait": Entry(
        "wait:wait",
        "Wait until a job ends and exit with its exit code; a scheduler that does not answer is asked again.",
        "wait 8308 --timeout 3600",
    ),
    "cancel": Entry(
        "cancel:cancel",
        "End a job of this workspace; its ranks are signalled and save what they have. Other jobs are refused.",
        "cancel 8308",
    ),
    "diagnose": Entry(
        "diagnose:diagnose",
        "Find out what went wrong with a job, with the evidence; the job is not changed.",
        "diagnose 8308 --json",
    ),
    "changed": Entry(
        "changed:changed",
        "List every metric that changed when a job became slow, stalled or failed, or in a window; nothing is changed.",
        "changed 8308 --from 120 --to 180",
    ),
    "metrics": Entry(
        "tsdb:metrics",
        "List what was recorded: each metric with kind, unit, hosts, first and last sample.",
        "metrics 8308 'gpu.*power'",
    ),
    "rank-tails": Entry(
        "files:rank_tails",
        "Print the last meaningful line of every rank, those alike together, the smallest group first.",
        "rank-tails 8308",
    ),
    "files": Entry(
        "files:files",
        "List a job's own small files (logs of exporters, recorder, agent), or print one without its secrets.",
        "files 8308 agent/agent.log",
    ),
    "compare": Entry(
        "compare:compare",
        "Find out by how much job B differs from job A, how sure that is, and why; neither job is changed.",
        "compare 7879 7882 --md",
    ),
    "perf": Entry(
        "perf:app", "Say how fast a run is, where its steps' time goes and what to fix first; a job is not changed."
    ),
    "triage": Entry(
        "triage:triage",
        "Say what happened to a job, from its log alone, in a second; the job is not changed.",
        "triage 8308 --json; trackwalker triage --all",
    ),
    "ask": Entry(
        "ask:ask_command",
        "Answer a question about a job from its evidence; a model, if one is given, looks further. No job is changed.",
        'ask "why is 8308 TGS so bad"',
    ),
    "mcp": Entry("mcp:app", "Serve a workspace to an AI agent (MCP): reading only, unless a policy allows actions."),
    "skills": Entry("skills:app", "List the skills (methods that AI agents follow), install them, check them."),
    "serve": Entry(
        "serve:serve",
        "Show a workspace in a browser: jobs, verdicts, metrics, logs, nodes; nothing is changed. Ctrl-C ends it.",
        "serve --workspace outputs --open",
    ),
    "jobs": Entry("jobs:jobs", "List the jobs of a workspace.", "jobs --workspace outputs --json"),
    "lab": Entry("lab:app", "Make incidents with a known truth, and score any diagnoser on them."),
    "demo": Entry(
        "demo:demo",
        "Train four real processes, break one, notice it live, diagnose it, check the verdict.",
        "demo --fault kill",
    ),
    "tsdb": Entry("tsdb:app", "List, query, view and export the metrics of recorded jobs; a job is never changed."),
    "tunnel": Entry(
        "tunnel:tunnel",
        "Print the SSH commands and addresses of a running job's Prometheus, TensorBoard and Ray dashboard.",
        "tunnel 8308 --json",
    ),
    "dashboards": Entry(
        "dashboards:dashboards",
        "Write Grafana dashboards (job, node, GPU, network) and their provisioning files into a folder.",
        "dashboards grafana --prometheus http://127.0.0.1:9090",
    ),
    "shell": Entry(
        "shell:shell",
        "Open a shell in the container of a run, or on this machine, with the run's environment; prints its command.",
        "shell 8308 --image rocm/jax-training:maxtext-v26.2 --dry-run",
    ),
    "repro": Entry(
        "repro:repro",
        "Repeat a short run on this machine until it fails; keeps its log, its core and a first backtrace.",
        "repro tiny --most 100 -- steps=1",
    ),
    "config": Entry(
        "config:app",
        "List, show and check model configs, and make new ones; get and set your own settings. Nothing is started.",
    ),
    "explain": Entry(
        "explain:explain",
        "Say which layer sets a variable, XLA flag or config key of a run, and what the layers below it said.",
        "explain NCCL_DEBUG deepseek -N 8 --vendor amd --fabric ionic",
    ),
    "resubmit": Entry(
        "resubmit:resubmit",
        "Ask for a recorded run again: the same words, knobs and code.",
        "resubmit 8308 --dry-run",
    ),
    "watch": Entry(
        "watch:watch",
        "Watch jobs, and tell what goes wrong with them, with evidence and verdict; no job is changed.",
        "watch --all --config watch.yml; trackwalker watch 8308 --once --json",
    ),
    "resume": Entry(
        "resume:resume",
        "Say whether a run that ended is worth another attempt, and on which nodes; with --yes, start it.",
        "resume 8308 --yes --exclude n7",
    ),
    "nodes": Entry(
        "nodes:nodes",
        "List the nodes that were in trouble in the jobs of a workspace, and which to leave out; no job is changed.",
        "nodes --json",
    ),
    "sweep": Entry(
        "sweep:app",
        "Plan, run, watch and judge a series of short jobs: the best setting, the bad node, the commit that broke it.",
    ),
    "clean": Entry(
        "clean:clean",
        "List code snapshots and who needs them; with --yes, remove those that nobody does.",
        "clean --workspace outputs",
    ),
    "doctor": Entry(
        "doctor:doctor",
        "Check this machine: Python, Prometheus, Slurm, containers, GPUs, RDMA, extras, disk, clock; changes nothing.",
        "doctor --json",
    ),
    "rm": Entry("rm:rm", "Remove jobs that are over, with their logs; asks first.", "rm 8308 8311 --yes"),
    "completion": Entry(
        "completion:completion",
        "Print the completion script of a shell: commands, options, jobs, models, metrics.",
        "completion bash >> ~/.bashrc",
    ),
    "help": Entry("help:help_of", "Show the help of a command.", "help diagnose"),
    "version": Entry("help:version", "Print the version.", "version"),
    "setup": Entry("setup:setup", "Find Prometheus or install it for this user; prints where it is.", "setup"),
}


def _value(option: TyperOption, ctx: Any) -> str | None:
    """What stands for an option's value in help: nothing for a flag, one word in capitals for the rest."""
    if option.is_flag:
        return None
    if option.metavar is not None:
        return option.metavar
    shown = _display(option, ctx)
    return shown if shown is None or "|" in shown else _VALUES.get(shown, option.name.upper().replace("_", "-"))


_VALUES = {"<int>": "N", "<int range>": "N", "<float>": "N", "<float range>": "N", "<path>": "PATH"}
_display = TyperOption.display_type_rich
# Typer has no setting for either; where another version of it shows types its own way, help is only less tidy.
setattr(TyperOption, "display_type_rich", _value)  # noqa: B010
setattr(TyperArgument, "display_type_rich", lambda argument, ctx: None)  # noqa: B010


def load(name: str) -> TyperCommand | TyperGroup:
    """The command itself."""
    return load_entry(name, COMMANDS[name])


def load_entry(name: str, entry: Entry) -> TyperCommand | TyperGroup:
    """A command from where its entry says it is; a group with many commands has entries of its own."""
    module, _, attribute = entry.place.partition(":")
    found = getattr(import_module(f"trackwalker.cli.{module}"), attribute)
    holder = typer.Typer(rich_markup_mode="rich", add_completion=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        kind = WordsCommand if entry.takes_words else TyperCommand
        holder.command(name, cls=kind, epilog=f"Example: trackwalker {entry.example}")(found)
    command = get_group(holder).commands[name]
    assert isinstance(command, TyperCommand | TyperGroup)  # noqa: S101
    return command


class Commands(TyperGroup):
    """Lists every command from the table, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        groups = {name: group for group, names in GROUPS.items() for name in names.split()}
        for name in [*groups, *(name for name in COMMANDS if name not in groups)]:
            if name in COMMANDS:  # what the list needs of it
                panel = groups.get(name, "More")
                self.add_command(TyperCommand(name, help=COMMANDS[name].help, rich_help_panel=panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is called."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else listed, rest
