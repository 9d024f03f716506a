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

import shlex
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

_SCRIPT = """\
#!/bin/bash
# Written by trackwalker: one agent on each node. What it runs stands in order.json beside this file.
unset {stale}
folder={folder}
told=0
attempt=${{SLURM_RESTART_COUNT:-0}}
# Slurm tells the agents itself when it ends a job, so we only stay until they are done. What reaches this script alone
# is left as a note for the first node: srun would answer SIGTERM by killing every task at once and hand SIGUSR1 (the
# time limit is near) to ranks that do not expect it; scancel from here could hit the next attempt of a requeued job.
trap 'told=1; : > "$folder/stop-$attempt"' TERM
# The log has it as well, from whom Slurm told: agents may not live to say it.
near="TIME_LIMIT_NEAR: Slurm ends job $SLURM_JOB_ID at its time limit"
trap 'told=1; : > "$folder/time-limit-$attempt"; echo "$near"' USR1
# --kill-on-bad-exit=0 --wait=0: the agents agree on the end among themselves, and each has its last word.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --mpi=none \\
  --cpu-bind=none --input=none --kill-on-bad-exit=0 --wait=0 \\
  {python} {agent} node {order} &
srun=$!
while :; do
  wait "$srun"
  code=$?
  [ "$told" = 0 ] && break # else a signal may have ended wait, not srun: what it says the second time is true
  told=0
done
exit "$code"
"""


def render_script(folder: Path, python: str = "python3") -> str:
    """The batch script of a submission folder; `python` is the interpreter on the nodes."""
    return _SCRIPT.format(
        stale=STALE,
        python=shlex.quote(python),
        folder=shlex.quote(str(folder.absolute())),
        agent=shlex.quote(str(folder.absolute() / "agent.pyz")),
        order=shlex.quote(str(folder.absolute() / "order.json")),
    )


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
