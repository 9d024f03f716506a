"""A sweep from the command line on the test's own Slurm, and a trainer that is quick and steady on a busy machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from slurm_cluster import SlurmCluster

# A step is paced by the reader of data, which sleeps, and needs a fraction of that on a CPU. So a machine with more
# nodes than cores runs them at the same speed, and only what a test broke is slower.
SMALL = ["base_emb_dim=32", "base_mlp_dim=32", "base_num_decoder_layers=1", "base_num_query_heads=2", "vocab_size=64"]
SMALL += ["max_target_length=32"]
QUICK = [*SMALL, "enable_tensorboard=false", "enable_checkpointing=false"]


def sweep(cluster: SlurmCluster, workspace: Path, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What `trackwalker sweep … --json` says at its end; words behind '--' come last."""
    done = run_sweep(cluster, workspace, *words, env=env)
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{done.stdout[-4000:]}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run_sweep(
    cluster: SlurmCluster, workspace: Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command itself."""
    cut = words.index("--") if "--" in words else len(words)
    common = ["--workspace", str(workspace), "--yes", "--json", "--minutes", "1"]
    argv = [sys.executable, "-m", "trackwalker", "sweep", *words[:cut], *common, *words[cut:]]
    return subprocess.run(
        argv, env={**cluster.env, **(env or {})}, capture_output=True, text=True, timeout=400, check=False
    )


def scores(answer: dict[str, Any]) -> dict[str, float | str]:
    """What each trial came to: its score, or how it failed."""
    return {r["key"]: r["score"] if r["status"] == "ok" else r["status"] for r in answer["results"] if not r["again"]}
