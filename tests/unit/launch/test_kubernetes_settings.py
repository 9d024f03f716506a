"""Names, knobs and scheduler words of Kubernetes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackwalker.errors import UsageError
from trackwalker.job.layout import ID_FORM, NAME_FORM
from trackwalker.launch.kubernetes.manifest import job_manifests, jobset_manifests
from trackwalker.launch.kubernetes.pods import LONGEST, label_value, name_room, new_job_id, object_name, plan_pods
from trackwalker.launch.kubernetes.settings import ClusterSettings, Toleration, path_in_pod, read_settings
from trackwalker.launch.request.words import parse_model_spec

KNOBS = {"K8S_PVC_NAME": "shared-data"}
LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


@pytest.mark.parametrize("words", [["-N4"], ["-N", "4"], ["--nodes=4"], ["--nodes", "4"], ["-N2", "--nodes=4"]])
def test_r07_every_spelling_of_the_node_count_means_the_same(words: list[str]) -> None:
    assert read_settings(words, KNOBS).nodes == 4


@pytest.mark.parametrize("words", [["-n", "ml"], ["-nml"], ["--namespace=ml"], ["--namespace", "ml"]])
def test_the_namespace_on_the_command_line_wins(words: list[str]) -> None:
    assert read_settings(words, {**KNOBS, "K8S_NAMESPACE": "other"}).namespace == "ml"


def test_knobs_and_their_defaults() -> None:
    plain = read_settings([], KNOBS)
    assert plain == ClusterSettings(claim="shared-data")
    asked = read_settings(
        [],
        {
            "K8S_PVC_NAME": "pvc.a",
            "K8S_NAMESPACE": "ml",
            "K8S_PVC_MOUNT": "/data/",
            "REPO_PATH_IN_PVC": "/me/code/",
            "K8S_NODE_SELECTOR": "cloud.example/pool=gpu",
            "GPU_RESOURCE_TYPE": "nvidia.com/gpu",
            "GPUS_PER_NODE": "4",
            "K8S_TOLERATIONS": "dedicated=ml:NoSchedule,spot",
            "K8S_PRIVILEGED": "1",
            "K8S_HOST_NETWORK": "true",
            "K8S_SERVICE_ACCOUNT": "trainer",
            "K8S_SHM_SIZE": "64Gi",
            "K8S_QUEUE": "team-a",
        },
    )
    assert asked == ClusterSettings(
        claim="pvc.a",
        namespace="ml",
        mount="/data",
        repo_in_claim="me/code",
        gpus_per_node=4,
        gpu_resource="nvidia.com/gpu",
        node_selector={"cloud.example/pool": "gpu"},
        tolerations=(Toleration("dedicated", "ml", "NoSchedule"), Toleration("spot")),
        service_account="trainer",
        shm_size="64Gi",
        host_network=True,
        privileged=True,
        queue="team-a",
    )


@pytest.mark.parametrize(
    ("words", "knobs", "says"),
    [
        ([], {}, "K8S_PVC_NAME is not set"),
        (["-N0"], KNOBS, "-N 0"),
        (["-N", "four"], KNOBS, "-N four"),
        (["-N"], KNOBS, "requires argument"),
        (["--qos=high"], KNOBS, "--qos"),
        (["4"], KNOBS, "'4' is no option"),
        (["-n", "A_b"], KNOBS, "namespace 'A_b'"),
        ([], {"K8S_PVC_NAME": "a b"}, "K8S_PVC_NAME 'a b'"),
        ([], {**KNOBS, "K8S_PVC_MOUNT": "data"}, "absolute"),
        ([], {**KNOBS, "GPUS_PER_NODE": "-1"}, "GPUS_PER_NODE -1"),
        ([], {**KNOBS, "GPU_RESOURCE_TYPE": "gpu; x"}, "GPU_RESOURCE_TYPE"),
        ([], {**KNOBS, "K8S_NODE_SELECTOR": "gpu"}, "key=value"),
        ([], {**KNOBS, "K8S_TOLERATIONS": "a:Sometimes"}, "a:Sometimes"),
        ([], {**KNOBS, "K8S_PRIVILEGED": "maybe"}, "true or false"),
        ([], {**KNOBS, "K8S_SHM_SIZE": "lots"}, "K8S_SHM_SIZE"),
    ],
)
def test_wrong_requests_are_one_clear_line(words: list[str], knobs: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        read_settings(words, knobs)
    assert "\n" not in str(caught.value)


@given(model=st.text("abcXYZ019._+-", min_size=1, max_size=120), nodes=st.integers(1, 5000))
def test_names_are_legal_for_every_pod(model: str, nodes: int) -> None:
    name = object_name("m" + model, "k8s-20261115-120000-ab12", name_room(nodes))
    longest = f"{name}-node-0-{nodes - 1}"
    assert LABEL.fullmatch(longest)
    assert len(longest) <= LONGEST
    assert name.endswith("-20261115-120000-ab12")


@given(st.text(max_size=100))
def test_label_values_are_legal(text: str) -> None:
    value = label_value(text)
    assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", value)


def test_different_texts_keep_different_labels() -> None:
    assert label_value("exp1") == "exp1"
    assert len({label_value(t) for t in ("a+b", "a/b", "a b", "x" * 64, "x" * 65)}) == 5


def test_new_ids_have_the_known_form() -> None:
    assert ID_FORM.match(new_job_id(1_800_000_000.0))
    assert new_job_id(1_800_000_000.0).startswith("k8s-20270115-080000-")


def test_where_the_pods_see_the_workspace() -> None:
    here = ClusterSettings(claim="c", mount="/mnt/shared")
    repo = Path("/home/me/code")
    assert path_in_pod(Path("/mnt/shared/me/outputs"), here, repo) == "/mnt/shared/me/outputs"
    assert path_in_pod(repo / "outputs", here, repo) == "/mnt/shared/code/outputs"
    mapped = replace(here, repo_in_claim="me/x")
    assert path_in_pod(repo / "outputs", mapped, repo) == "/mnt/shared/me/x/outputs"
    with pytest.raises(UsageError, match="cannot see"):
        path_in_pod(Path("/scratch/outputs"), here, repo)


@pytest.mark.parametrize("spec", ["llama2-70b", "llama2-70b:exp1", "llama2-70b:my-run:", "llama2-70b:my-run:exp+1"])
def test_r43_tag_and_alias_keep_one_job_directory_for_all_ranks(spec: str) -> None:
    asked = parse_model_spec(spec)
    job_id = "k8s-20261115-120000-ab12"
    plan = plan_pods(
        asked,
        read_settings(["-N4"], KNOBS),
        job_id,
        "image",
        ["python3", "agent.pyz"],
        Path("/mnt/shared/outputs"),
        Path("/mnt/shared/code"),
    )
    for manifest in (job_manifests(plan)[0], jobset_manifests(plan)[0]):
        spec_of = manifest["spec"]
        pods = spec_of["replicatedJobs"][0]["template"]["spec"] if manifest["kind"] == "JobSet" else spec_of
        variables = pods["template"]["spec"]["containers"][0]["env"]
        env = {v["name"]: v["value"] for v in variables if "value" in v}
        assert env["JOB_DIR"] == f"{job_id}-{env['JOB_NAME']}"
        assert NAME_FORM.match(env["JOB_DIR"])
        assert env["JOB_NAME"] == "JAX-llama2-70b" + (f"-{asked.tag}" if asked.tag else "")
        assert (env["NNODES"], env["JOB_WORKSPACE"]) == ("4", "/mnt/shared/outputs")
        notes = manifest["metadata"]["annotations"]
        assert (notes.get("trackwalker/tag"), notes.get("trackwalker/alias")) == (asked.tag, asked.alias)
