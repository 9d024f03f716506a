"""Secrets in every form we know of: none is left in a view, and nothing else is taken away."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from trackwalker.job.layout import Job
from trackwalker.job.run import load_run
from trackwalker.job.scrub import Scrubber, shown

sys.path.insert(0, str(Path(__file__).parent))
from secret_forms import Form, forms

REAL = [ROOT.parent / "shared" / "data" / name for name in ("reallogs", "maxtext", "jaxfaults")]


def cleaned(text: str) -> str:
    scrubber = Scrubber()
    scrubber.learn(text)
    return scrubber.clean(text)


@pytest.mark.parametrize("form", forms("tuned"), ids=lambda form: form.name)
def test_a_form_that_the_patterns_were_written_for_is_gone(form: Form) -> None:
    assert all(secret in form.text for secret in form.secrets)
    assert not form.leaks(cleaned(form.text))


def test_of_the_forms_kept_apart_few_leak() -> None:
    """0.1.0 left 30 of these 99; the patterns were written without them and left 2 at first sight. Keep it so."""
    leaking = [form.name for form in forms("holdout") if form.leaks(cleaned(form.text))]
    assert len(leaking) <= 2


def test_of_forty_more_by_another_author_one_leaks_at_most() -> None:
    """Written before that author had read the patterns: 1 of 40 was left at first sight, a password for sudo."""
    assert len([form.name for form in forms("holdout2") if form.leaks(cleaned(form.text))]) <= 1


def test_no_line_of_a_real_log_is_changed() -> None:
    logs = [p for folder in REAL if folder.is_dir() for p in folder.rglob("*") if p.suffix in (".log", ".txt", ".out")]
    if not logs:
        pytest.skip("the real logs are kept outside the repository and are not here")
    for path in logs:
        text = path.read_bytes().decode("utf-8", "replace")[: 1 << 20]
        assert cleaned(text) == text, path.name


@pytest.mark.parametrize(
    "line",
    [
        "xla::gpu::AutotunerPass::RunImpl failed",
        "Tokens/s/device: 3293.1, total_tokens=4096, max_tokens: 2048, pad_token_id=0, tokenizer=meta-llama/Llama-2-7b",
        "param layers.12.attention.key_proj.kernel: bf16[4096,4096]",
        "commit 4114a790125500ff03bdd0d59e2832b65159c2e2 by bob",
        "seed: 1234, data_shuffle_seed=0, session 3 of 5, pass 2 of 3: 0.4 s",
        "sha256:1782a4497d4343d4db7bf80052be7c74dc580c41bb5e8436d67817018be6d60c",
        "http://node07:8888/lab/tree/a@b",
        "key=rope_scaling in kwargs",
        "PWD=/home/bob/train OLDPWD=/home/bob",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "Password authentication failed for user trainer",
        "KeyError: 'attention_mask'",
        "docker run -p 8080:80 -u 1000:1000 registry.example.org/train:v2",
        "srun -p gpu-large --pty bash",
        "auth_type=none, password_file=None, secret_name: null",
        "key = jax.random.PRNGKey(0); subkey = jax.random.split(key, 4)",
        "echo finished | tee -a /tmp/log && cat x | sudo -S tee y",
    ],
)
def test_what_only_sounds_like_a_secret_stays(line: str) -> None:
    assert cleaned(line) == line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "postgresql://trainer:s3cr3t-Pony@db.example.org/runs"),
        ("EXTRA_ARGS", "--hub-token hunter2hunter2"),
        ("HEADERS", "authorization: bearer 0a1B2c3D4e5F6g7H8i9J"),
        ("NOTE", "hf_" + "a1B2" * 8),
    ],
)
def test_a_record_is_starred_by_shape_where_the_name_says_nothing(name: str, value: str) -> None:
    for part in ("s3cr3t", "hunter2", "0a1B2c3D4e5F", "a1B2a1B2"):
        assert part not in shown(name, value)


def test_settings_and_passthrough_of_a_run_are_starred_by_shape(tmp_path: Path) -> None:
    from trackwalker.launch.plan import header_words, shown_words, starred
    from trackwalker.launch.request.words import ModelSpec, parse_passthrough

    secret = "s3cr3t-Pony"  # noqa: S105
    words = [f"_env_DATA_URL=https://bob:{secret}@files.example.org/x", f"note=--password={secret}"]
    said = header_words(ModelSpec("tiny", None, None), parse_passthrough(words), None)
    said += [starred(word) for word in words] + [str(shown_words(dict(w.split("=", 1) for w in words)))]
    assert secret not in json.dumps(said)


def test_a_url_password_is_not_in_a_verdict(tmp_path: Path) -> None:
    from triage_logs import ending, header, steps

    from trackwalker.diagnose.engine import diagnose

    folder = tmp_path / "77-JAX-toy"
    folder.mkdir()
    trouble = (
        '1: Traceback (most recent call last):\n1:   File "x.py", line 3, in <module>\n'
        "1: ConnectionError: cannot reach https://bob:s3cr3t-Pony@files.example.org/data: refused\n"
    )
    (tmp_path / "77-JAX-toy.log").write_text(header(2, steps=100) + steps(17, 2) + trouble + ending(1))
    made = diagnose(Job("77", tmp_path / "77-JAX-toy.log", folder))
    assert "ConnectionError" in made.verdict.to_json(), "the line is quoted, or this proves nothing"
    assert "s3cr3t-Pony" not in made.verdict.to_json()
    assert load_run(folder / "run.json") is None
