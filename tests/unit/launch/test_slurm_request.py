"""What is asked of Slurm: options however they are spelled, a script without a word of the user's, the reservation."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from trackwalker.errors import MissingToolError, UsageError
from trackwalker.launch.schedulers.slurm import choose_reservation
from trackwalker.launch.slurm.client import Slurm, SlurmUnreachable, submit_environment
from trackwalker.launch.slurm.options import KNOWN, SubmitOptions, parse_scheduler_words
from trackwalker.launch.slurm.script import render_script, sbatch_options

NOW = 1794735000.0


@pytest.mark.parametrize("words", [["-N4"], ["-N", "4"], ["--nodes=4"], ["--nodes", "4"], ["-N=4"]])
def test_r07_every_spelling_of_nodes_is_the_same(words: list[str]) -> None:
    assert parse_scheduler_words(words) == SubmitOptions(nodes=4)


def test_the_list_of_sbatch_options_holds_whole_names() -> None:
    assert {"nodes", "gpu-bind", "ntasks-per-node", "requeue"} <= KNOWN
    assert [name for name in KNOWN if name != name.strip("- ")] == []


def test_known_options_are_read_and_the_rest_is_kept_as_one_word_each() -> None:
    words = "-N 8 -t 1-0 -p gpu -A lab --reservation none -w n[1-8] -x n9 --gpus-per-node 8 --requeue".split()  # noqa: SIM905
    more = ["--qos", "high", "-C", "a&b", "--exclusive", "-H", "--comment=a b", "--gres=gpu:8"]
    assert parse_scheduler_words([*words, *more]) == SubmitOptions(
        nodes=8,
        time="1-0",
        partition="gpu",
        account="lab",
        reservation="none",
        nodelist="n[1-8]",
        exclude="n9",
        gpus_per_node=8,
        requeue=True,
        extra=["--qos=high", "-Ca&b", "--exclusive", "-H", "--comment=a b", "--gres=gpu:8"],
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-N"], "'-N' needs a value"),
        (["-N", "0"], "at least 1"),
        (["-N2-4"], "give one number"),
        (["--nodes=four"], "give one number"),
        (["steps=10"], "'steps=10' is no scheduler option; trainer settings go behind '--'"),
        (["--exclusive", "evil.sh"], "'evil.sh' is no scheduler option"),
        (["--"], "'--' is no scheduler option"),
        (["-o", "x.log"], "'--output=x.log': the log's name"),
        (["--array=1-3"], "one submission is one run"),
        (["-n8"], "one agent runs on each node"),
        (["--time=soon"], "time limit 'soon'"),
        (["--comment=a\nb"], "newline"),
        (["--test-only"], "trackwalker plan"),
    ],
)
def test_options_that_would_break_a_run_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_scheduler_words(words)
    assert complaint in str(refused.value)


def test_the_sbatch_options_of_a_run() -> None:
    options = SubmitOptions(nodes=2, time="5", gpus_per_node=8, signal_before_s=120, extra=["--qos=high"])
    assert sbatch_options(options, "JAX-x", Path("/data/50% done"), Path("/data/s")) == [
        "--job-name=JAX-x",
        "--output=/data/50%% done/%j-JAX-x.log",
        "--open-mode=append",
        "--chdir=/data/s",
        "--export=ALL",
        "--exclusive",
        "--ntasks-per-node=1",
        "--no-requeue",
        "--mem=0",
        "--nodes=2",
        "--time=5",
        "--gpus-per-node=8",
        "--signal=B:USR1@120",
        "--qos=high",
    ]
    assert "--mem=0" not in sbatch_options(SubmitOptions(extra=["--mem-per-cpu=4G"]), "x", Path("/d"), Path("/d"))
    assert "--signal=B:USR1@60" in sbatch_options(SubmitOptions(), "x", Path("/d"), Path("/d"))
    own = [
        w
        for w in sbatch_options(SubmitOptions(extra=["--signal=USR2@9"]), "x", Path("/d"), Path("/d"))
        if "signal" in w
    ]
    assert own == ["--signal=USR2@9"]
    with pytest.raises(UsageError, match="backslash"):
        sbatch_options(SubmitOptions(), "x", Path("/data/a\\b"), Path("/d"))


@pytest.mark.starts_processes
def test_r04_the_script_holds_paths_only_and_they_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s $HOME `id` "q" ü'
    script = render_script(folder, "/opt/my python/bin/python3")
    words = shlex.split(script.replace("\\\n", ""), comments=True)
    assert str(folder / "order.json") in words
    assert "/opt/my python/bin/python3" in words
    folder.mkdir()
    # Stands for srun: it keeps its words, has the script told that its time is near, and fails in its own way.
    body = f'printf "%s\\n" "$@" > {tmp_path}/words; kill -USR1 $PPID; sleep 0.3; exit 9'
    env = {
        **fake(tmp_path / "bin", "srun", body),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "7",
        "JAX_COORDINATOR_IP": "192.0.2.7",
    }
    plain = render_script(folder).replace("srun --nodes", 'echo "${JAX_COORDINATOR_IP-gone}"; srun --nodes')
    done = subprocess.run(["bash", "-c", plain], env=env, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        9,
        "gone\nTIME_LIMIT_NEAR: Slurm ends job 7 at its time limit\n",
        "",
    )
    words = (tmp_path / "words").read_text().splitlines()
    assert words[-4:] == ["python3", str(folder / "agent.pyz"), "node", str(folder / "order.json")]
    assert (folder / "time-limit-0").exists()


def test_an_outer_allocation_leaves_no_trace_in_the_submission() -> None:
    outer = {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "8",
        "SQUEUE_FORMAT": "%i",
        "SLURM_CONF": "/c",
        "SBATCH_ACCOUNT": "lab",
    }
    assert submit_environment({**outer, "PATH": "/bin"}) == {
        "SLURM_CONF": "/c",
        "SBATCH_ACCOUNT": "lab",
        "PATH": "/bin",
    }


RESERVATIONS = """\
ReservationName=old StartTime=2026-11-01T00:00:00 EndTime=2027-11-01T00:00:00 Users=ann,bob State=ACTIVE
ReservationName=new StartTime=2026-11-10T00:00:00 EndTime=2027-11-01T00:00:00 Flags=FLEX Users=bob,ann State=ACTIVE
ReservationName=later StartTime=2030-01-01T00:00:00 EndTime=2030-01-02T00:00:00 Users=ann State=INACTIVE
ReservationName=past StartTime=2026-11-11T00:00:00 EndTime=2026-11-12T00:00:00 Users=ann State=INACTIVE
ReservationName=near StartTime=2026-11-12T00:00:00 EndTime=2027-11-01T00:00:00 Users=annika,joann State=ACTIVE
ReservationName=not StartTime=2026-11-13T00:00:00 EndTime=2027-11-01T00:00:00 Users=-ann State=ACTIVE
ReservationName=all StartTime=2026-11-13T00:00:00 EndTime=2027-11-01T00:00:00 Users=(null) Accounts=lab State=ACTIVE
"""


@pytest.mark.parametrize(
    ("user", "wanted", "chosen"),
    [
        ("ann", None, "new"),
        ("cleo", None, None),
        ("ann", "none", None),
        ("ann", "special", "special"),
        ("annika", None, "near"),
    ],
)
def test_r15_the_newest_open_reservation_of_this_user(user: str, wanted: str | None, chosen: str | None) -> None:
    assert choose_reservation(RESERVATIONS, user, wanted, NOW) == chosen


def fake(folder: Path, name: str, body: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.starts_processes
def test_a_federation_answers_with_its_cluster(tmp_path: Path) -> None:
    env = fake(tmp_path / "bin", "sbatch", "echo 'a plugin says hello'; echo '77;east'")
    taken = Slurm(env).submit(tmp_path / "job.sh")
    assert (taken.id, taken.cluster) == ("77", "east")


@pytest.mark.starts_processes
def test_an_answer_that_is_no_id_is_not_taken_for_one(tmp_path: Path) -> None:
    env = fake(tmp_path / "bin", "sbatch", "echo done")
    with pytest.raises(SlurmUnreachable, match="not a job id"):
        Slurm(env).submit(tmp_path / "job.sh")


@pytest.mark.starts_processes
def test_a_client_that_hangs_is_given_up(tmp_path: Path) -> None:
    env = fake(tmp_path / "bin", "scontrol", "exec sleep 30")
    seen = Slurm(env, ask_s=0.3).state("7")
    assert (seen.state, seen.reason) == ("unknown", "scontrol did not answer within 0.3 s")


@pytest.mark.starts_processes
def test_without_slurm_one_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="'sbatch' is not here"):
        Slurm({"PATH": str(tmp_path)}).submit(tmp_path / "job.sh")
    with pytest.raises(UsageError, match="is not a Slurm job id"):
        Slurm({}).state("7; reboot")
