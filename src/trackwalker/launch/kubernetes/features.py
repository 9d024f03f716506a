"""What a cluster's engineers expect of a pod beyond the run itself: resources, networks, priorities, places, security.

Knobs only, each the name of one field of the API; `--patch` is for whatever has no knob.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from trackwalker.errors import UsageError

Manifest = dict[str, Any]
Security = Literal["", "baseline", "restricted"]
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[EPTGMk]|[EPTGMK]i)?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9._-]+")
_LABEL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
NETWORKS = "k8s.v1.cni.cncf.io/networks"


@dataclass(frozen=True)
class Features:
    """The knobs, read and checked."""

    cpu: str = ""
    memory: str = ""
    rdma: Mapping[str, str] = field(default_factory=dict)  # resource -> how many, as rdma/hca: 8
    networks: str = ""  # Multus
    pull_secrets: tuple[str, ...] = ()
    priority_class: str = ""
    spread: str = ""  # the topology key that pods are spread over
    topology: str = ""  # Kueue: the level within which all pods have to be
    scheduler: str = ""  # a gang scheduler, by its name
    ttl_s: int | None = None
    deadline_s: int | None = None
    run_as: tuple[int, int] | None = None  # user and group
    security: Security = ""
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # variable -> Secret and key


def read_features(environ: Mapping[str, str], time_limit: str = "") -> Features:
    """From the knobs and `--time`."""
    security = environ.get("K8S_SECURITY", "")
    if security not in ("", "baseline", "restricted"):
        raise UsageError(f"K8S_SECURITY={security}: say baseline or restricted, or leave it away")
    return Features(
        cpu=_of(environ, "K8S_CPU", _QUANTITY),
        memory=_of(environ, "K8S_MEMORY", _QUANTITY),
        rdma=_pairs(environ.get("K8S_RDMA", ""), "K8S_RDMA", _RESOURCE, re.compile(r"\d+")),
        networks=environ.get("K8S_NETWORKS", ""),
        pull_secrets=tuple(_list(environ, "K8S_IMAGE_PULL_SECRETS")),
        priority_class=_of(environ, "K8S_PRIORITY_CLASS", _NAME),
        spread=_of(environ, "K8S_TOPOLOGY_SPREAD", _LABEL),
        topology=_of(environ, "K8S_TOPOLOGY", _LABEL),
        scheduler=_of(environ, "K8S_SCHEDULER", _NAME),
        ttl_s=_seconds(environ.get("K8S_TTL", ""), "K8S_TTL"),
        deadline_s=_limit(time_limit),
        run_as=_run_as(environ.get("K8S_RUN_AS", "")),
        security=cast(Security, security),
        secrets=_secrets(environ.get("K8S_SECRETS", "")),
    )


def add_features(manifests: list[Manifest], wanted: Features) -> list[Manifest]:
    """The manifests with them; both kinds have the same pods."""
    for manifest in manifests:
        if manifest["kind"] == "JobSet":
            _job(manifest["spec"]["replicatedJobs"][0]["template"]["spec"], wanted)
        elif manifest["kind"] == "Job":
            _job(manifest["spec"], wanted)
        if manifest["kind"] in ("Job", "JobSet") and wanted.ttl_s is not None:
            manifest["spec"]["ttlSecondsAfterFinished"] = wanted.ttl_s
    return manifests


def _job(job: Manifest, wanted: Features) -> None:
    if wanted.deadline_s is not None:
        job["activeDeadlineSeconds"] = wanted.deadline_s
    template = job["template"]
    notes = {NETWORKS: wanted.networks, TOPOLOGY: wanted.topology}
    template["metadata"]["annotations"] |= {key: value for key, value in notes.items() if value}
    pod, container = template["spec"], template["spec"]["containers"][0]
    if wanted.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in wanted.pull_secrets]
    for key, value in (("priorityClassName", wanted.priority_class), ("schedulerName", wanted.scheduler)):
        if value:
            pod[key] = value
    if wanted.spread:
        labels = {"matchLabels": dict(template["metadata"]["labels"])}
        pod["topologySpreadConstraints"] = [
            {"maxSkew": 1, "topologyKey": wanted.spread, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": labels}
        ]
    amounts = {"cpu": wanted.cpu, "memory": wanted.memory, **wanted.rdma}
    if any(amounts.values()):
        resources = container.setdefault("resources", {"limits": {}, "requests": {}})
        for kind in ("limits", "requests"):
            resources[kind] = {**resources.get(kind, {}), **{name: value for name, value in amounts.items() if value}}
    known = {entry["name"] for entry in container["env"]}
    for name, (secret, key) in wanted.secrets.items():
        if name not in known:
            ref = {"secretKeyRef": {"name": secret, "key": key}}
            container["env"].append({"name": name, "valueFrom": ref})
    _secure(pod, container, wanted)


def _secure(pod: Manifest, container: Manifest, wanted: Features) -> None:
    """Who the pods are and what they may: the order (0600) is read by its owner's group through fsGroup."""
    rules = pod.setdefault("securityContext", {})
    if wanted.run_as is not None:
        user, group = wanted.run_as
        rules |= {"runAsUser": user, "runAsGroup": group, "fsGroup": group, "runAsNonRoot": user != 0}
    if not wanted.security:
        if not rules:
            del pod["securityContext"]
        return
    if container["securityContext"].get("privileged") or pod.get("hostNetwork"):
        raise UsageError("K8S_SECURITY does not go with K8S_PRIVILEGED or K8S_HOST_NETWORK: keep one")
    rules["seccompProfile"] = {"type": "RuntimeDefault"}
    # RDMA that pins memory (IPC_LOCK) and py-spy on a foreign process (SYS_PTRACE) are not in these profiles: the
    # limit of locked memory has to come from the runtime, and stacks from the trainers themselves.
    container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    if wanted.security == "restricted":
        if wanted.run_as is None or wanted.run_as[0] == 0:
            raise UsageError("K8S_SECURITY=restricted needs K8S_RUN_AS=UID[:GID] of a user that is not root")
        rules["runAsNonRoot"] = True


def _of(environ: Mapping[str, str], name: str, form: re.Pattern[str]) -> str:
    text = environ.get(name, "")
    if text and not form.fullmatch(text):
        raise UsageError(f"{name} '{text}' is not a form that Kubernetes accepts")
    return text


def _list(environ: Mapping[str, str], name: str) -> list[str]:
    found = [word for word in environ.get(name, "").split(",") if word]
    for word in found:
        _of({name: word}, name, _NAME)
    return found


def _pairs(text: str, what: str, key: re.Pattern[str], value: re.Pattern[str]) -> dict[str, str]:
    found = {}
    for pair in filter(None, text.split(",")):
        name, _, amount = pair.partition("=")
        if not key.fullmatch(name) or not value.fullmatch(amount):
            raise UsageError(f"{what} '{pair}': give RESOURCE=COUNT, as rdma/hca=8")
        found[name] = amount
    return found


def _secrets(text: str) -> dict[str, tuple[str, str]]:
    found = {}
    for pair in filter(None, text.split(",")):
        match = re.fullmatch(r"([A-Za-z_]\w*)=([a-z0-9.-]+)/([A-Za-z0-9._-]+)", pair)
        if match is None:
            raise UsageError(f"K8S_SECRETS '{pair}': give VARIABLE=SECRET/KEY, as HF_TOKEN=hub/token")
        found[match[1]] = (match[2], match[3])
    return found


def _run_as(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text)
    if match is None:
        raise UsageError(f"K8S_RUN_AS '{text}': give UID or UID:GID")
    return int(match[1]), int(match[2] or match[1])


def _seconds(text: str, what: str) -> int | None:
    if text and not text.isdigit():
        raise UsageError(f"{what} '{text}': give whole seconds")
    return int(text) if text else None


def _limit(text: str) -> int | None:
    """Slurm's way to say a time limit: minutes, H:M:S or days-H:M:S."""
    if not text:
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"--time '{text}': use minutes, H:M:S or days-H:M:S")
    days, a, b, c = (int(part) if part else 0 for part in match.groups())
    seconds = a * 3600 + b * 60 + c if match[1] or match[4] else a * 60 + b
    if not days * 86400 + seconds:
        raise UsageError(f"--time '{text}': a limit of nothing ends the job at once")
    return days * 86400 + seconds
