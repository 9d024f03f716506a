"""`plan`: what the scheduler, the container and every rank would be given, and nothing is made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from trackwalker.cli import app
from trackwalker.cli.commands import load

HUSH = "_env_HF_TOKEN=hush"


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["trackwalker", *words])
    with pytest.raises(SystemExit) as end:
        app.main()
    return int(end.value.code or 0)


def test_plan_takes_what_submit_takes() -> None:
    plan, submit = ({option for p in load(name).params for option in p.opts} for name in ("plan", "submit"))
    assert submit - plan == {"--dry-run"}
    assert plan - submit == set()


def test_a_plan_for_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["70b", "-N2", "--image", "rocm/jax:1", "--runtime", "docker", "--", "remat_policy=minimal", HUSH]
    assert call(monkeypatch, tmp_path, "plan", *words) == 1  # without remat it would probably run out of memory
    brief = capsys.readouterr().out
    assert brief.startswith("1 problem: JAX-llama2-70b on 2 nodes, 2 ranks\n- a step probably does not fit: ")
    assert "sbatch --parsable" in brief
    assert "agent.pyz" not in brief
    assert call(monkeypatch, tmp_path, "plan", "--script", *words) == 1
    said = capsys.readouterr().out
    assert "# JAX-llama2-70b: 2 nodes, 2 ranks\nsbatch --parsable" in said
    assert "agent.pyz node " in said
    assert "\ndocker run --rm --name trackwalker-JOB-r0" in said
    assert "docker.io/rocm/jax:1 -u " in said
    assert "remat_policy: minimal  # command line" in said
    assert "HF_TOKEN='***'  # command line" in said
    assert "hush" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["70b", "-N1", "--gpu", "H100", "--", "per_device_batch_size=64"], (2,), "weights and optimizer alone"),
        (["tiny", "-N1"], (0,), "OK: settings are valid: JAX-tiny on 1 node, 1 rank"),
        (["70b", "-N2"], (0,), " GiB per GPU: JAX-llama2-70b on 2 nodes, 2 ranks"),
    ],
)
def test_a_plan_begins_with_its_verdict(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: tuple[int, ...],
    says: str,
) -> None:
    assert call(monkeypatch, tmp_path, "plan", *words) in code
    told = capsys.readouterr()
    assert says in (told.out + told.err).splitlines()[0]


@pytest.mark.parametrize(("more", "kinds"), [([], ["Job", "Service"]), (["--jobset"], ["JobSet"])])
def test_a_plan_for_kubernetes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    kinds: list[str],
) -> None:
    monkeypatch.setenv("K8S_PVC_NAME", "shared")
    words = ["plan", "tiny", "--nodes=3", "--on", "k8s", "--image", "rocm/jax:1", "--json", *more, "--", "steps=9"]
    assert call(monkeypatch, tmp_path, *words, HUSH) == 0
    text = capsys.readouterr().out
    said = json.loads(text)
    assert [manifest["kind"] for manifest in said["manifest"]] == kinds
    assert (said["nodes"], said["ranks"]) == (3, 3)
    there = f"/mnt/shared/{tmp_path.name}/outputs/.submissions/"  # as the pods see it
    python, agent, word, order = said["container"]
    assert (python, word) == ("python3", "node")
    assert agent.startswith(there)
    assert order.startswith(there)
    assert said["command"][4].startswith(there)
    assert said["config"]["steps"] == {"value": "9", "source": "command line"}
    assert "hush" not in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--image", "a/b"], "K8S_PVC_NAME is not set"),
        (["K8S"], "pods need an image that their nodes can pull: --image"),
        (["K8S", "--image", "a.tar"], "not the file a.tar"),
        (["K8S", "--image", "a/b", "--runtime", "podman"], "leave --runtime away"),
        (["K8S", "--image", "a/b", "--qos=5"], "Kubernetes takes -N NODES"),
    ],
)
def test_a_request_that_pods_cannot_fulfil(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    if words[0] == "K8S":
        monkeypatch.setenv("K8S_PVC_NAME", "shared")
    given = [word for word in words if word != "K8S"]
    assert call(monkeypatch, tmp_path, "submit", "tiny", "--on", "k8s", *given) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
