"""Everything a manifest says, decided once, at submit: nobody in a pod works out a name or a directory again."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.launch.kubernetes.features import Features
from trackwalker.launch.kubernetes.settings import ClusterSettings, Toleration, path_in_pod
from trackwalker.launch.request.words import ModelSpec, job_name

_NONE = Features()
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


@dataclass(frozen=True)
class SecretRef:
    """One key of a Kubernetes Secret; its value stands in no manifest."""

    name: str
    key: str


@dataclass(frozen=True)
class PodPlan:
    """Everything a manifest says, decided before it is written."""

    name: str
    namespace: str
    job_id: str
    nodes: int
    image: str
    argv: Sequence[str]
    claim: str
    mount: str
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretRef] = field(default_factory=dict)
    gpus_per_node: int = 8
    gpu_resource: str = "amd.com/gpu"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Toleration] = ()
    service_account: str = ""
    shm_size: str = "128Gi"
    host_network: bool = False
    privileged: bool = False
    queue: str = ""  # of Kueue, which lets the job start when its turn comes
    labels: Mapping[str, str] = field(default_factory=dict)  # short facts to search by: model, tag
    annotations: Mapping[str, str] = field(default_factory=dict)  # the same facts in full
    ttl_seconds: int | None = None
    deadline_seconds: int | None = None
    features: Features = _NONE
    patches: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        check_dns_label(self.name, "job name")
        check_dns_label(f"{self.name}-{REPLICATED_JOB}-0-{self.nodes - 1}", "pod host name")
        for word in self.argv:
            _check_text(word, "an argument")
        for name, value in self.env.items():
            _check_text(value, f"the value of {name}")
        both = sorted(set(self.env) & set(self.secrets))
        if both:
            raise UsageError(f"{both[0]} is given both as a value and as a secret: keep one")


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
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, SecretRef] | None = None,
    ttl_seconds: int | None = None,
    deadline_seconds: int | None = None,
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
        name=object_name(spec.model, job_id, name_room(settings.nodes)),
        namespace=settings.namespace,
        job_id=job_id,
        nodes=settings.nodes,
        image=image,
        argv=list(argv),
        claim=settings.claim,
        mount=settings.mount,
        env={**(env or {}), **identity},
        secrets=secrets or {},
        gpus_per_node=settings.gpus_per_node,
        gpu_resource=settings.gpu_resource,
        node_selector=settings.node_selector,
        tolerations=settings.tolerations,
        service_account=settings.service_account,
        shm_size=settings.shm_size,
        host_network=settings.host_network,
        privileged=settings.privileged,
        queue=settings.queue,
        labels=facts,
        annotations={**facts, "trackwalker/job-dir": identity["JOB_DIR"]},
        ttl_seconds=ttl_seconds,
        deadline_seconds=deadline_seconds,
        features=settings.features,
        patches=settings.patches,
    )


def _check_text(text: str, what: str) -> None:
    # A manifest is JSON: what is no Unicode text cannot be in it, and NUL cannot be in any process's words.
    if "\0" in text:
        raise UsageError(f"{what} holds a NUL byte, which neither words nor environment can carry")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"{what} is not UTF-8, and a Kubernetes manifest can hold nothing else")
