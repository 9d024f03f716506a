"""`trackwalker config` and `trackwalker explain`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trackwalker.cli import app
from trackwalker.launch.request.models import read_model


@pytest.fixture(name="call")
def _call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    monkeypatch.delenv("TRACKWALKER_MODELS", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trackwalker", *words])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


def test_list(call: Any) -> None:
    code, out, _ = call("config", "list", "--json")
    answer = json.loads(out)
    assert (code, answer["schema"]) == (0, "trackwalker.config/1")
    (llama,) = [m for m in answer["models"] if m["name"] == "llama2-70b"]
    assert (llama["aliases"], llama["parameters"]) == (["70b", "llama2"], 68_976_648_192)
    code, out, _ = call("config", "list")
    assert code == 0
    assert all(m["name"] in out for m in answer["models"])


def test_show(call: Any) -> None:
    words = ("config", "show", "405b", "-N", "4", "--", "steps=3", "hf_access_token=hush", "_env_HF_TOKEN=hush")
    code, out, _ = call(*words)
    assert code == 0
    assert "per_device_batch_size: 1   (rule four-nodes)" in out
    assert "steps: 3   (command line)" in out
    assert "mesh on 4 x 8 GPUs: dcn fsdp=4 | ici fsdp=8" in out
    assert "hush" not in out
    code, out, _ = call(*words[:5], "--json", *words[5:])
    answer = json.loads(out)
    assert answer["schema"] == "trackwalker.config/1"
    assert answer["accepted"] is True
    assert answer["config"]["steps"] == {"value": "3", "source": "command line"}
    assert answer["env"]["HF_TOKEN"] == {"value": "***", "source": "command line"}
    assert answer["mesh"]["dcn"]["fsdp"] == 4
    assert "hush" not in out


def test_check(call: Any) -> None:
    code, out, _ = call("config", "check", "70b")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == [
        f"llama2-70b on {n} node{'s' * (n > 1)}" for n in (1, 2, 4, 8, 16, 24)
    ]
    code, out, _ = call("config", "check", "405b", "-N", "1", "--json", "--", "remat=full")
    (row,) = json.loads(out)["checks"]
    assert (code, row["accepted"], row["memory"]["verdict"]) == (1, False, "impossible")
    assert [p["about"] for p in row["problems"]] == ["config", "memory"]
    assert "did you mean 'remat_policy'?" in row["problems"][0]["text"]
    code, out, err = call("config", "check", "nosuch-model")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


HF = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "rope_theta": 1000000,
}


def test_new_from_released_weights(call: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HF))
    code, out, _ = call("config", "new", "qwen3-8b", "--hf", "config.json", "--like", "qwen3-14b", "--", "steps=7")
    assert code == 0, out
    model = read_model(tmp_path / "qwen3-8b.yml")
    assert model.config["steps"] == 7
    assert model.config["run_name"] == "qwen3-8b"
    assert "model_name" not in model.config
    _, out, _ = call("config", "show", "./qwen3-8b.yml", "--json")
    assert json.loads(out)["parameters"] == 8_190_735_360  # as published: 8.2B
    code, _, err = call("config", "new", "qwen3-8b", "--hf", "config.json")
    assert (code, "exists; --force" in err) == (2, True)


def test_new_like_another(call: Any, tmp_path: Path) -> None:
    code, _, _ = call("config", "new", "mine.yml", "--like", "70b", "--", "per_device_batch_size=2")
    assert code == 0
    model = read_model(tmp_path / "mine.yml")
    assert model.config["model_name"] == "llama2-70b"
    assert model.config["per_device_batch_size"] == 2
    code, out, _ = call("config", "new", "broken", "--like", "70b", "--", "stepps=1")
    assert code == 1
    assert "did you mean 'steps'?" in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is not the config.json of a language model"),
        (json.dumps({**HF, "model_type": "mamba"}), "model_type 'mamba' has no block in MaxText"),
    ],
)
def test_new_from_what_is_no_config(call: Any, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    code, _, err = call("config", "new", "x", "--hf", "config.json")
    assert code == 2
    assert says in err
    assert not (tmp_path / "x.yml").exists()


def test_explain(call: Any) -> None:
    code, out, _ = call("explain", "NCCL_DEBUG", "70b", "--", "_env_NCCL_DEBUG=INFO")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["base", "WARN"], ["command", "line"]]
    code, out, _ = call("explain", "XLA_FLAGS", "deepseek", "-N", "8", "--vendor", "nvidia", "--json")
    answer = json.loads(out)
    assert answer["schema"] == "trackwalker.explain/1"
    assert answer["value"] == "--xla_gpu_all_gather_combine_threshold_bytes=1073741824"
    assert [row["source"] for row in answer["layers"]] == ["rule fsdp"]
    code, out, _ = call("explain", "NCCL_DMABUF_ENABLE", "deepseek")
    assert "checked on the node: dmabuf" in out
    code, out, _ = call("explain", "per_device_batch_size", "405b", "-N", "4", "--", "per_device_batch_size=2")
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["model", "rule", "command"]
    code, out, _ = call("explain", "base_emb_dim", "70b")
    assert "8192" in out
    code, out, _ = call("explain", "NCCL_IB_HCA", "70b")
    assert "found when the job starts" in out


def test_explain_hides_secrets_and_says_what_nobody_sets(call: Any) -> None:
    _, out, _ = call("explain", "HF_TOKEN", "70b", "--", "_env_HF_TOKEN=hush")
    assert "***" in out
    assert "hush" not in out
    code, out, err = call("explain", "NO_SUCH", "70b")
    assert (code, out) == (2, "")
    assert "no layer sets 'NO_SUCH'" in err
