"""Twenty variables in the shell that submits: which of them reach a rank, on a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

from slurm_cluster import SlurmCluster
from slurm_run import Run, submit_program

from trackwalker.launch.slurm.client import left_behind
from trackwalker.launch.slurm.options import SubmitOptions

ARRIVE = {
    "LC_MESSAGES": "C", "TZ": "UTC", "PYTHONUTF8": "1", "CONDA_PREFIX": "/c", "XDG_DATA_HOME": "/x", "MODULEPATH": "/m",
    "SSL_CERT_FILE": "/ca.pem", "https_proxy": "http://proxy:1", "NO_PROXY": "local", "TRITON_CACHE_DIR": "/t",
}  # fmt: skip
STAY = {
    "FOO": "1", "NCCL_DEBUG": "INFO", "HF_TOKEN": "hush", "XLA_FLAGS": "--xla_dump_to=/x", "JAX_PLATFORMS": "tpu",
    "AWS_SECRET_ACCESS_KEY": "hush", "MASTER_ADDR": "elsewhere", "RANK": "7", "SSH_AUTH_SOCK": "/s",
    "WANDB_API_KEY": "hush",
}  # fmt: skip


def test_what_of_the_shell_reaches_a_rank(slurm: SlurmCluster, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    program = f"import json, os; json.dump(dict(os.environ), open({str(seen)!r}, 'w'))"
    before, slurm.env = slurm.env, {**slurm.env, **ARRIVE, **STAY}
    try:
        run = Run(slurm, submit_program(slurm, tmp_path / "outputs", program, SubmitOptions(nodes=1)))
        assert run.ends() == "completed", run.text
    finally:
        slurm.env = before
    found = json.loads(seen.read_text())
    assert {name: found.get(name) for name in ARRIVE} == ARRIVE
    assert {name for name in STAY if found.get(name) == STAY[name]} == set()
    assert left_behind(STAY) == ["HF_TOKEN", "JAX_PLATFORMS", "NCCL_DEBUG", "WANDB_API_KEY", "XLA_FLAGS"]
    written = "".join(path.read_text(errors="replace") for path in run.dir.rglob("*") if path.is_file())
    assert "hush" not in written + run.text
