"""Which variables of the submitter's shell a job inherits: what makes programs found, nothing that steers a run.

The rest is declared (`_env_NAME=VALUE`, the layers), written down in run.json with its source, and the same for whoever
submits. A stray XLA_FLAGS or NCCL_DEBUG of an old shell must not decide how 192 GPUs train.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMES = frozenset(
    (
        "PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR",
        "TMP", "TEMP", "VIRTUAL_ENV", "LOADEDMODULES", "_LMFILES_", "MODULEPATH", "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE", "REGISTRY_AUTH_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "FTP_PROXY",
    )
)  # fmt: skip
_FORMS = re.compile(
    r"LC_\w+|PYTHON\w*|CONDA_\w+|MAMBA_\w+|MODULE\w*|LMOD_\w+|BASH_FUNC_\S+|XDG_\w+|SSL_CERT_\w+|KRB5\w*|SLURM\w*|TRACKWALKER\w*"
    r"|DOCKER_\w+|PODMAN_\w+|APPTAINER_\w+|SINGULARITY_\w+|ENROOT_\w+|(CUDA|ROCM|HIP)_(HOME|PATH)|\w+_CACHE(_\w+)?"
)
# What people set in a shell in the belief that the trainer sees it; they are told that it does not.
_STEERS = re.compile(
    r"(XLA|JAX|NCCL|RCCL|TORCH|PYTORCH|GLOO|UCX|FI|IB|HSA|HIP|CUDA|ROCR|OMP|MKL|WANDB|HF|HUGGING_FACE|MAXTEXT|LIBTPU|TPU)_\w+"
)


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """What of the shell goes with the job."""
    return {name: value for name, value in env.items() if _passes(name)}


def left_behind(env: Mapping[str, str]) -> list[str]:
    """Names that would have steered the run and do not reach it; their values are nobody's business."""
    return sorted(name for name in env if _STEERS.fullmatch(name) and not _passes(name))


def _passes(name: str) -> bool:
    return name in _NAMES or name.upper() in _NAMES or _FORMS.fullmatch(name) is not None
