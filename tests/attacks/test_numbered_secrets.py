"""Attacks 9 to 12: secrets in a log, a record, a verdict, a provider's request. On the public surface."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from model_server import model
from secret_forms import forms
from surface import Cluster, job_log, lands, put_job, tw

if TYPE_CHECKING:
    from strangers import Stranger

pytest_plugins = ("strangers",)
SECRET = "s3cr3t-Pony"  # noqa: S105


def test_a09_forms_of_secrets_are_not_in_a_bundle(tmp_path: Path) -> None:
    """Of the forms that nobody tuned for, 3 of 139 may be left; 0.1.0 left a third."""
    every = {(which, form.name): form for which in ("tuned", "holdout", "holdout2") for form in forms(which)}
    assert len(every) == 208
    put_job(tmp_path / "ws", job_log("".join(f"{form.text}\n\n" for form in every.values())))
    done = tw("lab", "pack", "77", "--out", tmp_path / "b.tar.gz", "--workspace", tmp_path / "ws")
    assert done.code == 0, done.err
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        (log,) = [m for m in tar if m.isreg() and m.name.endswith("77-JAX-toy.log")]
        file = tar.extractfile(log)
        assert file is not None
        packed = file.read().decode()
    leaking = [name for name, form in every.items() if form.leaks(packed)]
    if len(leaking) > 3 or any(which == "tuned" for which, _ in leaking):
        lands(f"{len(leaking)} of {len(every)} forms of secrets are in the bundle")


def test_a10_the_password_of_a_url_is_not_in_the_verdict_pages(tmp_path: Path) -> None:
    trouble = (
        '1: Traceback (most recent call last):\n1:   File "x.py", line 3, in <module>\n'
        f"1: ConnectionError: cannot reach https://bob:{SECRET}@files.example.org/data: refused\n"
    )
    put_job(tmp_path / "ws", job_log(trouble))
    page = tmp_path / "report.html"
    said = ""
    for words in (["--json"], [], ["--html", page]):
        said += tw("diagnose", "77", *words, "--workspace", tmp_path / "ws").out
    said += page.read_text() if page.exists() else ""
    assert "ConnectionError" in said, "the line is quoted, or this proves nothing"
    if SECRET in said:
        lands("the verdict shows the password of a URL")


def test_a11_settings_with_secrets_are_starred_where_others_can_read(
    shared: Path, tmp_path: Path, stranger: Stranger
) -> None:
    words = [
        f"_env_DATA_URL=https://bob:{SECRET}@files.example.org/x",
        f"_env_EXTRA_ARGS=--password={SECRET}",
        "steps=3",
    ]
    Cluster(tmp_path / "slurm").submits(shared, "--", *words)
    found = stranger.run("grep", "-rlI", SECRET, str(shared)).stdout.split()
    seen = stranger.run("grep", "-rlI", "files.example.org", str(shared)).stdout.split()
    assert [path for path in seen if path.endswith("run.json")], "the record is there, and others can read it"
    if found:
        lands(f"another user reads it in {sorted(Path(path).name for path in found)}")


def test_a12_a_models_provider_is_not_sent_secrets(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai", reason="the agent extra is not installed")
    kept = {form.name: form for which in ("tuned", "holdout") for form in forms(which) if "\n" not in form.text}
    chosen = [form for form in kept.values() if any(len(s) >= 8 for s in form.secrets)][:60]
    lines = "".join(f"1: RuntimeError: request failed: {form.text}\n" for form in chosen)
    put_job(tmp_path / "ws", job_log(lines))
    tools = [
        {"name": name, "arguments": json.dumps({"job": "77", "contains": "request failed"})}
        for name in ("log_window", "logs")
    ]
    calls = [{"id": f"c{n}", "type": "function", "function": tool} for n, tool in enumerate(tools)]
    with model({"tool_calls": calls}, {"content": "It failed."}) as (url, heard):
        asked = ["ask", "--endpoint", url, "-w", tmp_path / "ws", "why did 77 fail"]
        done = tw(*asked)
    assert done.code == 0, done.err
    sent = "\n".join(heard)
    assert "request failed" in sent, "the lines are quoted, or this proves nothing"
    leaking = [form.name for form in chosen if form.leaks(sent)]
    if leaking:
        lands(f"the provider was sent {len(leaking)} secrets: {leaking[:4]}")
