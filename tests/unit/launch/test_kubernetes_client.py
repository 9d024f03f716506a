"""kubectl: what is asked of it, and what its answers mean."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from trackwalker.errors import UsageError
from trackwalker.launch.kubernetes import client
from trackwalker.launch.kubernetes.client import Answer
from trackwalker.launch.kubernetes.pods import PodPlan
from trackwalker.launch.kubernetes.state import Seen, read_state

PLAN = PodPlan(
    name="jax-a-1", namespace="ml", job_id="k8s-1-1-a", nodes=2, image="image", argv=["python3", "agent.pyz"],
    claim="shared-data",
)  # fmt: skip


def job(*conditions: tuple[str, str, str], nodes: int = 2) -> dict[str, Any]:
    status = {"conditions": [{"type": t, "status": "True", "reason": r, "message": m} for t, r, m in conditions]}
    return {"kind": "Job", "metadata": {"name": "j"}, "spec": {"completions": nodes}, "status": status}


def pod(index: int, phase: str, node: str = "", **status: Any) -> dict[str, Any]:
    metadata = {"name": f"j-{index}-x", "annotations": {"batch.kubernetes.io/job-completion-index": str(index)}}
    spec = {"nodeName": node} if node else {}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}


def ended(code: int, reason: str, at: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}
    return {"containerStatuses": [{"name": "agent", "state": state}]}


def waiting(reason: str, message: str) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "agent", "state": {"waiting": {"reason": reason, "message": message}}}]}


def condition(kind: str, status: str, reason: str, message: str, at: str = "") -> dict[str, Any]:
    entry = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}
    return {"conditions": [entry]}


def seen(*items: dict[str, Any]) -> Seen:
    return read_state(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))


BACKOFF = ("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
POLICY = (
    "Failed",
    "PodFailurePolicy",
    "Container agent for pod ml/j-1-x failed with exit code 3 matching FailJob rule",
)


def test_the_course_of_a_good_job() -> None:
    assert seen(job()) == Seen("pending", "starting", "0 of 2 pods run")
    assert seen(job(), pod(0, "Running"), pod(1, "Pending")) == Seen("pending", "starting", "1 of 2 pods run")
    assert seen(job(), pod(0, "Running"), pod(1, "Running")).state == "running"
    assert seen(job(), pod(0, "Succeeded"), pod(1, "Running")).state == "running"
    assert seen(job(("SuccessCriteriaMet", "", ""), ("Complete", "", "")), pod(0, "Succeeded")).state == "completed"
    assert seen(job(("Suspended", "JobSuspended", ""))) == Seen("pending", "suspended", "a queue holds the job back")


def test_a_job_that_waits_says_for_what() -> None:
    image = pod(1, "Pending", "n2", **waiting("ImagePullBackOff", 'Back-off pulling image "x:y"'))
    assert seen(job(), pod(0, "Running"), image) == Seen(
        "pending", "image", 'ImagePullBackOff: Back-off pulling image "x:y"', "j-1-x", "n2"
    )
    full = pod(
        1, "Pending", **condition("PodScheduled", "False", "Unschedulable", "0/4 nodes: Insufficient amd.com/gpu")
    )
    assert seen(job(), full) == Seen("pending", "unschedulable", "0/4 nodes: Insufficient amd.com/gpu", "j-1-x")
    secret = pod(0, "Pending", **waiting("CreateContainerConfigError", 'secret "hf" not found'))
    assert seen(job(), secret).reason == "config"


def test_the_first_failure_is_named_not_its_consequences() -> None:
    first = pod(1, "Failed", "n2", **ended(3, "Error", "2026-11-15T12:00:05Z"))
    told = pod(0, "Failed", "n1", **ended(143, "Error", "2026-11-15T12:00:05Z"))
    late = pod(2, "Failed", "n3", **ended(1, "Error", "2026-11-15T12:00:09Z"))
    found = seen(job(BACKOFF, nodes=3), told, late, first)
    assert found == Seen("failed", "exit-code", "index 1 on n2: Error, exit code 3", "j-1-x", "n2", 3)


@pytest.mark.parametrize(
    ("pods", "reason", "code"),
    [
        ([pod(0, "Failed", "n1", **ended(137, "OOMKilled", "2026-11-15T12:00:05Z"))], "out-of-memory", 137),
        ([pod(0, "Failed", "n1", reason="Evicted", message="low on ephemeral-storage")], "evicted", None),
        (
            [pod(0, "Failed", "n1", **condition("DisruptionTarget", "True", "PreemptionByScheduler", "preempting"))],
            "preempted",
            None,
        ),
        (
            [pod(0, "Failed", "n1", **condition("DisruptionTarget", "True", "DeletionByTaintManager", "NoExecute"))],
            "node-lost",
            None,
        ),
    ],
)
def test_kinds_of_failure(pods: list[dict[str, Any]], reason: str, code: int | None) -> None:
    found = seen(job(BACKOFF), *pods)
    assert (found.state, found.reason, found.exit_code, found.node) == ("failed", reason, code, "n1")


def test_the_job_says_why_when_its_pods_are_gone() -> None:
    assert seen(job(POLICY)) == Seen("failed", "exit-code", POLICY[2], "j-1-x", "", 3)
    lost = (
        "Failed",
        "PodFailurePolicy",
        "Pod ml/j-0-x has condition DisruptionTarget matching FailJob rule at index 0",
    )
    assert seen(job(lost)) == Seen("failed", "disrupted", lost[2], "j-0-x")
    assert seen(job(BACKOFF)).reason == "backoff-limit-exceeded"
    # The pods that a deadline ended look like failures of their own.
    late = ("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    assert seen(job(late), pod(0, "Failed", **ended(143, "Error", "x"))) == Seen("failed", "time-limit", late[2])
    # While the other pods are still being ended there is only the target.
    assert seen(job(("FailureTarget", POLICY[1], POLICY[2]))).exit_code == 3


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"items": 3}', '{"items": [{}]}', "null"])
def test_an_unreadable_answer_is_unknown(text: str) -> None:
    assert read_state(text).state == "unknown"


def test_a_deleted_job_is_gone() -> None:
    assert seen().state == "gone"


@pytest.mark.starts_processes
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_a_cluster_that_cannot_be_reached_is_unknown(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"  # a real kubectl, a port where nobody listens
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": ""}}
    settings = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
    config.write_text(json.dumps({**settings, "current-context": "c"}))
    monkeypatch.setenv("KUBECONFIG", str(config))
    found = client.observe("ml", "k8s-1-1-a")
    assert (found.state, found.reason) == ("unknown", "unreachable")
    assert "\n" not in found.detail
    assert "127.0.0.1:1" in found.detail


class Cluster:
    """Answers in turn, and remembers what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[str], str]] = []

    def __call__(self, argv: list[str], text: str) -> Answer:
        self.asked.append((argv, text))
        return self.answers.pop(0)


MADE = Answer(0, json.dumps({"metadata": {"uid": "u-1"}}), "")


def test_the_service_belongs_to_the_job() -> None:
    cluster = Cluster(MADE, Answer(0, "", ""))
    client.submit(PLAN, run=cluster)
    (create, made), (apply, service) = cluster.asked
    assert create[:2] == ["kubectl", "create"]
    assert json.loads(made)["kind"] == "Job"
    assert apply[:2] == ["kubectl", "apply"]
    (item,) = json.loads(service)["items"]
    assert item["kind"] == "Service"
    assert item["metadata"]["ownerReferences"][0]["uid"] == "u-1"


def test_a_jobset_brings_its_own_service() -> None:
    cluster = Cluster(MADE)
    client.submit(PLAN, jobset=True, run=cluster)
    assert json.loads(cluster.asked[0][1])["kind"] == "JobSet"


def test_r11_a_failed_submit_leaves_nothing_in_the_cluster() -> None:
    refused = Cluster(Answer(1, "", "E1115 retry\nError from server (Forbidden): jobs is forbidden\n"))
    with pytest.raises(UsageError, match="jobs is forbidden"):
        client.submit(PLAN, run=refused)
    assert len(refused.asked) == 1
    for first in (MADE, Answer(0, "no json", "")):
        half = Cluster(first, Answer(1, "", "services is forbidden"), Answer(0, "", ""))
        if first is not MADE:
            half.answers.pop(1)
        with pytest.raises(UsageError, match="deleted again"):
            client.submit(PLAN, run=half)
        assert half.asked[-1][0][:2] == ["kubectl", "delete"]


def test_only_our_own_job_is_read_followed_or_deleted() -> None:
    selector = "trackwalker/job-id=k8s-1-1-a,app.kubernetes.io/managed-by=trackwalker"
    for argv in (
        client.get_argv("ml", "k8s-1-1-a"),
        client.logs_argv("ml", "k8s-1-1-a", follow=True),
        client.delete_argv("ml", "k8s-1-1-a"),
        client.delete_argv("ml", "k8s-1-1-a", jobset=True),
    ):
        assert argv[argv.index("--selector") + 1] == selector
        assert argv[argv.index("--namespace") + 1] == "ml"
    assert "--follow" in client.logs_argv("ml", "k8s-1-1-a", follow=True)
