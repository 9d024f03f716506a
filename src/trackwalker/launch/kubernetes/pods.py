"""Everything a manifest says, decided once, at submit: nobody in a pod works out a name or a directory again."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.launch.kubernetes.settings import ClusterSettings, path_in_pod
from trackwalker.launch.request.words import ModelSpec, job_name

REPLICATED_JOB = "node"  # part of every pod's host name under a JobSet


# Names that Kubernetes accepts: objects, label values, node counts in every spelling.
LONGEST = 63  # of a DNS label and of a label value
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def new_job_id(now: float) -> str:
    """`k8s-<date>-<time>-<4 hex>`, the form that every reader of job directories knows."""
    return f"k8s-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def object_name(model: str, job_id: str, room: int) -> str:
    """`jax-<model>-<id>` as a DNS label that leaves `room` characters for what Kubernetes appends to it.

    A pod's host name is the job's name and its index: a name that is legal by itself can still give pods that are not.
    """
    tail = "-" + _dns(job_id.removeprefix("k8s-"))
    head = _dns(f"jax-{model}")
    most = LONGEST - room - len(tail)
    if most < 1:
        raise UsageError(f"no room for the job id {job_id} in a Kubernetes name of {LONGEST} characters")
    return head[:most].rstrip("-") + tail


def label_value(text: str) -> str:
    """`text` as a label value: itself where it can be, otherwise its legal part and a hash, so that two stay two."""
    if not text or (len(text) <= LONGEST and _LABEL_VALUE.fullmatch(text)):
        return text
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[: LONGEST - 9].rstrip("-._")
    mark = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{kept}-{mark}" if kept else mark


def check_dns_label(text: str, what: str) -> str:
    """`text`, when it is a legal object name; one clear error when it is not."""
    if len(text) > LONGEST or not _LABEL.fullmatch(text):
        raise UsageError(
            f"{what} '{text}': Kubernetes takes {LONGEST} lower-case letters, digits and '-', a letter first"
        )
    return text


def _dns(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@dataclass(frozen=True, kw_only=True)
class PodPlan(ClusterSettings):
    """Everything a manifest says, decided before it is written."""

    name: str
    job_id: str
    image: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)  # short facts to search by: model, tag
    annotations: Mapping[str, str] = field(default_factory=dict)  # the same facts in full

    def __post_init__(self) -> None:
        check_dns_label(self.name, "job name")
        check_dns_label(f"{self.name}-{REPLICATED_JOB}-0-{self.nodes - 1}", "pod host name")
        for word in self.argv:
            _check_text(word, "an argument")
        for name, value in self.env.items():
            _check_text(value, f"the value of {name}")


def name_room(nodes: int) -> int:
    """What a pod's host name adds to the job's name, in the longer of the two kinds."""
    return len(f"-{REPLICATED_JOB}-0-{nodes - 1}")


def plan_pods(
    spec: ModelSpec,
    settings: ClusterSettings,
    job_id: str,
    image: str,
    argv: Sequence[str],
    workspace: Path,
    repo: Path,
) -> PodPlan:
    """The plan; the job's id, name and directory reach every pod as values, so all ranks write into one directory."""
    name = job_name(spec)
    identity = {
        "JOB_ID": job_id,
        "JOB_NAME": name,
        "JOB_DIR": f"{job_id}-{name}",
        "JOB_WORKSPACE": path_in_pod(workspace, settings, repo),
        "NNODES": str(settings.nodes),
    }
    facts = {"trackwalker/model": spec.model}
    facts |= {"trackwalker/tag": spec.tag} if spec.tag else {}
    facts |= {"trackwalker/alias": spec.alias} if spec.alias else {}
    return PodPlan(
        **vars(settings),
        name=object_name(spec.model, job_id, name_room(settings.nodes)),
        job_id=job_id,
        image=image,
        argv=list(argv),
        env=identity,
        labels=facts,
        annotations={**facts, "trackwalker/job-dir": identity["JOB_DIR"]},
    )


def _check_text(text: str, what: str) -> None:
    # A manifest is JSON: what is no Unicode text cannot be in it, and NUL cannot be in any process's words.
    if "\0" in text:
        raise UsageError(f"{what} holds a NUL byte, which neither words nor environment can carry")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"{what} is not UTF-8, and a Kubernetes manifest can hold nothing else")
