"""One plan, two kinds of manifest: an Indexed Job with a headless Service, or a JobSet that brings its own.

Plain dictionaries, written as JSON: no template and no YAML stands between a value and the API. The pods start one
argument list, never a shell, and nobody in a pod works out a name or a directory again that was decided at submit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trackwalker.launch.kubernetes.features import add_features
from trackwalker.launch.kubernetes.patch import apply_patches
from trackwalker.launch.kubernetes.pods import REPLICATED_JOB, PodPlan, label_value
from trackwalker.launch.kubernetes.settings import Toleration

Manifest = dict[str, Any]

JOB_LABEL = "trackwalker/job-id"
CONTAINER = "agent"
_TERMINATION_GRACE = 60  # the agent tells the ranks, waits for a last checkpoint, writes the summary


def coordinator(plan: PodPlan, jobset: bool = False) -> str:
    """Where every pod finds node 0: its host name under the headless service, in the pods' own namespace."""
    host = f"{plan.name}-{REPLICATED_JOB}-0-0" if jobset else f"{plan.name}-0"
    return f"{host}.{plan.name}"


def job_manifests(plan: PodPlan, owner_uid: str | None = None) -> list[Manifest]:
    """The Job and its headless Service; with the Job's uid the Service goes when the Job goes."""
    owner: Manifest = {}
    if owner_uid:
        owner["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": plan.name, "uid": owner_uid}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(plan) | owner,
        "spec": {
            "clusterIP": "None",
            "selector": {JOB_LABEL: plan.job_id},
            "publishNotReadyAddresses": True,  # the ranks look for the coordinator before anybody is ready
        },
    }
    spec = _job_spec(plan, coordinator(plan))
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": _queued(plan), "spec": spec}
    return _finished([job, service], plan)


def jobset_manifests(plan: PodPlan) -> list[Manifest]:
    """The same pods as a JobSet, for clusters that queue and place those; it makes the Service itself."""
    spec: Manifest = {
        "network": {"enableDNSHostnames": True, "subdomain": plan.name, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "failurePolicy": {"maxRestarts": 0},
        "coordinator": {"replicatedJob": REPLICATED_JOB, "jobIndex": 0, "podIndex": 0},
        "replicatedJobs": [
            {
                "name": REPLICATED_JOB,
                "replicas": 1,
                "template": {
                    "metadata": {"labels": _labels(plan)},
                    "spec": _job_spec(plan, coordinator(plan, jobset=True)),
                },
            }
        ],
    }
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _queued(plan), "spec": spec}
    return _finished([jobset], plan)


def _finished(manifests: list[Manifest], plan: PodPlan) -> list[Manifest]:
    """With the knobs of the cluster's engineers, then with their patches: what they say comes last."""
    return apply_patches(add_features(manifests, plan.features), [dict(patch) for patch in plan.patches])


def to_json(manifests: Sequence[Manifest]) -> str:
    """What `kubectl apply -f -` reads: one List, in ASCII, so that no terminal or locale touches a value."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}, indent=1) + "\n"


def literal(text: str) -> str:
    """`text` so that it reaches the process unchanged: the kubelet expands `$(NAME)` and turns `$$` into `$`.

    Doubling only the `$` before a parenthesis is not enough: a value that holds `$$` would lose one.
    """
    return text.replace("$", "$$")


def _job_spec(plan: PodPlan, coordinator_host: str) -> Manifest:
    return {
        "completionMode": "Indexed",
        "completions": plan.nodes,
        "parallelism": plan.nodes,
        # A rank that starts again alone finds nobody: whole new attempts are the resume policy's business.
        "backoffLimit": 0,
        # Both rules end the job, as the limit would; they make the Job itself say why, when its pods are long gone.
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [0]},
                },
            ]
        },
        "template": {
            "metadata": {"labels": _labels(plan), "annotations": dict(plan.annotations)},
            "spec": _pod_spec(plan, coordinator_host),
        },
    }


def _pod_spec(plan: PodPlan, coordinator_host: str) -> Manifest:
    spec: Manifest = {
        "restartPolicy": "Never",
        "subdomain": plan.name,
        "terminationGracePeriodSeconds": _TERMINATION_GRACE,
        "enableServiceLinks": False,  # or every Service of the namespace would add variables to the trainer's
        "automountServiceAccountToken": bool(plan.service_account),
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": {JOB_LABEL: plan.job_id}},
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            }
        },
        "containers": [_container(plan, coordinator_host)],
        "volumes": [
            {"name": "workspace", "persistentVolumeClaim": {"claimName": plan.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": plan.shm_size}},
        ],
    }
    tolerations = [_toleration(t) for t in plan.tolerations]
    if plan.gpus_per_node:
        tolerations.insert(0, _toleration(Toleration(plan.gpu_resource)))
    if tolerations:
        spec["tolerations"] = tolerations
    if plan.node_selector:
        spec["nodeSelector"] = dict(plan.node_selector)
    if plan.service_account:
        spec["serviceAccountName"] = plan.service_account
    if plan.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return spec


def _container(plan: PodPlan, coordinator_host: str) -> Manifest:
    container: Manifest = {
        "name": CONTAINER,
        "image": plan.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [literal(word) for word in plan.argv],
        "env": _env(plan, coordinator_host),
        "securityContext": _security(plan),
        "volumeMounts": [
            {"name": "workspace", "mountPath": plan.mount},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    if plan.gpus_per_node:
        gpus = {plan.gpu_resource: str(plan.gpus_per_node)}
        container["resources"] = {"limits": gpus, "requests": dict(gpus)}
    return container


def _env(plan: PodPlan, coordinator_host: str) -> list[Manifest]:
    values = {**plan.env, "TRACKWALKER_COORDINATOR": coordinator_host}
    env: list[Manifest] = [{"name": name, "value": literal(value)} for name, value in values.items()]
    env.append({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    return env


def _security(plan: PodPlan) -> Manifest:
    if plan.privileged:
        return {"privileged": True}
    rules: Manifest = {"allowPrivilegeEscalation": False}
    if plan.nodes > 1:
        rules["capabilities"] = {"add": ["IPC_LOCK"]}  # RDMA pins memory beyond the pod's memlock limit
    return rules


def _toleration(wanted: Toleration) -> Manifest:
    rule: Manifest = {"operator": "Equal" if wanted.value else "Exists"}
    if wanted.key:
        rule["key"] = wanted.key
    if wanted.value:
        rule["value"] = wanted.value
    if wanted.effect:
        rule["effect"] = wanted.effect
    return rule


def _metadata(plan: PodPlan) -> Manifest:
    return {
        "name": plan.name,
        "namespace": plan.namespace,
        "labels": _labels(plan),
        "annotations": dict(plan.annotations),
    }


def _queued(plan: PodPlan) -> Manifest:
    """Metadata of what is queued as a whole; its pods and its Service are not."""
    metadata = _metadata(plan)
    if plan.queue:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = plan.queue
    return metadata


def _labels(plan: PodPlan) -> dict[str, str]:
    own = {"app.kubernetes.io/managed-by": "trackwalker", JOB_LABEL: plan.job_id}
    return {key: label_value(value) for key, value in plan.labels.items()} | own
