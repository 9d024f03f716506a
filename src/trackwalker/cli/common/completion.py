"""`trackwalker completion`: scripts for the three shells, and the candidates that they ask for."""

from __future__ import annotations

import contextlib
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trackwalker.cli.commands import COMMANDS, GROUPS, load
from trackwalker.cli.common.options import DEFAULT_WORKSPACE
from trackwalker.errors import UsageError

_BASH = """_trackwalker() {
  local IFS=$'\\n'
  COMPREPLY=($(trackwalker __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _trackwalker trackwalker
"""
_ZSH = """#compdef trackwalker
_trackwalker() {
  local -a found
  found=("${(@f)$(trackwalker __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n "$found" ]] && compadd -- $found || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _trackwalker trackwalker
"""
_FISH = """function __trackwalker
  set -l typed (commandline -opc) (commandline -ct)
  trackwalker __complete $typed[2..] 2>/dev/null
end
complete -c trackwalker -a '(__trackwalker)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
# What stands in the place of a command's first words.
_JOBS = frozenset(
    [
        "status",
        "logs",
        "wait",
        "cancel",
        "diagnose",
        "changed",
        "compare",
        "triage",
        "perf",
        "tunnel",
        "resume",
        "resubmit",
        "watch",
        "rm",
    ]
)
_MODELS = frozenset(["run", "submit", "plan", "repro"])
_MODEL_SECOND = frozenset({("config", "show"), ("config", "check"), ("sweep", "batch")})


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the completion script of a shell: commands, options, jobs, models, metrics.

    For good: trackwalker completion bash >> ~/.bashrc; trackwalker completion zsh >> ~/.zshrc; or
    trackwalker completion fish > ~/.config/fish/completions/trackwalker.fish
    """
    print(_SCRIPTS[shell], end="")


def answer(typed: list[str]) -> None:
    """Print the candidates, a line each, for the script of a shell; never an error: a prompt is no place for one."""
    with contextlib.suppress(Exception):
        given = [typed[at + 1] for at, word in enumerate(typed[:-1]) if word in ("-w", "--workspace")]
        workspace = given[-1] if given else os.environ.get("JOB_WORKSPACE") or str(DEFAULT_WORKSPACE)
        print("\n".join(candidates(typed, Path(workspace))))


def candidates(typed: list[str], workspace: Path) -> list[str]:
    """What the last word may become, given those before it."""
    *before, last = typed or [""]
    begins = [word for word in _all(before, last, workspace) if word.startswith(last)]
    return sorted(dict.fromkeys(begins))


def _all(before: list[str], last: str, workspace: Path) -> list[str]:
    plain = [word for word in before if not word.startswith("-")]
    if not plain:
        return (
            ["--help", "--version"] if last.startswith("-") else [n for names in GROUPS.values() for n in names.split()]
        )
    name = plain[0]
    if name == "help":
        return list(COMMANDS)
    if name not in COMMANDS:
        return []
    try:
        command: Any = load(name)
    except UsageError:  # the lab is not installed
        return []
    below: dict[str, Any] = getattr(command, "commands", {})
    if len(plain) > 1 and plain[1] in below:
        command = below[plain[1]]
    if last.startswith("-"):
        return [option for param in command.params for option in param.opts if option.startswith("-")] + ["--help"]
    if below and len(plain) == 1:
        return [*below, *(_jobs(workspace) if name in _JOBS else [])]
    if name in _MODELS or tuple(plain[:2]) in _MODEL_SECOND:
        from trackwalker.launch.request.models import model_files

        return list(model_files())
    if name == "tsdb" and plain[1:2] == ["query"] and len(plain) == 3:
        return _metrics()
    if name == "completion":
        return list(_SCRIPTS)
    return _jobs(workspace) if name in _JOBS or name == "tsdb" else []


def _jobs(workspace: Path) -> list[str]:
    from trackwalker.job.resolve import list_jobs

    return ["latest", *(job.id for job in list_jobs(workspace))]


def _metrics() -> list[str]:
    text = (files("trackwalker.telemetry") / "metrics.yml").read_text(encoding="utf-8")
    return re.findall(r'match: "(\w+)"', text)  # those with a star are families, not metrics
