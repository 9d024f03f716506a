"""The four sweeps on a real Slurm of several nodes, each with a real fault that it has to find; two on every landing.

The memory limit, the CPU limit and the lost packets are the kernel's; the commits are git's; the jobs train for real.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import cpu_limit
import netns_nodes
import pytest
from slurm_cluster import SlurmCluster, need_slurm, no_memory_limits
from sweeping import QUICK, run_sweep, scores, sweep

from conftest import ROOT

pytestmark = [
    pytest.mark.disturbed_by_load(reason="speeds of real jobs are compared"),
    pytest.mark.timeout(420),
]


@pytest.mark.alone
@pytest.mark.long(reason="about six jobs one after the other, alone; test_watch_slurm.py meets a real memory limit")
def test_a_batch_sweep_finds_the_optimum_between_a_regression_and_a_real_memory_limit(tmp_path: Path) -> None:
    need_slurm()
    if why := no_memory_limits():
        pytest.skip(why)
    # Sixteen rows are read as fast as one, each further row is late, and each needs memory.
    reader = ["data_seconds=0.2", "data_rows_cached=16", "data_miss_seconds=0.06", "data_row_mb=40"]
    with SlurmCluster(2, memory_mb=1400) as cluster:
        answer = sweep(
            cluster, tmp_path, "batch", "tiny", "--nodelist", cluster.names[0], "--start", "8", "--steps", "14",
            "--param", "per_device_batch_size=8:64:8", "--", *QUICK, *reader,
        )  # fmt: skip
    found = scores(answer)
    assert answer["conclusion"]["recommend"] == {"per_device_batch_size": "16"}, found
    assert "oom" in found.values(), found
    sizes = {int(key.split("=")[1].split("#")[0]): value for key, value in found.items()}
    assert any(size > 16 and isinstance(value, float) for size, value in sizes.items()), f"no regression seen: {found}"


@pytest.mark.alone
def test_a_node_sweep_finds_the_node_that_a_cpu_limit_slows(tmp_path: Path) -> None:
    need_slurm()
    if why := cpu_limit.missing():
        pytest.skip(why)
    # A healthy step computes a tenth of what its data takes: the batches that were read while it compiled are used up
    # at once, and four nodes on two cores go at one speed.
    settings = [*QUICK, "max_target_length=128", "per_device_batch_size=16", "data_seconds=0.2"]
    with SlurmCluster(4) as cluster, slow_while_training(cluster, "n3", tmp_path, 14, share=0.01):
        answer = sweep(cluster, tmp_path, "nodes", "n[1-4]", "--model", "tiny", "--steps", "14", "--", *settings)
    assert answer["conclusion"]["exclude"] == ["n3"], scores(answer)


@contextlib.contextmanager
def slow_while_training(cluster: SlurmCluster, node: str, workspace: Path, steps: int, share: float) -> Iterator[None]:
    """A node that has little of a CPU while it trains; its start-up is not what the test waits for."""
    over = threading.Event()

    def trains() -> bool:
        logs = [log.read_text() for log in workspace.glob("*-JAX-*.log")]
        mine = [text for text in logs if f"JOB_NODELIST={node}\n" in text]
        return any("completed step: 2," in text and f"completed step: {steps - 1}," not in text for text in mine)

    with cpu_limit.cpu_limit(cluster.daemon(node)) as allow:

        def follow() -> None:
            while not over.wait(0.1):
                allow(share if trains() else None)

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@pytest.mark.alone
@pytest.mark.long(reason="every pair of four nodes, with nothing beside them; the pairing itself is in the unit tests")
def test_a_network_sweep_finds_the_pair_whose_link_loses_packets(tmp_path: Path) -> None:
    need_slurm()
    if why := netns_nodes.missing():
        pytest.skip(why)
    with netns_nodes.NodeNetwork(4, tmp_path) as network, SlurmCluster(4, network=network) as cluster:
        network.bad_cable(1, 2, loss=0.02, delay_s=0.08)
        answer = sweep(
            cluster, tmp_path / "ws", "network", "n[1-4]", "--model", "tiny", "--steps", "12",
            "--", *QUICK, "base_emb_dim=256", "data_seconds=0.4", env={"TRACKWALKER_LISTEN": network.network},
        )  # fmt: skip
    conclusion = answer["conclusion"]
    assert [sorted(pair) for pair in conclusion["pairs"]] == [["n2", "n3"]], (conclusion["headline"], scores(answer))
    assert conclusion["exclude"] == []


@pytest.mark.alone
@pytest.mark.long(reason="six jobs of three models, alone; the node sweep above is the same engine on a real Slurm")
def test_a_model_sweep_flags_the_commit_that_slows_one_model_and_breaks_another(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    repository, models = tmp_path / "repository", tmp_path / "models"
    models.mkdir()
    for name in ("plain", "paced", "deep"):
        text = (ROOT / "src" / "trackwalker" / "models" / "tiny.yml").read_text()
        (models / f"{name}.yml").write_text(text.replace("run_name: tiny", f"run_name: {name}"))
    commits = trainer_with_two_commits(repository)
    env = {"TRACKWALKER_MODELS": str(models)}
    settings = [*QUICK, "data_seconds=0.2"]
    words = ["models", "n[1-3]", "--models", "plain", "paced", "deep", "--code", str(repository), "--steps", "15"]
    refused = run_sweep(slurm, tmp_path / "ws", *words, "--commits", commits[0], "nothing", "--", *settings, env=env)
    assert refused.returncode == 2
    assert "'nothing' is no commit" in refused.stderr
    answer = sweep(slurm, tmp_path / "ws", *words, "--commits", *commits, "--", *settings, env=env)
    verdicts = {(v["commit"], v["size"]): v["verdict"] for v in answer["conclusion"]["details"]["verdicts"]}
    assert {size: verdict for (commit, size), verdict in verdicts.items() if commits[1].startswith(commit)} == {
        "plain/1N": "no change", "paced/1N": "regression", "deep/1N": "breakage",
    }, scores(answer)  # fmt: skip


def trainer_with_two_commits(repository: Path) -> list[str]:
    """A fork of the tiny trainer; its second commit waits longer for the data of one model and refuses another."""
    package = repository / "trackwalker"
    source = ROOT / "src" / "trackwalker"
    for part in ("trainers", "job"):
        shutil.copytree(source / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "__init__.py", package)
    git(repository, "init", "-q", "-b", "main")
    commits = [commit(repository, "as it was")]
    data = package / "trainers" / "tiny" / "data.py"
    wrong = "        if config.run_name == 'paced':\n            time.sleep(0.2)\n        yield batch\n"
    text = data.read_text()
    assert text.count("        yield batch\n") == 1
    data.write_text(text.replace("        yield batch\n", wrong))
    model = package / "trainers" / "tiny" / "model.py"
    begin = "    rng = np.random.default_rng(config.init_seed)\n"
    assert model.read_text().count(begin) == 1
    broken = f"    if config.run_name == 'deep':\n        raise TypeError('no rule for this shape')\n{begin}"
    model.write_text(model.read_text().replace(begin, broken))
    return [*commits, commit(repository, "be clever about shapes")]


def commit(repository: Path, subject: str) -> str:
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", subject)
    return git(repository, "rev-parse", "HEAD").strip()


def git(place: Path, *words: str) -> str:
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(place), *who, *words], check=True, capture_output=True, text=True).stdout
