"""`plan` and `submit` against Slurm's own `--test-only`: they agree, and a refusal is one line with what to change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_here import call_here
from slurm_cluster import SlurmCluster, need_slurm

from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.slurm import plan_batch
from trackwalker.launch.slurm.beforehand import _PASSES
from trackwalker.launch.slurm.options import parse_scheduler_words
from trackwalker.launch.submission import How, plan_submission

PARTITIONS = (
    "PartitionName=small Nodes={first} MaxTime=10 MaxNodes=1\n"
    "PartitionName=closed Nodes={nodes} State=DOWN\nPartitionName=strict Nodes={nodes} MaxTime=5 MaxNodes=2"
)
REQUESTS = (
    """
|-N2|-N4|-N 1 --time 10|-p main|-w n1|-N3 -x n1|--time 1-0|--mem=100|--comment=x|--nice=5|--hold|--begin=now+1hour
--contiguous -N2|--spread-job -N2|--mail-type=NONE|--switches=1|--requeue|--signal=USR1@60|-p small|-p small --time 5
-N9|-N5|-p nosuch|-p small -N2|-p small --time 20|-N2 -x n1,n2,n3|-x n[1-4]|-w nosuch|--constraint=fast|--gres=gpu:1
--gpus-per-node=8|--mem=99999999|--cpus-per-task=64|--dependency=afterok:99999|--mincpus=99|--tmp=999999999
--cores-per-socket=9|--reservation=none|--licenses=matlab:3|-p closed|-p strict -N3|-p strict --time 60|-w n1,n2 -N1
""".strip("\n")
    .replace("\n", "|")
    .split("|")
)
CORE = ["-N2", "-N9", "-p nosuch", "-x n[1-4]"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    need_slurm()
    with SlurmCluster(4, conf="EnforcePartLimits=ANY", partitions=PARTITIONS) as cluster:
        yield cluster


def by_slurm(cluster: SlurmCluster, workspace: Path, words: list[str]) -> tuple[bool, str]:
    """Whether Slurm itself takes the very same options, and what it says."""
    options = parse_scheduler_words(words)
    asked = Asked("tiny", nodes=options.nodes or 1, gpus_per_node=options.gpus_per_node, workspace=workspace)
    batch = plan_batch(plan_submission(asked, How("slurm", ["plan", "tiny"])), options, None, sys.executable)
    script = workspace / "job.sh"
    script.write_text(batch.script)
    argv = ["sbatch", "--test-only", *batch.options, str(script)]
    done = subprocess.run(argv, env=cluster.env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode == 0, done.stderr


def agree(cluster: SlurmCluster, workspace: Path, request: str) -> None:
    words = request.split()
    taken, said = by_slurm(cluster, workspace, words)
    passes = bool(_PASSES.search(said))
    planned = call_here(cluster.env, "plan", "tiny", "--json", "--workspace", str(workspace), *words)
    assert planned.returncode == (0 if taken or passes else 2), f"{request}: {said}{planned.stderr}"
    if taken or passes:
        word = json.loads(planned.stdout)["slurm"]
        assert bool(word["starts"]) == taken
        assert bool(word["warning"]) == passes
        return
    submitted = call_here(cluster.env, "submit", "tiny", "--workspace", str(workspace), *words)
    assert submitted.returncode == 2, request
    for done in (planned, submitted):
        (line,) = done.stderr.strip().splitlines()
        assert "Slurm would refuse it" in line
        assert "; change " in line or "; ask " in line, line
    assert not cluster.client("squeue", "-h").strip()


@pytest.mark.parametrize("request_", CORE)
def test_plan_and_slurm_agree(request_: str, cluster: SlurmCluster, tmp_path: Path) -> None:
    agree(cluster, tmp_path, request_)


def test_a_model_that_needs_gpus_is_refused_where_the_partition_has_none_and_others_do(tmp_path: Path) -> None:
    need_slurm()
    with SlurmCluster(2, gpus=2, gpu_nodes=1, partitions="PartitionName=cpus Nodes=n2") as cluster:
        model = "llama2-70b"
        fits = call_here(cluster.env, "plan", model, "--workspace", str(tmp_path), "--gpu", "H200")
        refused = call_here(cluster.env, "plan", model, "--workspace", str(tmp_path), "--gpu", "H200", "-p", "cpus")
        again = call_here(cluster.env, "submit", model, "--workspace", str(tmp_path), "--gpu", "H200", "-p", "cpus")
    assert "needs GPUs" not in fits.stdout + fits.stderr
    for done in (refused, again):
        assert done.returncode == 2
        (line,) = done.stderr.strip().splitlines()
        assert line.endswith(
            "llama2-70b needs GPUs, and no node of partition cpus has any; change -p (with GPUs: main)"
        )


@pytest.mark.long(reason="forty requests, each asked of Slurm three times")
@pytest.mark.parametrize("request_", [r for r in REQUESTS if r not in CORE])
def test_plan_and_slurm_agree_on_forty_requests(request_: str, cluster: SlurmCluster, tmp_path: Path) -> None:
    agree(cluster, tmp_path, request_)


def test_a_reason_that_never_clears_is_explained_by_submit_status_and_watch(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    where = ("--workspace", str(tmp_path))
    held = call_here(cluster.env, "submit", "tiny", *where, "-p", "strict", "-N2", "--time=5", "--hold")
    assert held.returncode == 0, held.stderr
    assert "is held: JobHeldUser: 'scontrol release' lets it go" in held.stderr
    job = held.stdout.split()[1]
    try:
        cluster.client("scontrol", "update", "PartitionName=strict", "MaxNodes=1")
        cluster.client("scontrol", "release", job)
        why = "can never start: PartitionNodeLimit: it asks for more or fewer nodes than the partition allows"

        def told() -> str:
            return call_here(cluster.env, "status", job, *where).stdout

        cluster.wait_for(lambda: why in told(), f"the reason in {told()}", 60)
        watched = call_here(cluster.env, "watch", "--all", "--once", *where)
        assert f"it {why}: change -N or -p" in watched.stdout
        assert watched.returncode == 1
        waited = call_here(cluster.env, "wait", job, "--timeout", "0", *where)
        assert (waited.returncode, why in waited.stdout + waited.stderr) == (1, True)
    finally:
        cluster.client("scontrol", "update", "PartitionName=strict", "MaxNodes=2")
        cluster.client("scancel", job)
        cluster.wait_for(lambda: not cluster.client("squeue", "-h").strip(), "an empty queue")
