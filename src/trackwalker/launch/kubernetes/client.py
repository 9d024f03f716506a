"""kubectl, as argument lists with a deadline each: create, read, follow, delete by our own label."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import MaybeQueuedError, MissingToolError, TrackwalkerError, UnreachableError, UsageError
from trackwalker.launch.kubernetes.manifest import CONTAINER, JOB_LABEL, job_manifests, jobset_manifests, to_json
from trackwalker.launch.kubernetes.pods import PodPlan
from trackwalker.launch.kubernetes.state import Seen, names, read_state, with_events

_SECONDS = 30
_SILENT = 124
_NOBODY = re.compile(r"connection refused|was refused|unable to connect|no such host|i/o timeout", re.IGNORECASE)
_OWN = "app.kubernetes.io/managed-by=trackwalker"


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str


Runner = Callable[[list[str], str], Answer]  # argument list and standard input


def kubectl(argv: list[str], text: str = "") -> Answer:
    """Run one kubectl command; a server that does not answer is an answer with exit code 124."""
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, encoding="utf-8", errors="replace", timeout=_SECONDS, check=False
        )
    except FileNotFoundError as e:
        raise MissingToolError("kubectl is not installed; `--dry-run` prints the manifest to apply by hand") from e
    except subprocess.TimeoutExpired:
        return Answer(_SILENT, "", f"no answer in {_SECONDS} s")
    return Answer(done.returncode, done.stdout, done.stderr)


def create_argv(namespace: str) -> list[str]:
    """Create what stands on standard input, and print it back with its uid."""
    return ["kubectl", "create", "--namespace", namespace, "--filename", "-", "--output", "json"]


def apply_argv(namespace: str) -> list[str]:
    """Apply what stands on standard input."""
    return ["kubectl", "apply", "--namespace", namespace, "--filename", "-"]


def apply_file_argv(namespace: str, manifest: Path) -> list[str]:
    """Apply a manifest by hand."""
    return ["kubectl", "apply", "--namespace", namespace, "--filename", str(manifest)]


def get_argv(namespace: str, job_id: str, jobset: bool = False) -> list[str]:
    """The job and its pods in one reading, so that the two agree with each other."""
    kinds = ["get", "jobsets.jobset.x-k8s.io,jobs.batch,pods" if jobset else "jobs.batch,pods"]
    return ["kubectl", *kinds, "--namespace", namespace, "--selector", _mine(job_id), "--output", "json"]


def events_argv(namespace: str) -> list[str]:
    """The events of a namespace: they carry no labels of ours, and are picked by the names of what they are about."""
    return ["kubectl", "get", "events", "--namespace", namespace, "--output", "json"]


def logs_argv(namespace: str, job_id: str, follow: bool = False, tail: int | None = None) -> list[str]:
    """The output of every pod, each line with its pod."""
    argv = ["kubectl", "logs", "--namespace", namespace, "--selector", _mine(job_id), "--container", CONTAINER]
    # Without a request limit kubectl refuses to follow more than five pods, and shows the last ten lines of each.
    argv += ["--prefix", "--max-log-requests", "10000", "--tail", str(-1 if tail is None else tail)]
    return [*argv, "--follow"] if follow else argv


def delete_argv(namespace: str, job_id: str, jobset: bool = False) -> list[str]:
    """Delete the job with everything that belongs to it; the label keeps this to our own."""
    kinds = "jobsets.jobset.x-k8s.io" if jobset else "jobs.batch,services"
    argv = ["kubectl", "delete", kinds, "--namespace", namespace, "--selector", _mine(job_id)]
    return [*argv, "--cascade=background", "--wait=false"]


def submit(plan: PodPlan, jobset: bool = False, run: Runner = kubectl) -> None:
    """Create the job and then its Service, owned by it: whoever deletes the job, or its time to live, takes both.

    The agents look for each other again and again, so a Service that comes a moment later is in time.
    """
    job = (jobset_manifests(plan) if jobset else job_manifests(plan))[0]
    made = run(create_argv(plan.namespace), json.dumps(job))
    if made.code == _SILENT:
        raise MaybeQueuedError(
            f"kubectl create: {_line(made)}; the job may be there all the same: kubectl get {job['kind']} {plan.name} "
            f"--namespace {plan.namespace}"
        )
    if made.code != 0:
        raise refusal("Kubernetes did not take the job", made)
    if jobset:
        return
    try:
        uid = str(json.loads(made.out)["metadata"]["uid"])
        served = run(apply_argv(plan.namespace), to_json(job_manifests(plan, owner_uid=uid)[1:]))
    except (ValueError, KeyError, TypeError):
        served = Answer(1, "", "its answer to `create` names no uid")
    if served.code != 0:
        run(delete_argv(plan.namespace, plan.job_id), "")  # without a Service its ranks would never meet
        raise UsageError(f"Kubernetes did not take the job's Service, the job is deleted again: {_line(served)}")


def observe(namespace: str, job_id: str, jobset: bool = False, run: Runner | None = None) -> Seen:
    """How the job stands; a cluster that cannot be reached says nothing about it, which is `unknown`.

    Events are asked for where the objects themselves leave it open; who may not read them learns less, not nothing.
    """
    run = run or kubectl
    answer = run(get_argv(namespace, job_id, jobset), "")
    if answer.code != 0:
        return Seen("unknown", "unreachable", _line(answer))
    seen = read_state(answer.out)
    if not seen.open:
        return seen
    events = run(events_argv(namespace), "")
    return with_events(seen, events.out, names(answer.out)) if events.code == 0 else seen


def refusal(what: str, answer: Answer) -> TrackwalkerError:
    """Why kubectl failed: the cluster said no, or nobody was there to say it."""
    if answer.code == _SILENT or _NOBODY.search(answer.err):
        return UnreachableError(f"{what}: {_line(answer)}; the cluster does not answer, try again")
    return UsageError(f"{what}: {_line(answer)}")


def _mine(job_id: str) -> str:
    return f"{JOB_LABEL}={job_id},{_OWN}"


def _line(answer: Answer) -> str:
    # kubectl logs its retries first; the last line is the one that counts.
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    return lines[-1] if lines else f"kubectl ended with exit code {answer.code}"
