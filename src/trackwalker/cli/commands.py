"""The commands by name; a module is imported when its command is called: `--help` and `--version` need none."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_group

from trackwalker.cli.common.words import WordsCommand
from trackwalker.errors import UsageError

LAB_APART = (
    "needs the lab, a distribution of its own: pip install trackwalker-lab "
    "(in a clone of the repository: pip install ./lab)"
)


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
    "Fleet": "watch nodes fleet sweep",
    "Agents": "mcp skills",
    "Lab": "lab",
    "Set up": "config setup doctor clean rm completion help version",
}


COMMANDS = {
    "run": Entry(
        "launching.run:run",
        "Train a model on this machine; Ctrl-C ends the run.",
        "run tiny -n 4 --observe -- steps=200 _env_XLA_FLAGS=…",
    ),
    "record": Entry(
        "launching.record:record",
        "Run any command of yours, and record it.",
        "record -- torchrun --nproc-per-node 8 train.py",
        takes_words=True,
    ),
    "attach": Entry(
        "launching.attach:attach",
        "Record a run that has already started.",
        "attach --slurm 8308",
    ),
    "submit": Entry(
        "launching.submit:submit",
        "Queue a run on Slurm or Kubernetes.",
        "submit 70b -N 8 --observe -- remat_policy=full",
        takes_words=True,
    ),
    "plan": Entry(
        "launching.submit:plan",
        "Say whether a run would start and fit; nothing is queued.",
        "plan 405b -N 8 --gpu MI355X --json -- per_device_batch_size=5",
        takes_words=True,
    ),
    "status": Entry(
        "jobs.status:status",
        "Say how a job is doing, or how it ended.",
        "status 8308 --json",
    ),
    "logs": Entry(
        "jobs.logs:logs",
        "Print the end of a job's log; -f follows it.",
        "logs 8308 -f --rank 3",
    ),
    "wait": Entry(
        "launching.wait:wait",
        "Wait until a job ends, and exit with its exit code.",
        "wait 8308 --timeout 3600",
    ),
    "cancel": Entry(
        "launching.cancel:cancel",
        "End a job of this workspace.",
        "cancel 8308",
    ),
    "diagnose": Entry(
        "answers.diagnose:diagnose",
        "Find out what went wrong with a job, with the evidence.",
        "diagnose 8308 --json",
    ),
    "changed": Entry(
        "answers.compare:changed",
        "List every metric that changed when a job became slow.",
        "changed 8308 --from 120 --to 180",
    ),
    "metrics": Entry(
        "answers.tsdb:metrics",
        "List the metrics that were recorded.",
        "metrics 8308 'gpu.*power'",
    ),
    "rank-tails": Entry(
        "jobs.files:rank_tails",
        "Print the last line of every rank's log.",
        "rank-tails 8308",
    ),
    "files": Entry(
        "jobs.files:files",
        "List or print a job's own small files.",
        "files 8308 agent/agent.log",
    ),
    "compare": Entry(
        "answers.compare:compare",
        "Find out why job B is slower than job A.",
        "compare 7879 7882 --md",
    ),
    "perf": Entry("answers.perf:app", "Say how fast a run is and where its time goes."),
    "triage": Entry(
        "answers.triage:triage",
        "Say what happened to a job, from its log alone.",
        "triage 8308 --json; trackwalker triage --all",
    ),
    "ask": Entry(
        "answers.ask:ask_command",
        "Answer a question about a job from its evidence.",
        'ask "why is 8308 TGS so bad"',
    ),
    "mcp": Entry("mcp:app", "Serve a workspace to an AI agent (MCP)."),
    "skills": Entry("skills:app", "List and install the methods that AI agents follow."),
    "serve": Entry(
        "serve:serve",
        "Show a workspace in a browser.",
        "serve --workspace outputs --open",
    ),
    "jobs": Entry("jobs.list:jobs", "List the jobs of a workspace.", "jobs --workspace outputs --json"),
    "lab": Entry("lab.main:app", "Make incidents with a known truth, and score diagnosers."),
    "demo": Entry(
        "lab.demo:demo",
        "Train four processes, break one, diagnose it.",
        "demo --fault kill",
    ),
    "tsdb": Entry("answers.tsdb:app", "List, query, view and export recorded metrics."),
    "tunnel": Entry(
        "launching.shell:tunnel",
        "Print the SSH commands to a running job's pages.",
        "tunnel 8308 --json",
    ),
    "dashboards": Entry(
        "dashboards:dashboards",
        "Write Grafana dashboards into a folder.",
        "dashboards grafana --prometheus http://127.0.0.1:9090",
    ),
    "shell": Entry(
        "launching.shell:shell",
        "Open a shell with the environment of a run.",
        "shell 8308 --image rocm/jax-training:maxtext-v26.2 --dry-run",
    ),
    "repro": Entry(
        "launching.repro:repro",
        "Repeat a short run until it fails.",
        "repro tiny --most 100 -- steps=1",
    ),
    "config": Entry(
        "launching.config:app",
        "Get and set your settings; list and check models.",
    ),
    "explain": Entry(
        "launching.explain:explain",
        "Say which layer sets a variable or a setting of a run.",
        "explain NCCL_DEBUG deepseek -N 8 --vendor amd --fabric ionic",
    ),
    "resubmit": Entry(
        "launching.resume:resubmit",
        "Ask for a recorded run again, exactly as it was.",
        "resubmit 8308 --dry-run",
    ),
    "watch": Entry(
        "watch:watch",
        "Watch jobs and report what goes wrong with them.",
        "watch --all --config watch.yml; trackwalker watch 8308 --once --json",
    ),
    "resume": Entry(
        "launching.resume:resume",
        "Continue a run that ended, where that is worth it.",
        "resume 8308 --yes --exclude n7",
    ),
    "nodes": Entry(
        "jobs.nodes:nodes",
        "List the nodes that had trouble, and which to leave out.",
        "nodes --json",
    ),
    "fleet": Entry(
        "jobs.fleet:fleet",
        "Say which hosts, racks, models and causes cost most.",
        "fleet --since 30d --price 2.5",
    ),
    "sweep": Entry(
        "sweeps.main:app",
        "Run a series of short jobs: best setting, bad node.",
    ),
    "clean": Entry(
        "launching.clean:clean",
        "Remove old jobs and code snapshots that nobody needs.",
        "clean --workspace outputs",
    ),
    "doctor": Entry(
        "doctor:doctor",
        "Check this machine, and say what to do about it.",
        "doctor --json",
    ),
    "rm": Entry("launching.clean:rm", "Remove jobs that are over, with their logs; asks first.", "rm 8308 8311 --yes"),
    "completion": Entry(
        "common.completion:completion",
        "Print the completion script of a shell.",
        "completion bash >> ~/.bashrc",
    ),
    "help": Entry("common.help:help_of", "Show the help of a command.", "help diagnose"),
    "version": Entry("common.help:version", "Print the version.", "version"),
    "setup": Entry("doctor:setup", "Find Prometheus, or install it for this user.", "setup"),
}


def _value(option: TyperOption, ctx: Any) -> str | None:
    """What stands for an option's value in help: nothing for a flag, one word in capitals for the rest."""
    if option.is_flag:
        return None
    if option.metavar is not None:
        return option.metavar
    shown = _display(option, ctx)
    return shown if shown is None or "|" in shown else _VALUES.get(shown, option.name.upper().replace("_", "-"))


_OWN_BREAK = re.compile(r"(?<!\n)\n(?!\n|Exit codes)")  # of the source; a terminal is as wide as it is
_VALUES = {"<int>": "N", "<int range>": "N", "<float>": "N", "<float range>": "N", "<path>": "PATH"}
_display = TyperOption.display_type_rich
# Typer has no setting for either; where another version of it shows types its own way, help is only less tidy.
setattr(TyperOption, "display_type_rich", _value)  # noqa: B010
setattr(TyperArgument, "display_type_rich", lambda argument, ctx: None)  # noqa: B010


def is_lab(module: str) -> bool:
    """Whether a module comes with the lab's distribution."""
    return module.startswith(("trackwalker.lab", "trackwalker.cli.lab"))


def load(name: str) -> TyperCommand | TyperGroup:
    """The command itself."""
    return load_entry(name, COMMANDS[name])


def load_entry(name: str, entry: Entry) -> TyperCommand | TyperGroup:
    """A command from where its entry says it is; a group with many commands has entries of its own."""
    module, _, attribute = entry.place.partition(":")
    try:
        found = getattr(import_module(f"trackwalker.cli.{module}"), attribute)
    except ModuleNotFoundError as e:
        if not is_lab(e.name or ""):
            raise
        raise UsageError(f"`trackwalker {name}` {LAB_APART}") from e
    holder = typer.Typer(rich_markup_mode="rich", add_completion=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        kind = WordsCommand if entry.takes_words else TyperCommand
        holder.command(name, cls=kind, epilog=f"Example: trackwalker {entry.example}")(found)
    command = get_group(holder).commands[name]
    for each in (command, *getattr(command, "commands", {}).values()):
        each.help = _OWN_BREAK.sub(" ", each.help or "") or None
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
