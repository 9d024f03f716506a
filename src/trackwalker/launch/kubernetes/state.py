"""How a job stands, from `kubectl get` of its JobSet, Job, pods and the events about them: state, why, who first."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trackwalker.launch.request.effective import tables

State = Literal["pending", "running", "completed", "failed", "gone", "unknown"]

_INDEX = "batch.kubernetes.io/job-completion-index"
_WORDS: dict[str, dict[str, str]] = tables()["kubernetes"]
_STUCK, _TAKEN = _WORDS["stuck"], _WORDS["taken"]
_VAGUE = frozenset({"disrupted", "backoff-limit-exceeded", "failed-jobs", "pod-failure-policy", "unknown"})
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
    restarts: int = 0  # of a JobSet

    @property
    def open(self) -> bool:
        """Whether events may say more: why it waits, or why pods that are gone were taken away."""
        return (self.state == "pending" and self.reason == "starting") or (
            self.state == "failed" and self.reason in _VAGUE
        )


def read_state(text: str) -> Seen:
    """Read one List of Jobs, JobSets and Pods; what is no such list is `unknown`, an empty list is `gone`."""
    try:
        items = json.loads(text)["items"]
        jobs = [i for i in items if i["kind"] == "Job"]
        pods = [i for i in items if i["kind"] == "Pod"]
        sets = [i for i in items if i["kind"] == "JobSet"]
        if sets:
            return _of_set(sets[0], jobs, pods)
        if not jobs:
            why = "deleted, past its time to live, or not applied yet"
            return Seen("gone", "not-found", f"no such job in this namespace: {why}")
        return _of_job(jobs[0], pods)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        return Seen("unknown", "unreadable", f"kubectl's answer is not a list of jobs and pods ({type(e).__name__})")


def names(text: str) -> list[str]:
    """What the objects of an answer are called: events are asked for by name."""
    try:
        return [str(item["metadata"]["name"]) for item in json.loads(text)["items"]]
    except (ValueError, KeyError, TypeError):
        return []


def with_events(seen: Seen, text: str, about: Sequence[str]) -> Seen:
    """The same standing with what only events say of these objects; an answer that cannot be read adds nothing."""
    try:
        told = [event for event in json.loads(text)["items"] if _is_about(event, about)]
        told.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return seen
    words = _WORDS["events_waiting" if seen.state == "pending" else "events_taken"]
    for event in reversed(told):
        if event.get("reason") in words:
            named = event["involvedObject"]
            pod = str(named["name"]) if named.get("kind") == "Pod" else seen.pod
            detail = f"{event['reason']}: {event.get('message', '')}".rstrip(": ")
            return replace(seen, reason=words[event["reason"]], detail=detail, pod=pod)
    return seen


def _is_about(event: Mapping[str, Any], about: Sequence[str]) -> bool:
    """Of a job, or of a pod that it made, also one that is gone by now."""
    name = str((event.get("involvedObject") or {}).get("name", ""))
    return any(name == one or name.startswith(f"{one}-") for one in about)


def _of_set(jobset: Mapping[str, Any], jobs: list[Mapping[str, Any]], pods: list[Mapping[str, Any]]) -> Seen:
    status = jobset.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or [] if c.get("status") == "True"}
    restarts = int(status.get("restarts") or 0)
    if "Completed" in conditions:
        return Seen("completed", restarts=restarts)
    seen = _of_job(jobs[0], pods) if jobs else Seen("pending", "starting", "no job of the set is there yet")
    if "Failed" in conditions and seen.state != "failed":  # its jobs are gone: the set alone remembers
        seen = _failure(conditions["Failed"], pods)
    elif "Failed" not in conditions and seen.state == "failed":
        seen = Seen("pending", "starting", "a job of the set failed, and the set has not ended")
    elif "Suspended" in conditions:
        seen = Seen("pending", "suspended", "a queue holds the job back")
    return replace(seen, restarts=restarts)


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
