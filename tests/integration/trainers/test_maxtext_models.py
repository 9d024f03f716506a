"""MaxText's own loader accepts every shipped model; only where MaxText is installed (`make test-maxtext`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from trackwalker.launch.request.models import load_model, model_files

pytestmark = [
    pytest.mark.skipif(find_spec("maxtext.configs") is None, reason="MaxText is not installed: make test-maxtext"),
]

# The eight GPUs of a node are eight pretended CPU devices: the loader counts them, nothing is computed.
LOAD = """
import json, sys
from maxtext.configs import pyconfig
told = ["hardware=cpu", "skip_jax_distributed_system=true", "base_output_directory=" + sys.argv[1]]
said = {}
for path in sys.argv[2:]:
    try:
        config = pyconfig.initialize(["", path, *told])
        said[path] = {"width": config.emb_dim, "experts": config.num_experts, "layers": config.num_decoder_layers}
    except Exception as e:
        said[path] = {"error": str(e)[:500]}
print("ANSWER" + json.dumps(said))
"""


def test_every_shipped_model_loads_with_the_architecture_that_we_count_with(tmp_path: Path) -> None:
    models = {n: m for n in model_files({}) if (m := load_model(n, {})).about.trainer == "maxtext"}
    for name, model in models.items():
        (tmp_path / f"{name}.yml").write_text(model.trainer_yaml())
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    words = [sys.executable, "-c", LOAD, str(tmp_path / "out"), *(str(tmp_path / f"{n}.yml") for n in models)]
    run = subprocess.run(words, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    said = json.loads(run.stdout.rpartition("ANSWER")[2])
    for name, model in models.items():
        ours = {**model.about.architecture, **model.config}
        width, experts = ours["base_emb_dim"], ours.get("num_experts", 1)
        wanted = {"width": width, "experts": experts, "layers": ours["base_num_decoder_layers"]}
        assert said[str(tmp_path / f"{name}.yml")] == wanted, name
