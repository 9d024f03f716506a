"""From a model spec and the cluster's settings to one pod plan: every name is decided here, once, at submit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trackwalker.launch.kubernetes.manifest import PodPlan, SecretRef, name_room
from trackwalker.launch.kubernetes.names import object_name
from trackwalker.launch.kubernetes.settings import ClusterSettings, path_in_pod
from trackwalker.launch.request import ModelSpec, job_name


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
        labels=facts,
        annotations={**facts, "trackwalker/job-dir": identity["JOB_DIR"]},
        ttl_seconds=ttl_seconds,
        deadline_seconds=deadline_seconds,
    )
