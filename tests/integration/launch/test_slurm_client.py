"""A real Slurm: what becomes of a job, in our words, with its files and with nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from command_here import call_here
from slurm_cluster import SlurmCluster, need_slurm
from slurm_submitter import NAME, Submitter, open_job

from trackwalker.errors import UsageError
from trackwalker.launch.schedulers.slurm import choose_reservation
from trackwalker.launch.slurm.client import Slurm, SlurmRefused
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.slurm.script import render_script


@pytest.fixture
def at(slurm: SlurmCluster, tmp_path: Path) -> Submitter:
    workspace = tmp_path / "out put %j 'ü"
    workspace.mkdir()
    return Submitter(slurm, workspace)


def test_a_job_on_four_nodes_completes_and_logs_where_it_should(at: Submitter) -> None:
    job = at.submit(SubmitOptions(nodes=4, time="10"), seconds=0.1)
    state = at.until(job, lambda s: s.ended)
    assert (state.state, state.exit, state.nodes, state.name) == ("completed", 0, "n[1-4]", NAME)
    ups = sorted(line for line in at.log(job).splitlines() if " up " in line)
    assert ups == [f"{rank}: up attempt=0 word=node coordinator=None" for rank in range(4)]
    assert [s.state for s in at.slurm.queue() if s.id == job] == ["completed"]


def test_the_first_bad_exit_code_is_the_jobs(at: Submitter) -> None:
    job = at.submit(SubmitOptions(nodes=1), seconds=0.1, code=3)
    state = at.until(job, lambda s: s.ended)
    assert (state.state, state.exit, state.meaning) == ("failed", 3, "failed with exit code 3")


def test_r16_stale_coordinator_variables_are_ignored(at: Submitter) -> None:
    stale = {"JAX_COORDINATOR_IP": "192.0.2.7", "SLURM_NTASKS": "99", "SLURM_MEM_PER_CPU": "1", "SLURM_JOB_ID": "77"}
    job = at.submit(SubmitOptions(nodes=2), seconds=0.1, env=stale)
    assert at.until(job, lambda s: s.ended).state == "completed"
    assert at.log(job).count("coordinator=None") == 2


def test_cancel_gives_every_agent_its_last_word(at: Submitter) -> None:
    job = at.submit(SubmitOptions(nodes=4), code=7)
    at.until_up(job, 4)
    with pytest.raises(UsageError, match=f"job {job} is '{NAME}', not 'JAX-other'"):
        at.slurm.cancel(job, "JAX-other", os.getuid())
    assert at.slurm.cancel(job, NAME, os.getuid()).state == "running"
    state = at.until(job, lambda s: s.ended)
    assert (state.state, state.exit) == ("cancelled", 143)
    assert at.log(job).count(f"end told=[{int(signal.SIGTERM)}]") == 4
    at.cluster.wait_for(lambda: not at.cluster.leftovers(), "end of all processes")


def test_signals_for_the_script_alone_become_notes(at: Submitter) -> None:
    job = at.submit(SubmitOptions(nodes=2, signal_before_s=60), code=7)
    at.until_up(job, 2)
    # Files, not signals: a rank that does not expect USR1 would die of it, and TERM to srun kills every task at once.
    at.cluster.client("scancel", "--batch", "--signal=USR1", job)
    at.cluster.wait_for((at.folder / "time-limit-0").exists, "note that the time limit is near")
    at.cluster.client("scancel", "--batch", "--signal=TERM", job)
    at.cluster.wait_for((at.folder / "stop-0").exists, "note to end")
    at.cluster.client("scancel", "--signal=TERM", job)  # as the agents would end by themselves
    state = at.until(job, lambda s: s.ended)
    assert state.exit_code == 7  # srun's own, not the signals' echo in the script
    assert at.log(job).count(f"end told=[{int(signal.SIGTERM)}]") == 2


def command(at: Submitter, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of ours, as a user calls it."""
    return call_here(at.cluster.env, *words, "--workspace", str(at.workspace))


def test_r44_status_logs_cancel_and_wait_of_a_job_and_of_no_other(at: Submitter, tmp_path: Path) -> None:
    job = at.submit(SubmitOptions(nodes=2, extra=["--hold"]))
    open_job(at, job)
    waiting = command(at, "status", job)
    assert (waiting.returncode, waiting.stdout) == (
        0,
        f"job {job} is held: JobHeldUser: 'scontrol release' lets it go\n",
    )
    assert command(at, "logs", job).returncode == 1
    at.cluster.client("scontrol", "release", job)
    at.until_up(job, 2)
    seen = json.loads(command(at, "status", job, "--json").stdout)
    assert (seen["schema"], seen["state"], seen["nodes"], seen["ended"]) == (
        "trackwalker.status/1",
        "running",
        "n[1-2]",
        False,
    )
    assert command(at, "logs", job, "--rank", "1", "-n", "1").stdout.startswith("1: up ")
    assert command(at, "wait", job, "--timeout", "0").returncode == 75

    (tmp_path / "other").mkdir()
    stranger = Submitter(at.cluster, tmp_path / "other").submit(SubmitOptions(nodes=1))
    refused = command(at, "cancel", stranger)
    assert (refused.returncode, "no job" in refused.stderr) == (2, True)
    open_job(at, stranger, "JAX-mine")  # a number of ours that Slurm has given to somebody else since
    assert "is now 'JAX-stub'" in command(at, "cancel", stranger).stdout
    assert at.until(stranger, lambda s: s.state != "pending").state == "running"

    assert command(at, "cancel", job).stdout == f"job {job} was asked to end\n"
    ended = command(at, "wait", job)
    assert (ended.returncode, ended.stdout) == (143, f"job {job} was cancelled\n")
    assert "nothing to cancel" in command(at, "cancel", job).stdout


def test_what_slurm_refuses_is_one_line(at: Submitter, tmp_path: Path) -> None:
    with pytest.raises(SlurmRefused, match="invalid partition specified: nope") as refused:
        at.submit(SubmitOptions(nodes=1, partition="nope"))
    assert "\n" not in str(refused.value)
    script = tmp_path / "job.sh"
    script.write_text(render_script(tmp_path))
    with pytest.raises(SlurmRefused):  # sbatch itself would queue it, and it would wait for ever
        at.slurm.test_only(script, ["--nodes=9"])
    assert "to start at" in at.slurm.test_only(script, ["--nodes=2"])
    assert at.slurm.state("999999").state == "forgotten"


def test_r15_a_real_reservation_is_found(slurm: SlurmCluster) -> None:
    create = ["scontrol", "create", "reservation", "users=root", "duration=60", "nodes=n4"]
    slurm.client(*create, "reservationname=soon", "starttime=now+2hours")
    slurm.client(*create, "reservationname=mine", "starttime=now")
    try:
        assert choose_reservation(Slurm(slurm.env).reservations(), "root") == "mine"
    finally:
        for name in ("mine", "soon"):
            slurm.client("scontrol", "delete", f"reservationname={name}")
    assert choose_reservation(Slurm(slurm.env).reservations(), "root") is None


def test_a_failed_prolog_and_an_impossible_log(tmp_path: Path) -> None:
    need_slurm()
    with SlurmCluster(2, prolog='#!/bin/bash\n[ "$SLURMD_NODENAME" != n2 ]\n') as cluster:
        at = Submitter(cluster, tmp_path)
        held = at.submit(SubmitOptions(nodes=2, requeue=True))
        state = at.until(held, lambda s: s.state == "launch-failed")
        assert state.stuck
        assert not state.ended
        assert [(n.name, n.reason[:12]) for n in at.slurm.nodes() if "drain" in n.state] == [("n2", "Prolog error")]
        gone = at.submit(SubmitOptions(nodes=1, extra=["--output=/nonexistent/folder/%j.log"]))
        state = at.until(gone, lambda s: s.ended)
        assert (state.state, state.signal, state.exit) == ("failed", 53, 1)
        assert "never started" in state.meaning
