"""What a Kubernetes manifest starts, started here: its own argument list and environment, one process for each pod."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trackwalker.diagnose.triage import triage
from trackwalker.errors import MissingToolError, UsageError
from trackwalker.job.journal import read
from trackwalker.job.resolve import resolve
from trackwalker.job.run import load_run
from trackwalker.launch.kubernetes.client import Answer
from trackwalker.launch.kubernetes.settings import read_settings
from trackwalker.launch.schedulers.kubernetes import PodBatch, plan_pod_batch, submit
from trackwalker.launch.submission import How, plan_submission
from trackwalker.launch.validate import Asked

pytestmark = pytest.mark.timeout(120)
ODD = "a b'\"$(HOME)$$\\ %s é\n;"
TRAINER = """
import json, os, sys, time
print("Config param steps: 3", flush=True)
here = os.path.join(os.environ["JOB_WORKSPACE"], os.environ["JOB_DIR"])
with open(os.path.join(here, "seen-" + os.environ["NODE_RANK"]), "w") as f:
    json.dump([os.environ["ODD"], sys.argv[-1]], f)
for step in range(3):
    print(f"completed step: {step}, seconds: 0.100, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0", flush=True)
    time.sleep(0.1)
"""


def planned(workspace: Path, spec: str = "tiny:exp1") -> PodBatch:
    words = [f"run_name={ODD}", f"_env_ODD={ODD}"]
    asked = Asked(spec, words, nodes=2, workspace=workspace)
    submission = plan_submission(asked, How("kubernetes", ["submit", spec, "-N2", "--", *words], python=sys.executable))
    order = dataclasses.replace(submission.order, argv=[sys.executable, "-c", TRAINER], output=None)
    settings = read_settings(["-N2"], {"K8S_PVC_NAME": "shared", "K8S_PVC_MOUNT": str(workspace)})
    quick = dataclasses.replace(submission, order=order)
    return plan_pod_batch(quick, settings, "image", workspace, python=sys.executable)


def cluster(argv: list[str], text: str) -> Answer:
    return Answer(0, json.dumps({"metadata": {"uid": "1"}}), "")


def pods(manifest: Path) -> list[tuple[list[str], dict[str, str]]]:
    """What the kubelets of two machines would start; nothing in this manifest needs more than `$$` undone."""
    items = json.loads(manifest.read_text())["items"]
    job: dict[str, Any] = next(item for item in items if item["kind"] == "Job")
    container = job["spec"]["template"]["spec"]["containers"][0]
    env = {v["name"]: v["value"].replace("$$", "$") for v in container["env"] if "value" in v}
    argv = [word.replace("$$", "$") for word in container["command"]]
    base = {"PATH": os.environ["PATH"]}
    machines = range(job["spec"]["completions"])
    return [(argv, {**base, **env, "JOB_COMPLETION_INDEX": str(n), "NODE_NAME": f"m{n}"}) for n in machines]


@pytest.mark.slow
def test_r43_the_manifest_runs_to_its_end_in_one_job_directory(tmp_path: Path) -> None:
    job = submit(planned(tmp_path), run=cluster)
    started = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) for argv, env in pods(job.manifest)]
    try:
        for pod in started:
            pod.communicate(timeout=90)
    finally:
        for pod in started:
            pod.kill()
            pod.wait()
    log = job.log.read_text()
    assert [pod.returncode for pod in started] == [0, 0], log[-3000:]
    assert log.count("JOB SUMMARY") == 1
    assert [p.name for p in tmp_path.iterdir() if p.is_dir() and not p.name.startswith(".")] == [job.job_dir.name]
    assert job.job_dir.name == f"{job.id}-JAX-tiny-exp1"
    record = load_run(job.job_dir / "run.json")
    assert record is not None
    assert [(place.rank, place.host) for place in record.ranks] == [(0, "m0"), (1, "m1")]
    for rank in (0, 1):
        assert json.loads((job.job_dir / f"seen-{rank}").read_text()) == [ODD, f"run_name={ODD}"]
    steps = [(r["rank"], r["step"]) for r in read(job.job_dir / "progress.jsonl").items]
    assert sorted(steps) == [(rank, step) for rank in (0, 1) for step in range(3)]
    assert triage(resolve(job.id, tmp_path)).status == "completed"


def test_r11_a_refused_submit_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="forbidden"):
        submit(planned(tmp_path), run=lambda argv, text: Answer(1, "", "jobs is forbidden"))
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_without_kubectl_the_manifest_waits_to_be_applied(tmp_path: Path) -> None:
    def missing(argv: list[str], text: str) -> Answer:
        raise MissingToolError("kubectl is not installed")

    job = submit(planned(tmp_path), run=missing)
    assert not job.applied
    assert len(pods(job.manifest)) == 2
    assert (job.manifest.parent / "order.json").stat().st_mode & 0o077 == 0


def test_paths_are_those_of_the_pods_when_the_claim_is_mounted_elsewhere(tmp_path: Path) -> None:
    workspace = tmp_path / "code" / "outputs"
    submission = plan_submission(Asked("tiny", nodes=2, workspace=workspace), How("kubernetes", ["submit", "tiny"]))
    settings = read_settings([], {"K8S_PVC_NAME": "shared", "REPO_PATH_IN_PVC": "me/code"})
    job = submit(plan_pod_batch(submission, settings, "image", tmp_path / "code"), run=cluster)
    argv, env = pods(job.manifest)[0]
    there = "/mnt/shared/me/code/outputs"
    folder = f"{there}/.submissions/{submission.folder.name}"
    assert argv == ["python3", f"{folder}/agent.pyz", "node", f"{folder}/order.json"]
    assert env["JOB_WORKSPACE"] == there
    order = json.loads((submission.folder / "order.json").read_text())
    assert order["workspace"] == there
    assert order["argv"][-1] == f"{folder}/config.yml"
    assert job.job_dir.parent == workspace  # on this machine
    assert job.job_dir.is_dir()
