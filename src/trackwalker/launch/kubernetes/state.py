"""How a job stands, from `kubectl get jobs,pods -o json`: its state, why, and which pod was first."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["pending", "running", "completed", "failed", "gone", "unknown"]

_INDEX = "batch.kubernetes.io/job-completion-index"
# Words of the kubelet for a container that will not start by waiting longer.
_STUCK = {
    "ImagePullBackOff": "image",
    "ErrImagePull": "image",
    "InvalidImageName": "image",
    "ErrImageNeverPull": "image",
    "CreateContainerConfigError": "config",
    "CreateContainerError": "config",
    "RunContainerError": "config",
}
# Why the cluster took a pod away (reasons of the condition DisruptionTarget, and of a failed pod).
_TAKEN = {
    "PreemptionByScheduler": "preempted",
    "Preempting": "preempted",
    "DeletionByTaintManager": "node-lost",
    "DeletionByPodGC": "node-lost",
    "NodeLost": "node-lost",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "evicted",
    "Evicted": "evicted",
    "NodeShutdown": "node-lost",
    "Terminated": "node-lost",
}
_EXIT_CODE = re.compile(r"pod (?:\S+/)?(?P<pod>\S+) failed with exit code (?P<code>\d+)")
_DISRUPTED = re.compile(r"Pod (?:\S+/)?(?P<pod>\S+) has condition DisruptionTarget")


@dataclass(frozen=True)
class Seen:
    """A job's state; `reason` is a word to act on, `detail` a line to read."""

    state: State
    reason: str = ""
    detail: str = ""
    pod: str = ""  # the first that failed, or the one that everybody waits for
    node: str = ""
    exit_code: int | None = None


def read_state(text: str) -> Seen:
    """Read one List of Jobs and Pods; text that is no such list is `unknown`, an empty list is `gone`."""
    try:
        items = json.loads(text)["items"]
        jobs = [i for i in items if i["kind"] == "Job"]
        pods = [i for i in items if i["kind"] == "Pod"]
        if not jobs:
            why = "deleted, past its time to live, or not applied yet"
            return Seen("gone", "not-found", f"no such job in this namespace: {why}")
        return _of_job(jobs[0], pods)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        return Seen("unknown", "unreadable", f"kubectl's answer is not a list of jobs and pods ({type(e).__name__})")


def _of_job(job: Mapping[str, Any], pods: list[Mapping[str, Any]]) -> Seen:
    conditions = {c["type"]: c for c in job.get("status", {}).get("conditions") or [] if c.get("status") == "True"}
    if "Complete" in conditions:
        return Seen("completed")
    # FailureTarget comes first, while the other pods are still being ended.
    failed = conditions.get("Failed") or conditions.get("FailureTarget")
    if failed:
        return _failure(failed, pods)
    if "Suspended" in conditions:
        return Seen("pending", "suspended", "a queue holds the job back")
    return _waiting(int(job["spec"].get("completions") or 1), pods)


def _failure(condition: Mapping[str, Any], pods: list[Mapping[str, Any]]) -> Seen:
    why, message = str(condition.get("reason", "")), str(condition.get("message", ""))
    if why == "DeadlineExceeded":
        return Seen("failed", "time-limit", message)
    # The first to fail is the one to name; whoever was ended because of it finished later.
    # Times are whole seconds: of two in the same one, an asked-for end (143) is the consequence.
    ends = sorted((end for end in map(_pod_end, pods) if end), key=lambda end: (end[0], end[1].exit_code == 143))
    if ends:
        return ends[0][1]
    # Pods can be gone already; the pod failure policy made the Job keep what it saw.
    if exited := _EXIT_CODE.search(message):
        return Seen("failed", "exit-code", message, exited["pod"], "", int(exited["code"]))
    if disrupted := _DISRUPTED.search(message):
        return Seen("failed", "disrupted", message, disrupted["pod"])
    return Seen("failed", _dashed(why), message)


def _pod_end(pod: Mapping[str, Any]) -> tuple[str, Seen] | None:
    status = pod.get("status", {})
    place = (pod["metadata"]["name"], str(pod["spec"].get("nodeName", "")))
    taken = [
        c
        for c in status.get("conditions") or []
        if c["type"] == "DisruptionTarget" and c.get("status") == "True" and c.get("reason") in _TAKEN
    ]
    end = _terminated(status)
    if taken:
        when = str(taken[0].get("lastTransitionTime") or (end or {}).get("finishedAt") or "~")
        return when, Seen("failed", _TAKEN[taken[0]["reason"]], str(taken[0].get("message", "")), *place)
    if status.get("phase") == "Failed" and status.get("reason") in _TAKEN:
        when = str((end or {}).get("finishedAt") or "~")
        return when, Seen("failed", _TAKEN[status["reason"]], str(status.get("message", "")), *place)
    if not end or not end.get("exitCode"):
        return None
    code, word = int(end["exitCode"]), str(end.get("reason", ""))
    reason = "out-of-memory" if word == "OOMKilled" else "exit-code"
    detail = f"index {_index(pod)} on {place[1] or 'an unknown node'}: {word or 'Error'}, exit code {code}"
    return str(end.get("finishedAt") or "~"), Seen("failed", reason, detail, *place, code)


def _waiting(wanted: int, pods: list[Mapping[str, Any]]) -> Seen:
    phases = [str(pod.get("status", {}).get("phase", "")) for pod in pods]
    up = sum(phase in ("Running", "Succeeded") for phase in phases)
    if up >= wanted:
        return Seen("running")
    # All ranks or none: a job that misses a pod has not begun, however many of the others run.
    for pod in pods:
        status, name = pod.get("status", {}), pod["metadata"]["name"]
        for container in status.get("containerStatuses") or []:
            waiting = container.get("state", {}).get("waiting") or {}
            if waiting.get("reason") in _STUCK:
                detail = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
                return Seen("pending", _STUCK[waiting["reason"]], detail, name, str(pod["spec"].get("nodeName", "")))
    for pod in pods:
        for c in pod.get("status", {}).get("conditions") or []:
            if c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable":
                return Seen("pending", "unschedulable", str(c.get("message", "")), pod["metadata"]["name"])
    return Seen("pending", "starting", f"{up} of {wanted} pods run")


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for container in status.get("containerStatuses") or []:
        if end := container.get("state", {}).get("terminated"):
            return dict(end)
    return None


def _index(pod: Mapping[str, Any]) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(_INDEX, "?"))


def _dashed(word: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", word).lower() or "unknown"
