"""Manifests: what Kubernetes itself would say about them, and what the pods would really start."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trackwalker.errors import UsageError
from trackwalker.launch.kubernetes.features import read_features
from trackwalker.launch.kubernetes.manifest import (
    JOB_LABEL,
    Manifest,
    coordinator,
    job_manifests,
    jobset_manifests,
    to_json,
)
from trackwalker.launch.kubernetes.pods import PodPlan
from trackwalker.launch.kubernetes.settings import Toleration

VERSIONS = ["1.29", "1.33", "1.37"]
CRD = Path(__file__).parents[4] / "shared" / "data" / "k8s" / "jobset.x-k8s.io_jobsets.yaml"
ALL_OPTIONS: dict[str, Any] = {
    "node_selector": {"pool": "gpu"},
    "tolerations": [Toleration("dedicated", "training", "NoSchedule"), Toleration()],
    "service_account": "trainer",
    "host_network": True,
    "privileged": True,
    "queue": "team-a",
    "labels": {"trackwalker/model": "llama3.1-70b", "trackwalker/tag": "a+b/c" * 20},
    "annotations": {"trackwalker/tag": "a+b/c" * 20},
    "features": read_features({"K8S_SECRETS": "HF_TOKEN=hf/token", "K8S_TTL": "3600"}, "1-00:00:00"),
}


def plan(**changes: Any) -> PodPlan:
    given: dict[str, Any] = {
        "name": "jax-llama2-70b-20261115-120000-ab12",
        "namespace": "training",
        "job_id": "k8s-20261115-120000-ab12",
        "nodes": 4,
        "image": "rocm/jax-training@sha256:" + "0" * 64,
        "argv": ["python3", "agent.pyz", "node", "order.json"],
        "claim": "shared-data",
        "mount": "/mnt/shared",
        "env": {"JOB_ID": "k8s-20261115-120000-ab12", "EMPTY": ""},
    }
    return PodPlan(**{**given, **changes})


def pod_spec(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest["spec"]
    if manifest["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    found: Manifest = spec["template"]["spec"]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("options", [{}, ALL_OPTIONS, {"gpus_per_node": 0, "nodes": 1}], ids=["plain", "all", "cpu"])
def test_job_and_service_are_what_the_api_takes(version: str, options: dict[str, Any]) -> None:
    for manifest in job_manifests(plan(**options), owner_uid="0f8c"):
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


def test_validation_can_fail() -> None:
    job = job_manifests(plan())[0]
    job["spec"]["template"]["spec"]["containers"][0]["comand"] = ["x"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def strict(schema: Any) -> Any:
    """The server drops fields a resource definition does not know; we want to hear about them."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(part) for key, part in schema.items()}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not open_ended:
        out["additionalProperties"] = False
    return out


@pytest.mark.skipif(not CRD.is_file(), reason="the JobSet resource definition is kept outside the repository")
@pytest.mark.parametrize("options", [{}, ALL_OPTIONS], ids=["plain", "all"])
def test_jobset_is_what_its_resource_definition_takes(options: dict[str, Any]) -> None:
    definition = yaml.load(CRD.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    (version,) = definition["spec"]["versions"]
    validator = jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"]))
    (manifest,) = jobset_manifests(plan(**options))
    assert manifest["apiVersion"].endswith("/" + version["name"])
    validator.validate(manifest)
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["retries"] = 1
    assert not validator.is_valid(manifest)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_jobset_holds_a_job_the_api_takes(version: str) -> None:
    (manifest,) = jobset_manifests(plan(**ALL_OPTIONS))
    template = manifest["spec"]["replicatedJobs"][0]["template"]
    job = {"apiVersion": "batch/v1", "kind": "Job", **template}
    kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.starts_processes
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("value", ["a $(HOME) $$ $", "q\"'\\", "%s", "a\nb\tc\r\n", "é\u0085\u2028🚂", " y: no # {}"])
def test_kubectl_reads_back_what_was_written(value: str) -> None:
    job = job_manifests(plan(env={"VALUE": value}, argv=["x", value]))[0]
    # `set --local` reads the manifest into kubectl's own types and prints it, without any server.
    argv = ["kubectl", "set", "serviceaccount", "--local", "-f", "-", "other", "-o", "json"]
    done = subprocess.run(argv, input=json.dumps(job), capture_output=True, encoding="utf-8", timeout=60, check=True)
    back = pod_spec(json.loads(done.stdout))
    asked = pod_spec(job)
    for field in ("command", "env", "image", "securityContext", "volumeMounts"):
        assert back["containers"][0][field] == asked["containers"][0][field]
    assert {k: v for k, v in back.items() if k != "serviceAccountName"}.keys() == asked.keys()


def kubelet_expand(text: str, known: dict[str, str]) -> str:
    """`$(NAME)` and `$$` by the kubelet's rules: unknown names stay, a lonely `$` stays."""
    out, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out, at = out + text[at], at + 1
            continue
        following = text[at + 1]
        close = text.find(")", at + 2)
        if following == "$":
            out, at = out + "$", at + 2
        elif following == "(" and close >= 0:
            name = text[at + 2 : close]
            out, at = out + known.get(name, f"$({name})"), close + 1
        else:
            out, at = out + "$" + following, at + 2
    return out


def kubelet_start(manifest: Manifest) -> tuple[list[str], dict[str, str]]:
    """The argument list and environment that a kubelet gives to the container."""
    container = pod_spec(json.loads(to_json([manifest]))["items"][0])["containers"][0]
    env: dict[str, str] = {}
    for variable in container["env"]:
        if "value" in variable:  # the others come from Secrets and from the pod itself
            env[variable["name"]] = kubelet_expand(variable["value"], env)
    return [kubelet_expand(word, env) for word in container["command"]], env


def test_the_kubelet_of_these_tests_expands() -> None:
    known = {"A": "1"}
    got = {text: kubelet_expand(text, known) for text in ("$(A)", "$$(A)", "$(B)", "$$", "$", "$(A", "$A", "$$$(A)")}
    want = {"$(A)": "1", "$$(A)": "$(A)", "$(B)": "$(B)", "$$": "$", "$": "$", "$(A": "$(A", "$A": "$A", "$$$(A)": "$1"}
    assert got == want


PROGRAM = """
import json, os, sys
env = {os.fsdecode(k): v.hex() for k, v in os.environb.items()}
print(json.dumps({"argv": [os.fsencode(a).hex() for a in sys.argv[1:]], "env": env}))
"""
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30) | st.text(
    "$()A{}`\"'\\ %=\n;&|", max_size=12
)


@pytest.mark.starts_processes
@settings(max_examples=12, deadline=None)
@given(argv=st.lists(words, min_size=1, max_size=6), values=st.lists(words, min_size=1, max_size=4))
@example(argv=["$(VALUE_0)", "$$(VALUE_0)", "$$", "", "a b", "--x=$HOME"], values=["$(PATH)$$", "'; rm -rf x #"])
@example(argv=["_env_XLA_FLAGS=--a=1 --b=2", "tokenizer_path=meta-llama/X"], values=["", "%j\nü\t"])
@pytest.mark.parametrize("jobset", [False, True])
def test_r04_words_and_values_reach_the_process_byte_for_byte(jobset: bool, argv: list[str], values: list[str]) -> None:
    env = {f"VALUE_{n}": value for n, value in enumerate(values)}
    wanted = plan(argv=[sys.executable, "-S", "-c", PROGRAM, *argv], env=env)
    manifest = (jobset_manifests if jobset else job_manifests)(wanted)[0]
    started, given_env = kubelet_start(manifest)
    done = subprocess.run(started, env=given_env, capture_output=True, timeout=60, check=True)
    got = json.loads(done.stdout)
    assert got["argv"] == [word.encode().hex() for word in argv]
    assert {name: got["env"][name] for name in env} == {name: value.encode().hex() for name, value in env.items()}


@pytest.mark.parametrize("bad", ["a\0b", "\udcff"])
def test_what_a_manifest_cannot_hold_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="VALUE"):
        plan(env={"VALUE": bad})
    with pytest.raises(UsageError, match="argument"):
        plan(argv=[bad])


def test_r06_a_secret_stands_in_no_manifest() -> None:
    features = read_features({"K8S_SECRETS": "HF_TOKEN=hf/token"})
    variables = pod_spec(job_manifests(plan(features=features))[0])["containers"][0]["env"]
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}} in variables


def test_node_zero_is_found_by_its_name_under_the_headless_service() -> None:
    job, service = job_manifests(plan())
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == pod_spec(job)["subdomain"]
    # Pods of an Indexed Job are called <job>-<index>; those of a JobSet <jobset>-<part>-<number>-<index>.
    assert coordinator(plan()) == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (jobset,) = jobset_manifests(plan())
    part = jobset["spec"]["replicatedJobs"][0]["name"]
    assert coordinator(plan(), jobset=True) == f"{plan().name}-{part}-0-0.{jobset['spec']['network']['subdomain']}"
    for manifest, host in ((job, coordinator(plan())), (jobset, coordinator(plan(), jobset=True))):
        env = pod_spec(manifest)["containers"][0]["env"]
        assert {"name": "TRACKWALKER_COORDINATOR", "value": host} in env


def test_least_privilege_unless_asked() -> None:
    pod = pod_spec(job_manifests(plan())[0])
    container = pod["containers"][0]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"add": ["IPC_LOCK"]},
    }
    assert "hostNetwork" not in pod
    assert pod["automountServiceAccountToken"] is False
    assert pod["tolerations"] == [{"operator": "Exists", "key": "amd.com/gpu"}]
    asked = pod_spec(job_manifests(plan(**ALL_OPTIONS))[0])
    assert asked["containers"][0]["securityContext"] == {"privileged": True}
    assert asked["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert asked["tolerations"][-1] == {"operator": "Exists"}


def test_a_queue_holds_the_job_not_its_pods() -> None:
    job, service = job_manifests(plan(queue="team-a"))
    (jobset,) = jobset_manifests(plan(queue="team-a"))
    for whole in (job, jobset):
        assert whole["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
        assert "kueue" not in str(whole["spec"])
    assert "kueue" not in str(service)


def test_one_pod_per_machine_and_no_second_try() -> None:
    job = job_manifests(plan())[0]
    (rule,) = pod_spec(job)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == {JOB_LABEL: plan().job_id}
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (4, 4, 0)
    assert {r["action"] for r in spec["podFailurePolicy"]["rules"]} == {"FailJob"}
    assert pod_spec(job)["restartPolicy"] == "Never"
