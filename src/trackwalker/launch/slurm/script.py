"""The batch script and the sbatch options of a run.

The script holds no word of the user's: it starts one agent on each node, and what to run stands in order.json. Options
are arguments of sbatch, not `#SBATCH` lines: there they need no second quoting, they win over SBATCH_* variables, and
what the user asked for comes last and wins.

The job inherits what of the submitter's environment makes programs found (`environment.inherited`: PATH, modules,
proxies), and sbatch is called with nothing else: `--export=NONE` would start a login shell on each node instead. What
an earlier run may have left is removed: outer allocations at submission (`client.submit_environment`), our own
variables by the script, so that a stale coordinator address never reaches a job.
"""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.launch.slurm.options import SubmitOptions

# Variables that only a launcher may set: the tiers' contract, and what frameworks read as a rank's place.
STALE = (
    "JOB_ID JOB_NAME JOB_DIR JOB_NODELIST NNODES NODE_RANK NODELIST_EXPANDED JOB_COMPLETION_INDEX "
    "JAX_COORDINATOR_ADDRESS JAX_COORDINATOR_IP JAX_COORDINATOR_PORT JAX_NUM_PROCESSES JAX_PROCESS_ID "
    "MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "
    "USE_RAY RAY_PORT RAY_ADDRESS LOGIN_NODE_HOSTNAME LOGIN_NODE_IP MAXTEXT_SLURM_DIR MAXTEXT_GIT_SUMMARY_EMITTED "
    "OUTPUTS_BASE_DIR TRACKWALKER_HOST TRACKWALKER_NODE TRACKWALKER_RUN_ID"
)


def render_script(folder: Path, python: str = "python3") -> str:
    """The batch script of a submission folder; `python` is the interpreter on the nodes."""
    place = folder.absolute()
    paths = {"folder": place, "agent": place / "agent.pyz", "order": place / "order.json", "python": python}
    words = {"stale": STALE, **{name: shlex.quote(str(path)) for name, path in paths.items()}}
    text = (files("trackwalker.launch.slurm") / "job.sh").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda match: words[match[1]], text)


def sbatch_options(options: SubmitOptions, name: str, workspace: Path, folder: Path) -> list[str]:
    """Arguments of sbatch for a run called `name`, logging to `<workspace>/<id>-<name>.log`."""
    log = f"{escape(str(workspace.absolute()))}/%j-{escape(name)}.log"
    words = [
        f"--job-name={name}",
        f"--output={log}",
        "--open-mode=append",
        f"--chdir={folder.absolute()}",
        "--export=ALL",
        "--exclusive",
        "--ntasks-per-node=1",
        "--requeue" if options.requeue else "--no-requeue",
    ]
    if not any(word.startswith("--mem") for word in options.extra):
        words.append("--mem=0")  # all of each node's memory; the default may be that of one CPU
    named = ("nodes", "time", "partition", "account", "reservation", "nodelist", "exclude", "gpus_per_node")
    words += [f"--{key.replace('_', '-')}={value}" for key in named if (value := getattr(options, key)) is not None]
    if options.signal_before_s and not any(word.startswith("--signal=") for word in options.extra):
        words.append(f"--signal=B:USR1@{options.signal_before_s}")
    return [*words, *options.extra]


def escape(text: str) -> str:
    """A path or name as Slurm takes it literally in a log's pattern."""
    if "\\" in text:
        raise UsageError(f"'{text}' holds a backslash, which Slurm does not take in a log's path; rename it")
    return text.replace("%", "%%")
