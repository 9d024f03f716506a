"""Secrets are hidden by name, by shape and wherever they recur; everything else stays."""

from __future__ import annotations

import json
import time

import pytest

from trackwalker.job.scrub import Scrubber

SECRETS = {
    "HF_TOKEN=hunter2hunter2": "hunter2hunter2",
    "export WANDB_API_KEY='0123456789abcdef0123456789abcdef01234567'": "0123456789abcdef0123456789abcdef01234567",
    '{"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG", "x": 1}': "wJalrXUtnFEMI/K7MDENG",
    r'"{\"DB_PASSWORD\": \"corr3ct horse\"}"': "corr3ct horse",
    "Config param hf_access_token: hf_abcdefghijklmnopqrstuv": "hf_abcdefghijklmnopqrstuv",
    "python train.py --hf_token s3cr3t-thing --steps 5": "s3cr3t-thing",
    "_env_GITHUB_PAT=abcdef123456": "abcdef123456",
    "Authorization: Bearer abc.def.ghi-123": "abc.def.ghi-123",
    "cloning https://bob:pa55word@git.example.org/x.git": "pa55word",
    "got ghp_abcdefghijklmnopqrstuvwxyz012345 back": "ghp_abcdefghijklmnopqrstuvwxyz012345",
    "id AKIAIOSFODNN7EXAMPLE used": "AKIAIOSFODNN7EXAMPLE",
    "https://s3/x?X-Amz-Signature=deadbeef00&X-Amz-Date=1": "deadbeef00",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----": "MIIEow",
    "jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl": "eyJzdWIiOiIxMjM0In0",
}


@pytest.mark.parametrize(("text", "secret"), SECRETS.items(), ids=lambda t: t[:24])
def test_a_secret_is_gone(text: str, secret: str) -> None:
    assert secret in text
    scrubber = Scrubber()
    scrubber.learn(text)
    assert secret not in scrubber.clean(text)
    assert scrubber.hidden > 0


def test_what_is_named_once_is_hidden_everywhere() -> None:
    scrubber = Scrubber()
    scrubber.learn("MY_API_KEY=opensesame42")
    assert scrubber.clean("curl: 403 for opensesame42 at /v1") == "curl: 403 for *** at /v1"


@pytest.mark.parametrize(
    "line",
    [
        "completed step: 71, seconds: 30.309, TFLOP/s/device: 207.973, Tokens/s/device: 3293.1, loss: 2.601",
        "NODE_EXIT host=chi2822 exit=143",
        "Config param tokenizer_path: /models/tokenizer.json",
        "Token indices sequence length is longer than the specified maximum",
        "E0224 19:21:00.1 27562 coordination_service.cc:1146] UNAVAILABLE: /job:jax_worker/replica:0/task:8",
        "[2026-02-24 19:21:00] chi2853:1008:37121 [0] init.cc:2095 NCCL WARN Timeout",
    ],
)
def test_evidence_stays_as_it_is(line: str) -> None:
    scrubber = Scrubber()
    scrubber.learn(line)
    assert scrubber.clean(line) == line
    assert scrubber.hidden == 0


def test_everything_below_a_secret_name_is_secret() -> None:
    document = {"env": {"HF_TOKEN": {"value": "abc", "source": "env"}, "STEPS": {"value": 5}}, "argv": ["x=1"]}
    scrubber = Scrubber()
    scrubber.learn_document(document)
    cleaned = scrubber.clean_document(document)
    assert cleaned["env"]["HF_TOKEN"]["value"] == "***"
    assert cleaned["env"]["STEPS"] == {"value": 5}
    assert "abc" not in json.dumps(cleaned)


def test_a_measured_number_is_no_secret_whatever_its_pod_is_called() -> None:
    values = {"vit-g-dd594b499-pw5v6": 12.5, "db-password": "hunter2hunter2"}
    cleaned = Scrubber().clean_document({"values": values})["values"]
    assert cleaned == {"vit-g-dd594b499-pw5v6": 12.5, "db-password": "***"}


def test_a_dull_value_is_hidden_where_it_is_named_only() -> None:
    scrubber = Scrubber()
    text = "DB_PASSWORD=default\noptimizer: default\n"
    scrubber.learn(text)
    assert scrubber.clean(text) == "DB_PASSWORD=***\noptimizer: default\n"


@pytest.mark.parametrize("word", ["z", "a-", "--a", "a.b_", "9a", "http", "x='", 'k="'])
def test_an_endless_word_takes_no_longer_than_a_text_of_its_length(word: str) -> None:
    scrubber = Scrubber()
    text = word * (60_000 // len(word))
    began = time.process_time()
    scrubber.learn(text)
    scrubber.clean(text)
    assert time.process_time() - began < 3.0  # a minute and more, once
