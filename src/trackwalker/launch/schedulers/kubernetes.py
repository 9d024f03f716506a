"""Kubernetes as the scheduler: the submission folder on the shared claim, a manifest beside it, and kubectl."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from trackwalker.errors import MaybeQueuedError, MissingToolError, TrackwalkerError, UsageError
from trackwalker.launch.kubernetes import client
from trackwalker.launch.kubernetes.manifest import Manifest, job_manifests, jobset_manifests, to_json
from trackwalker.launch.kubernetes.pods import PodPlan, new_job_id, plan_pods
from trackwalker.launch.kubernetes.settings import ClusterSettings, path_in_pod, read_settings
from trackwalker.launch.request.words import ModelSpec
from trackwalker.launch.submission import Submission
from trackwalker.node.stages.order import Order

__all__ = ["PodBatch", "PodJob", "plan_pod_batch", "read_settings", "submit"]


@dataclass(frozen=True)
class PodBatch:
    """A submission as Kubernetes is given it."""

    submission: Submission
    in_pod: Submission  # the same with the pods' paths
    plan: PodPlan
    jobset: bool

    def manifests(self) -> list[Manifest]:
        """What is created in the cluster."""
        return jobset_manifests(self.plan) if self.jobset else job_manifests(self.plan)


@dataclass(frozen=True)
class PodJob:
    """A job that Kubernetes has taken, or whose manifest waits to be applied by hand."""

    id: str
    job_dir: Path
    log: Path
    manifest: Path
    applied: bool
    apply_argv: list[str]  # what queues it by hand


def plan_pod_batch(
    submission: Submission,
    settings: ClusterSettings,
    image: str,
    repo: Path,
    python: str = "python3",
    jobset: bool = False,
) -> PodBatch:
    """The manifest of a submission; the pod is the container, so its agent starts the ranks without another one."""
    order, record = submission.order, submission.record
    if order.container is not None:
        raise UsageError("the pods are the containers of a Kubernetes run: leave --runtime away")
    seen = path_in_pod(order.workspace, settings, repo)
    folder = _moved(str(submission.folder), order, seen)
    plan = plan_pods(
        ModelSpec(record.model, record.alias, record.tag),
        replace(settings, nodes=order.nodes, gpus_per_node=settings.gpus_per_node if order.expected_gpus != 0 else 0),
        new_job_id(time.time()),
        image,
        [python, f"{folder}/agent.pyz", "node", f"{folder}/order.json"],
        order.workspace,
        repo,
    )
    where = {"namespace": plan.namespace, "kind": "JobSet" if jobset else "Job", "name": plan.name}
    command = [_moved(word, order, seen) for word in record.command]
    known = {"kubernetes": where, "image": image, "command": command}
    submission = replace(submission, record=record.model_copy(update=known))
    return PodBatch(submission, replace(submission, order=_order_in_pod(order, seen)), plan, jobset)


def submit(batch: PodBatch, run: client.Runner = client.kubectl, apply: bool = True) -> PodJob:
    """Write the folder and create the job; a refusal leaves nothing behind, a missing kubectl leaves the manifest."""
    folder, plan = batch.submission.folder, batch.plan
    manifest = folder / "manifest.json"
    applied = apply
    try:
        batch.in_pod.write()
        manifest.write_text(to_json(batch.manifests()))
        try:
            if apply:
                client.submit(plan, batch.jobset, run)
        except MissingToolError:
            applied = False
    except OSError as e:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(f"cannot write {manifest}: {e.strerror}; choose another --workspace") from e
    except MaybeQueuedError as e:
        raise MaybeQueuedError(f"{e}; so {folder} stays: delete it if it is not") from e
    except TrackwalkerError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    job_dir = batch.submission.open_job(plan.job_id)
    by_hand = client.apply_file_argv(plan.namespace, manifest)
    return PodJob(plan.job_id, job_dir, job_dir.parent / f"{job_dir.name}.log", manifest, applied, by_hand)


def _order_in_pod(order: Order, workspace: str) -> Order:
    def moved(text: str) -> str:
        return _moved(text, order, workspace)

    return replace(
        order,
        workspace=Path(workspace),
        argv=[moved(word) for word in order.argv],
        output=moved(order.output) if order.output else order.output,
        workdir=moved(order.workdir),
        tensorboard=moved(order.tensorboard),
    )


def _moved(text: str, order: Order, workspace: str) -> str:
    """A path below the workspace as the pods see it; anything else as it is."""
    here = str(order.workspace)
    return workspace + text[len(here) :] if text == here or text.startswith(here + "/") else text
