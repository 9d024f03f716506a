"""Slurm's own word on a request before it is queued: `sbatch --test-only`, and what to change where it says no."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import MissingToolError, UsageError
from trackwalker.launch.slurm.client import Slurm, SlurmRefused, SlurmUnreachable

# What Slurm says no with, and what a user can change. The first that matches counts.
_CHANGES: tuple[tuple[str, str], ...] = (
    (r"invalid partition|partition name", "change -p; 'sinfo -s' lists the partitions"),
    (r"node count specification|node configuration|more (processors|nodes) requested|too many nodes|node limit",
     "change -N, --gpus-per-node, --mem or -p to what its nodes have ('sinfo -N -l' lists them)"),
    (r"time limit", "change --time to what the partition allows ('sinfo -o \"%P %l\"')"),
    (r"account", "change --account ('sacctmgr show assoc user=$USER' lists yours)"),
    (r"invalid qos|qos", "change --qos or ask for less"),
    (r"accounting/qos policy|policy", "ask for less, or for another --qos or --account"),
    (r"feature|constraint", "change --constraint ('sinfo -o \"%N %f\"' lists features)"),
    (r"invalid node name|node name", "change --nodelist or --exclude: 'sinfo -N' lists the nodes"),
    (r"gres|generic resource|tres", "change --gpus-per-node or --gres ('sinfo -o \"%N %G\"')"),
    (r"memory", "change --mem"),
    (r"reservation", "change --reservation ('scontrol show reservation')"),
    (r"dependency", "change --dependency"),
    (r"licen[cs]e", "change --licenses"),
    (r"invalid|unrecognized|unknown|bad ", "change the option it names; 'sbatch --help' lists them"),
)  # fmt: skip
# A no of this hour: the job may wait for it to pass.
_PASSES = re.compile(
    r"not available \(down|inactive or drain|nodes? required .* down|currently not available|not available now|busy|"
    r"nodes? are? (down|drained)|state is down",
    re.IGNORECASE,
)


NOT_ASKED = "Slurm was not asked whether it would take this: this machine belongs to none"


@dataclass(frozen=True)
class Word:
    """What Slurm said: when it would start, or a no that may pass, or why it was not asked."""

    starts: str = ""
    warning: str = ""


def ask_beforehand(options: Sequence[str], script: str, slurm: Slurm) -> Word:
    """Ask; a no that waiting does not mend is one error that says what to change."""
    with tempfile.TemporaryDirectory(prefix="trackwalker-") as folder:
        path = Path(folder) / "job.sh"
        path.write_text(script)
        try:
            return Word(starts=slurm.test_only(path, options))
        except MissingToolError:
            return Word(warning="Slurm was not asked whether it would take this: there is no sbatch here")
        except SlurmUnreachable as e:
            return Word(warning=f"Slurm was not asked whether it would take this: {e}")
        except SlurmRefused as e:
            said = str(e).removeprefix("sbatch --test-only: ")
            if _PASSES.search(said):
                return Word(warning=f"Slurm would not start it now: {said}")
            raise UsageError(f"Slurm would refuse it: {said}; {change_for(said)}") from e


def without_gpus(model: str, partition: str | None, slurm: Slurm) -> str:
    """Refuses a model that needs GPUs where Slurm counts them and the partition has none; a note where it counts none.

    A Slurm without any GPU among its resources says nothing about its nodes: sites that give out whole nodes have such.
    """
    try:
        rows = slurm.gres()
    except (MissingToolError, SlurmUnreachable, SlurmRefused):
        return ""  # what it cannot be asked it does not say no to
    has = [(name, gres) for _, name, gres in rows if "gpu" in gres.lower()]
    if not has:
        return f"{model} needs GPUs, and this Slurm declares none on any node: its preflight fails where there are none"
    chosen = {partition} if partition else {name.rstrip("*") for _, name, _ in rows if name.endswith("*")}
    names = {part for each in chosen for part in each.split(",")} & {name.rstrip("*") for _, name, _ in rows}
    if names and not any(name.rstrip("*") in names for name, _ in has):
        better = ", ".join(sorted({name.rstrip("*") for name, _ in has})[:4])
        raise UsageError(
            f"{model} needs GPUs, and no node of partition {', '.join(sorted(names))} has any; change -p "
            f"(with GPUs: {better})"
        )
    return ""


def change_for(said: str) -> str:
    """What to change about a request that Slurm refused in these words."""
    known = (text for form, text in _CHANGES if re.search(form, said, re.IGNORECASE))
    return next(known, "'sbatch --test-only' with the options of 'trackwalker plan' says the same")
