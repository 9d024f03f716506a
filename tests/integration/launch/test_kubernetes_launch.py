"""What a Kubernetes manifest starts, started here: its own argument list and environment, one process for each pod."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hard_values
import pytest
from command_here import call_here
from hypothesis import given
from tiny_settings import PACED

from trackwalker.diagnose.triage import triage
from trackwalker.errors import MaybeQueuedError, MissingToolError, UsageError
from trackwalker.job.journal import read
from trackwalker.job.resolve import resolve
from trackwalker.job.run import load_run
from trackwalker.launch.kubernetes.client import Answer
from trackwalker.launch.kubernetes.settings import read_settings
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.kubernetes import PodBatch, plan_pod_batch, submit
from trackwalker.launch.submission import How, plan_submission

pytestmark = [
    pytest.mark.timeout(120),
]
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

SLOW = TRAINER.replace("range(3)", "range(30)")


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


def run_pods(manifest: Path, seconds: float = 90.0, **more: str) -> list[int]:
    """Start every pod of the manifest, and wait for their exit codes."""
    started = [subprocess.Popen(argv, env={**env, **more}, stdout=subprocess.PIPE) for argv, env in pods(manifest)]
    try:
        for pod in started:
            pod.communicate(timeout=seconds)
    finally:
        for pod in started:
            pod.kill()
            pod.wait()
    return [pod.returncode for pod in started]


def cli(workspace: Path, *words: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    """Our command with a claim that is mounted here as in the pods."""
    return call_here(environment(workspace, path), *words, cwd=workspace)


def environment(workspace: Path, path: str) -> dict[str, str]:
    knobs = {"K8S_PVC_NAME": "shared", "K8S_PVC_MOUNT": str(workspace), "GPUS_PER_NODE": "0", "PATH": path}
    return {**os.environ, **knobs, "JOB_WORKSPACE": str(workspace)}


@pytest.fixture
def no_kubectl(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with git and without kubectl."""
    folder = tmp_path_factory.mktemp("bin")
    if git := shutil.which("git"):
        (folder / "git").symlink_to(git)
    return str(folder)


def test_a14_kubernetes_all_pods_of_a_real_run_are_recorded(tmp_path: Path, no_kubectl: str, prometheus: Path) -> None:
    words = ["submit", "tiny:a14", "-N2", "-n", "ml", "--on", "k8s", "--observe", "--image", "a.example/jax:1"]
    words += ["--python", sys.executable, "--json", "--", *PACED, "steps=40", "enable_checkpointing=false"]
    done = cli(tmp_path, *words, path=no_kubectl)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    apply = f"kubectl apply --namespace ml --filename {answer['manifest']}"
    assert (answer["state"], answer["reason"]) == ("not applied", apply)
    assert f"to queue it: {apply}" in done.stderr
    home = os.environ["HOME"]  # Prometheus is installed there; the images of pods have their own
    codes = run_pods(Path(answer["manifest"]), 150, HOME=home)
    job_dir, log = Path(answer["dir"]), Path(answer["log"]).read_text()
    assert codes == [0, 0], log[-3000:]
    assert log.count("JOB SUMMARY") == 1
    record = load_run(job_dir / "run.json")
    assert record is not None
    assert record.kubernetes == {"namespace": "ml", "kind": "Job", "name": record.kubernetes["name"]}
    assert record.image == "a.example/jax:1"
    steps = [(r["rank"], r["step"]) for r in read(job_dir / "progress.jsonl").items if r["phase"] == "train"]
    assert sorted(steps) == [(rank, step) for rank in (0, 1) for step in range(40)]
    query = "count by (host) (max_over_time(hw_rank_up[30m]))"
    told = cli(tmp_path, "tsdb", "query", str(job_dir), query, "--json")
    assert told.returncode == 0, told.stderr
    assert all(f'"m{n}"' in told.stdout for n in (0, 1)), told.stdout
    status = cli(tmp_path, "status", answer["id"], path=no_kubectl)
    assert (status.returncode, "completed (by its log" in status.stdout) == (0, True)


def test_r39_an_image_without_trackwalker_trains_unrecorded_and_says_so_once(tmp_path: Path) -> None:
    batch = planned(tmp_path)
    bare = {"recorder": [sys.executable, "-I", "-S", "-m", "trackwalker.observe"]}
    order = dataclasses.replace(batch.in_pod.order, services=bare, argv=[sys.executable, "-c", SLOW])
    batch = dataclasses.replace(batch, in_pod=dataclasses.replace(batch.in_pod, order=order))
    job = submit(batch, run=cluster)
    codes = run_pods(job.manifest)
    log = job.log.read_text()
    assert codes == [0, 0], log[-3000:]
    assert log.count("[WARN] no recorder: trackwalker is not installed for") == 1
    assert "SUCCESS (exit 0)" in log


def test_r43_the_manifest_runs_to_its_end_in_one_job_directory(tmp_path: Path) -> None:
    job = submit(planned(tmp_path), run=cluster)
    codes = run_pods(job.manifest)
    log = job.log.read_text()
    assert codes == [0, 0], log[-3000:]
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


@hard_values.few_runs(2)
@given(values=hard_values.VALUES)
def test_r04_kubernetes_values_reach_the_trainer_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("values")
    words = [f"_env_{name}={value}" for name, value in hard_values.environment(values).items()]
    asked = Asked("tiny", words, nodes=2, workspace=folder)
    submission = plan_submission(asked, How("kubernetes", ["submit", "tiny"], python=sys.executable))
    trainer, told = hard_values.stand_in(folder / "seen"), hard_values.settings_words(values)
    order = dataclasses.replace(submission.order, argv=trainer, settings=told, output=None)
    settings = read_settings(["-N2"], {"K8S_PVC_NAME": "shared", "K8S_PVC_MOUNT": str(folder)})
    quick = dataclasses.replace(submission, order=order)
    job = submit(plan_pod_batch(quick, settings, "image", folder, python=sys.executable), run=cluster)
    assert run_pods(job.manifest) == [0, 0], job.log.read_text(errors="replace")[-3000:]
    for rank in (0, 1):
        hard_values.check(folder / "seen", rank, values)


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


def test_r11_a_submit_that_nobody_answered_keeps_what_the_job_needs(tmp_path: Path) -> None:
    with pytest.raises(MaybeQueuedError, match="may be there all the same"):
        submit(planned(tmp_path), run=lambda argv, text: Answer(124, "", "no answer in 30 s"))
    (folder,) = (tmp_path / ".submissions").iterdir()
    assert {"order.json", "agent.pyz", "manifest.json"} <= {p.name for p in folder.iterdir()}


KUBECTL = """#!/bin/sh
echo "$@" >> "$0.asked"
case "$1" in
create) cat > "$0.job"; echo '{"metadata": {"uid": "u1"}}' ;;
get) cat "$0.answer" || { echo 'Unable to connect to the server' >&2; exit 1; } ;;
delete) [ -e "$0.answer" ] || { echo 'Unable to connect to the server' >&2; exit 1; } ;;
logs) echo "[pod/x] FATAL: cannot read the order" ;;
esac
"""


def test_status_cancel_logs_and_wait_of_a_job_in_a_cluster(tmp_path: Path, no_kubectl: str) -> None:
    kubectl = Path(no_kubectl, "kubectl")  # stands for the real one and its cluster
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    path = f"{no_kubectl}:{os.environ['PATH']}"
    words = ["-n", "ml", "--nodes=2", "--on", "k8s", "--image", "a.example/jax:1", "--json"]
    done = cli(tmp_path, "submit", "tiny", *words, path=path)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["id"]
    asked = Path(f"{kubectl}.asked")
    assert [line.split()[0] for line in asked.read_text().splitlines()] == ["create", "apply"]
    done = cli(tmp_path, "status", job, path=path)
    assert (done.returncode, "Unable to connect" in done.stdout) == (69, True)
    done = cli(tmp_path, "wait", job, "--timeout", "0.1", path=path)
    assert done.returncode == 75
    done = cli(tmp_path, "cancel", job, path=path)
    assert done.returncode == 69, "nobody was told"
    assert "was not cancelled: Unable to connect to the server; the cluster does not answer" in done.stderr
    again = cli(tmp_path, "resubmit", job, "--dry-run", path=path)
    assert "K8S_PVC_NAME=shared" in again.stdout, again.stderr
    assert "submit tiny -n ml --nodes=2 --on k8s" in again.stdout
    condition = {"type": "Complete", "status": "True"}
    running = {"kind": "Job", "spec": {"completions": 1}, "status": {}}
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Running"}}
    Path(f"{kubectl}.answer").write_text(json.dumps({"items": [running, pod]}))
    assert cli(tmp_path, "status", job, path=path).stdout == f"job {job} running\n"
    argv = [sys.executable, "-m", "trackwalker", "logs", job]  # kubectl itself writes to its output
    told = subprocess.run(
        argv, env=environment(tmp_path, path), capture_output=True, text=True, timeout=60, check=False
    )
    assert "FATAL: cannot read the order" in told.stdout, "no log is seen from here"
    assert cli(tmp_path, "cancel", job, path=path).returncode == 0
    last = asked.read_text().splitlines()[-1]
    assert last.startswith("delete jobs.batch,services --namespace ml --selector trackwalker/job-id=" + job)
    Path(f"{kubectl}.answer").write_text(json.dumps({"items": [{**running, "status": {"conditions": [condition]}}]}))
    assert cli(tmp_path, "wait", job, path=path).returncode == 0


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
