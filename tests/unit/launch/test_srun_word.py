"""Where the command begins in an srun line of a user's own script, and what of it is recorded."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.launch.attach import pod_argv, step_argv
from trackwalker.launch.slurm.own_script import directives, read_script, wrapped
from trackwalker.launch.slurm.srun_word import command_at, recorded
from trackwalker.node.agent.guest import task_exit


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("python train.py --lr 1", "python"),
        ("-N 4 --ntasks-per-node=8 python train.py", "python"),
        ("-N4 -n 32 -l -u --label --cpu-bind none torchrun x", "torchrun"),
        ("-lu -K --kill-on-bad-exit=1 bash -c 'python a.py'", "bash"),
        ("--container-image img:tag --export ALL,A=1 -- python -m x", "python"),
        ("--mpi=pmix --overlap --exclusive -c16 -J name ./run.sh", "./run.sh"),
    ],
)
def test_the_command_is_found_behind_sruns_own_options(line: str, command: str) -> None:
    words = shlex.split(line)
    at = command_at(words)
    assert at is not None
    assert words[at] == command
    assert recorded(words) == [*words[:at], sys.executable, "-m", "trackwalker", "record", "--", *words[at:]]


@pytest.mark.parametrize(
    "line",
    [
        "hostname",
        "-N 4 nvidia-smi -L",
        "--multi-prog tasks.conf",
        "--pty bash",
        "-N 1 python a.py : -N 2 python b.py",
        "--version",
        "-N 4",
        "-é x",
    ],
)
def test_what_is_no_training_or_not_understood_stays_as_it_is(line: str) -> None:
    assert recorded(shlex.split(line)) == shlex.split(line)


SCRIPT = """#!/bin/bash
#SBATCH -N 4 -J pretrain
# a comment
#SBATCH --time=1:00:00

export A=1
#SBATCH --not-read-by-sbatch
srun python train.py
"""


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.sbatch"
    path.write_text(text)
    return path


def test_the_scripts_own_options_are_those_that_sbatch_would_read() -> None:
    assert directives(SCRIPT) == ["#SBATCH -N 4 -J pretrain", "#SBATCH --time=1:00:00"]


def test_how_a_script_is_recorded(tmp_path: Path) -> None:
    one = read_script(script(tmp_path, SCRIPT))
    assert one.how == "tasks"
    text = wrapped(one, Path("/w/.scripts/x"), Path("/w"), "/py")
    assert text.splitlines()[-2:] == ['export PATH=/w/.scripts/x/bin:"$PATH"', 'exec /w/.scripts/x/job.sbatch "$@"']
    whole = read_script(script(tmp_path, "#!/bin/bash\n# no srun here\ntorchrun train.py\n"))
    assert "record --name job -- /f/job.sbatch" in wrapped(whole, Path("/f"), Path("/w"), "/py")
    itself = read_script(script(tmp_path, "#!/bin/bash\nsrun trackwalker record -- python train.py\n"))
    assert wrapped(itself, Path("/f"), Path("/w"), "/py").splitlines()[-1] == 'exec /f/job.sbatch "$@"'


@pytest.mark.parametrize("text", ["python train.py\n", "#!\0"])
def test_what_is_no_script_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="not a batch script"):
        read_script(script(tmp_path, text))


def test_the_step_that_joins_a_job_asks_for_nothing_of_its_own() -> None:
    argv = step_argv("8308", 4, Path("/w"), "pretrain", "/home/me/slurm-8308.out", True)
    assert argv[:3] == ["srun", "--jobid=8308", "--overlap"]
    assert argv[argv.index("attach") :] == [
        "attach", "--slurm", "8308", "--workspace", "/w", "--name", "pretrain", "--log", "/home/me/slurm-8308.out",
    ]  # fmt: skip


def test_in_a_pod_process_one_is_joined() -> None:
    argv = pod_argv("worker-0", ["--namespace", "ml"], Path("/shared"), Path("/shared/.attached/x.log"), False)
    assert argv[: argv.index("--")] == ["kubectl", "exec", "worker-0", "--namespace", "ml"]
    assert argv[argv.index("--") + 1 :][:4] == ["trackwalker", "attach", "--pid", "1"]
    assert argv[-1] == "--no-metrics"


def test_how_a_task_ended_as_srun_tells_it() -> None:
    said = (
        b"srun: error: n3: task 2: Killed\nsrun: error: n1: tasks 0-1,3: Exited with exit code 1\n"
        b"srun: error: n9: task 9: Segmentation fault (core dumped)\nsrun: error: n8: task 8: Something new\n"
    )
    assert [task_exit(said, rank) for rank in (0, 1, 2, 3, 4, 8, 9)] == [1, 1, 137, 1, None, None, 139]
