"""What a cluster's engineers ask of a manifest: each knob is one field, valid on three versions of Kubernetes."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pod_security import breaches

from trackwalker.errors import UsageError
from trackwalker.launch.kubernetes.features import read_features
from trackwalker.launch.kubernetes.manifest import job_manifests, jobset_manifests, to_json
from trackwalker.launch.kubernetes.patch import merge, read_patches
from trackwalker.launch.kubernetes.pods import PodPlan
from trackwalker.launch.kubernetes.settings import read_settings
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.kubernetes import plan_pod_batch
from trackwalker.launch.submission import How, plan_submission

VERSIONS = ["1.29", "1.31", "1.33"]
POD = ("spec", "template", "spec")
BOX = (*POD, "containers", 0)


def plan(environ: dict[str, str] | None = None, **more: Any) -> PodPlan:
    own = {"nodes": 2, "image": "docker.io/x/y:1", "argv": ["python3"], "claim": "c", "mount": "/m", **more}
    features = read_features(environ or {})
    return PodPlan(name="tiny-1", namespace="ns", job_id="k8s-1-2-ab", features=features, **own)  # type: ignore[arg-type]


def at(manifest: Any, *path: str | int) -> Any:
    for key in path:
        manifest = manifest[key]
    return manifest


GOLDEN: list[tuple[dict[str, str], tuple[str | int, ...], Any]] = [
    ({"K8S_CPU": "96", "K8S_MEMORY": "900Gi"}, (*BOX, "resources", "requests"),
     {"amd.com/gpu": "8", "cpu": "96", "memory": "900Gi"}),
    ({"K8S_RDMA": "rdma/hca=8"}, (*BOX, "resources", "limits"), {"amd.com/gpu": "8", "rdma/hca": "8"}),
    ({"K8S_NETWORKS": "ns/rail0,ns/rail1"},
     ("spec", "template", "metadata", "annotations", "k8s.v1.cni.cncf.io/networks"), "ns/rail0,ns/rail1"),
    ({"K8S_IMAGE_PULL_SECRETS": "hub,mirror"}, (*POD, "imagePullSecrets"), [{"name": "hub"}, {"name": "mirror"}]),
    ({"K8S_PRIORITY_CLASS": "training-high"}, (*POD, "priorityClassName"), "training-high"),
    ({"K8S_SCHEDULER": "volcano"}, (*POD, "schedulerName"), "volcano"),
    ({"K8S_TOPOLOGY_SPREAD": "topology.kubernetes.io/rack"}, (*POD, "topologySpreadConstraints", 0, "topologyKey"),
     "topology.kubernetes.io/rack"),
    ({"K8S_TOPOLOGY": "cloud.com/block"},
     ("spec", "template", "metadata", "annotations", "kueue.x-k8s.io/podset-required-topology"), "cloud.com/block"),
    ({"K8S_TTL": "3600"}, ("spec", "ttlSecondsAfterFinished"), 3600),
    ({"K8S_RUN_AS": "1000:2000"}, (*POD, "securityContext"),
     {"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 2000, "runAsNonRoot": True}),
    ({"K8S_SECURITY": "baseline"}, (*BOX, "securityContext"),
     {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}),
    ({"K8S_SECURITY": "baseline"}, (*POD, "securityContext", "seccompProfile", "type"), "RuntimeDefault"),
    ({"K8S_SECRETS": "HF_TOKEN=hub/token"}, (*BOX, "env", -1),
     {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "path", "value"), GOLDEN, ids=[f"{'-'.join(e)}-{p[-1]}" for e, p, _ in GOLDEN])
def test_a_knob_is_one_field_and_valid(environ: dict[str, str], path: tuple[str | int, ...], value: Any) -> None:
    job, service = job_manifests(plan(environ))
    assert at(job, *path) == value
    for version in VERSIONS:
        for manifest in (job, service):
            kubernetes_validate.validate(manifest, version, strict=True)
    jobset = jobset_manifests(plan(environ))[0]
    inner = {"spec": jobset["spec"]["replicatedJobs"][0]["template"]["spec"]}
    assert at(jobset if path[1] == "ttlSecondsAfterFinished" else inner, *path) == value


def test_places_queue_deadline_and_gpus_are_one_field_each_and_valid() -> None:
    environ = {
        "K8S_PVC_NAME": "c", "K8S_NODE_SELECTOR": "gpu=mi300x,rack=r7", "K8S_TOLERATIONS": "reserved=llm:NoSchedule",
        "K8S_QUEUE": "training", "GPUS_PER_NODE": "4", "GPU_RESOURCE_TYPE": "nvidia.com/gpu",
    }  # fmt: skip
    settings = read_settings(["-N2", "--time", "2:00:00"], environ)
    own = {"name": "tiny-1", "job_id": "k8s-1-2-ab", "image": "docker.io/x/y:1", "argv": ["python3"]}
    pods = PodPlan(**vars(settings), **own)  # type: ignore[arg-type]
    gpus = {"nvidia.com/gpu": "4"}
    golden: list[tuple[tuple[str | int, ...], Any]] = [
        ((*POD, "nodeSelector"), {"gpu": "mi300x", "rack": "r7"}),
        ((*POD, "tolerations"), [
            {"operator": "Exists", "key": "nvidia.com/gpu"},
            {"operator": "Equal", "key": "reserved", "value": "llm", "effect": "NoSchedule"},
        ]),
        (("spec", "activeDeadlineSeconds"), 7200),
        ((*BOX, "resources"), {"limits": gpus, "requests": gpus}),
    ]  # fmt: skip
    job, jobset = job_manifests(pods)[0], jobset_manifests(pods)[0]
    inner = {"spec": jobset["spec"]["replicatedJobs"][0]["template"]["spec"]}
    for path, value in golden:
        assert at(job, *path) == at(inner, *path) == value
    for manifest in (job, jobset):
        assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "training"
    for version in VERSIONS:
        kubernetes_validate.validate(job, version, strict=True)


def test_tiny_asks_for_no_gpu_and_tolerates_no_gpu_taint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings(["-N2"], {"K8S_PVC_NAME": "c", "K8S_PVC_MOUNT": str(tmp_path)})
    for model, asks in (("tiny", False), ("llama2-70b", True)):
        asked = Asked(model, nodes=2, workspace=tmp_path, image="x/y:1")
        submission = plan_submission(asked, How("kubernetes", ["submit", model]))
        job = plan_pod_batch(submission, settings, "docker.io/x/y:1", tmp_path).manifests()[0]
        assert ("resources" in at(job, *BOX)) == asks
        assert ("tolerations" in at(job, *POD)) == asks


EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "kustomize"


@pytest.mark.starts_processes
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_kustomization_of_the_docs_builds_and_is_valid_and_baseline() -> None:
    """`kubectl kustomize` is what `kubectl apply -k` sends; it needs no API server."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=True
    )
    built = {manifest["kind"]: manifest for manifest in yaml.safe_load_all(done.stdout)}
    assert set(built) == {"Job", "Service"}
    for version in VERSIONS:
        for manifest in built.values():
            kubernetes_validate.validate(manifest, version, strict=True)
    plain = {item["kind"]: item for item in json.loads((EXAMPLE / "manifest.json").read_text())["items"]}
    before, after = at(plain["Job"], *POD), at(built["Job"], *POD)
    assert after["runtimeClassName"] == "nvidia"
    assert {v["name"] for v in after["volumes"]} == {*(v["name"] for v in before["volumes"]), "scratch"}
    assert after["containers"][0]["command"] == before["containers"][0]["command"]  # the run's own words stay
    for manifest in built.values():
        assert manifest["metadata"]["labels"]["team"] == "llm"
        assert breaches(manifest) == []
    assert "team" not in built["Service"]["spec"]["selector"]


def test_the_manifest_of_the_example_is_what_submit_writes(tmp_path: Path) -> None:
    kept = json.loads((EXAMPLE / "manifest.json").read_text())
    environ = {"K8S_PVC_NAME": "shared-data", "K8S_SECURITY": "baseline", "K8S_PVC_MOUNT": str(tmp_path)}
    asked = Asked("tiny", nodes=2, workspace=tmp_path / "outputs", image="registry.example/train:1")
    submission = plan_submission(asked, How("kubernetes", ["submit", "tiny"]))
    batch = plan_pod_batch(submission, read_settings(["-N2"], environ), "registry.example/train:1", tmp_path)
    now = to_json(batch.manifests()).replace(str(tmp_path), "/mnt/shared")
    now = now.replace(submission.folder.name, "20261116_120000_ab12cd").replace(batch.plan.name, "jax-tiny-ab12")
    assert json.loads(now.replace(batch.plan.job_id, "k8s-20261116-120000-ab12")) == kept


def test_the_time_limit_is_the_jobs_deadline() -> None:
    for text, seconds in {"90": 5400, "1:30:00": 5400, "2-0": 172800, "0:30": 30, "10:00": 600}.items():
        assert read_features({}, text).deadline_s == seconds
    for text in ("x", "0", "1:2:3:4"):
        with pytest.raises(UsageError, match="--time"):
            read_features({}, text)
    settings = read_settings(["-N2", "--time", "90"], {"K8S_PVC_NAME": "c"})
    assert settings.features.deadline_s == 5400


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("K8S_CPU", "many"), ("K8S_MEMORY", "9 GB"), ("K8S_RDMA", "hca"), ("K8S_IMAGE_PULL_SECRETS", "A_B"),
        ("K8S_TTL", "1h"), ("K8S_RUN_AS", "root"), ("K8S_SECRETS", "HF_TOKEN"), ("K8S_SECURITY", "strict"),
        ("K8S_TOPOLOGY_SPREAD", "a b"), ("K8S_SCHEDULER", "No"),
    ],
)  # fmt: skip
def test_a_wrong_knob_is_one_line_that_names_it(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        read_features({name: text})


def test_pod_security_baseline_as_rules() -> None:
    assert breaches(job_manifests(plan())[0]) == ["container agent adds IPC_LOCK"]  # RDMA pins memory
    for environ in ({"K8S_SECURITY": "baseline"}, {"K8S_SECURITY": "restricted", "K8S_RUN_AS": "1000"}):
        for manifest in (*job_manifests(plan(environ)), *jobset_manifests(plan(environ))):
            assert breaches(manifest) == []
    assert len(breaches(job_manifests(plan(privileged=True, host_network=True))[0])) == 2
    with pytest.raises(UsageError, match="K8S_PRIVILEGED"):
        job_manifests(plan({"K8S_SECURITY": "baseline"}, privileged=True))
    with pytest.raises(UsageError, match="K8S_RUN_AS"):
        job_manifests(plan({"K8S_SECURITY": "restricted"}))


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ({"hostPID": True}, "hostPID is set"),
        ({"hostIPC": True}, "hostIPC is set"),
        ({"volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}]}, "volume dev is a hostPath"),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "sysctl kernel.msgmax"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "the pod runs without seccomp"),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "the pod sets SELinux options"),
        ({"containers": [{"name": "agent", "ports": [{"containerPort": 1, "hostPort": 1}]}]},
         "container agent takes the host's port 1"),
        ({"containers": [{"name": "agent", "securityContext": {"procMount": "Unmasked"}}]},
         "container agent sets procMount"),
    ],
)  # fmt: skip
def test_each_rule_of_baseline_is_seen(patch: dict[str, Any], text: str) -> None:
    job = job_manifests(plan({"K8S_SECURITY": "baseline"}))[0]
    bad = merge(job, {"spec": {"template": {"spec": patch}}})
    assert breaches(bad) == [text]


def test_a_patch_is_merged_as_kubectl_does_it(tmp_path: Path) -> None:
    path = tmp_path / "site.yml"
    path.write_text(
        "kind: Job\nspec:\n  template:\n    spec:\n      runtimeClassName: nvidia\n      volumes:\n"
        "      - name: scratch\n        emptyDir: {}\n      containers:\n      - name: agent\n        env:\n"
        "        - {name: NCCL_DEBUG, value: INFO}\n"
        "        volumeMounts:\n        - {name: scratch, mountPath: /scratch}\n"
    )
    settings = read_settings(["--patch", str(path)], {"K8S_PVC_NAME": "c"})
    plain = job_manifests(plan())[0]
    before = copy.deepcopy(plain)
    job = job_manifests(plan(patches=settings.patches))[0]
    pod, box = job["spec"]["template"]["spec"], job["spec"]["template"]["spec"]["containers"][0]
    assert pod["runtimeClassName"] == "nvidia"
    assert [v["name"] for v in pod["volumes"]] == ["workspace", "shm", "scratch"]
    assert box["env"][: len(at(before, *BOX)["env"])] == at(before, *BOX)["env"]
    assert box["env"][-1] == {"name": "NCCL_DEBUG", "value": "INFO"}
    assert plain == before
    for version in VERSIONS:
        kubernetes_validate.validate(job, version, strict=True)
    assert merge({"a": 1, "b": [1]}, {"a": None, "b": [2]}) == {"b": [2]}
    assert merge({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "$patch": "delete"}]}) == {"env": []}


@pytest.mark.parametrize(
    ("text", "words"),
    [("- 1\n", "kind"), ("kind: [", "neither YAML nor JSON"), ("kind: Pod\n", "there is no Pod here")],
)
def test_a_patch_that_fits_nothing_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "p.yml").write_text(text)
    with pytest.raises(UsageError, match=words):
        job_manifests(plan(patches=tuple(read_patches(tmp_path / "p.yml"))))
    with pytest.raises(UsageError, match="--patch"):
        read_patches(tmp_path / "none.yml")
