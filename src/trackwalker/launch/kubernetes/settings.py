"""What the cluster needs to know: scheduler words and upstream's environment knobs, read once and checked."""

from __future__ import annotations

import getopt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.launch.kubernetes.features import Features, read_features
from trackwalker.launch.kubernetes.patch import read_patches

_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # namespaces, claims, service accounts
_QUALIFIED = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?([EPTGMk]|[EPTGMK]i)?")
_TAKES = "Kubernetes takes -N NODES, -n NAMESPACE, --time LIMIT and --patch FILE"
_NONE = Features()
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True)
class Toleration:
    """A taint that the pods accept; no key means every taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


@dataclass(frozen=True)
class ClusterSettings:
    """Where and how the pods run."""

    claim: str  # the PersistentVolumeClaim that holds the workspace
    nodes: int = 1
    namespace: str = "default"
    mount: str = "/mnt/shared"
    repo_in_claim: str = ""
    gpus_per_node: int = 8
    gpu_resource: str = "amd.com/gpu"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    service_account: str = ""
    shm_size: str = "128Gi"
    host_network: bool = False
    privileged: bool = False
    queue: str = ""  # of Kueue
    features: Features = _NONE
    patches: tuple[Mapping[str, Any], ...] = ()  # of --patch


def read_settings(words: Sequence[str], environ: Mapping[str, str]) -> ClusterSettings:
    """Scheduler words (`-N 4`, `--nodes=4`, `-n NS`, `--time`, `--patch`) over knobs (`K8S_…`) over defaults."""
    try:
        options, rest = getopt.gnu_getopt(list(words), "N:n:t:", ["nodes=", "namespace=", "time=", "patch="])
    except getopt.GetoptError as e:
        raise UsageError(f"{e}; {_TAKES}") from e
    if rest:
        raise UsageError(f"'{rest[0]}' is no option; {_TAKES}")
    nodes, namespace, limit = "1", environ.get("K8S_NAMESPACE") or "default", ""
    patches: list[Mapping[str, Any]] = []
    for option, value in options:
        if option in ("-N", "--nodes"):
            nodes = value
        elif option in ("-t", "--time"):
            limit = value
        elif option == "--patch":
            patches += read_patches(Path(value))
        else:
            namespace = value
    claim = environ.get("K8S_PVC_NAME", "")
    if not claim:
        raise UsageError("K8S_PVC_NAME is not set: name the PersistentVolumeClaim that holds the workspace")
    mount = environ.get("K8S_PVC_MOUNT") or "/mnt/shared"
    if not PurePosixPath(mount).is_absolute() or ":" in mount:
        raise UsageError(f"K8S_PVC_MOUNT '{mount}': give an absolute path without ':'")
    return ClusterSettings(
        claim=_form(claim, _SUBDOMAIN, "K8S_PVC_NAME"),
        nodes=_count(nodes, "-N", 1),
        namespace=_form(namespace, _SUBDOMAIN, "the namespace"),
        mount=mount.rstrip("/") or "/",
        repo_in_claim=environ.get("REPO_PATH_IN_PVC", "").strip("/"),
        gpus_per_node=_count(environ.get("GPUS_PER_NODE") or "8", "GPUS_PER_NODE", 0),
        gpu_resource=_form(environ.get("GPU_RESOURCE_TYPE") or "amd.com/gpu", _QUALIFIED, "GPU_RESOURCE_TYPE"),
        node_selector=_selector(environ.get("K8S_NODE_SELECTOR", "")),
        tolerations=_tolerations(environ.get("K8S_TOLERATIONS", "")),
        service_account=_form(environ.get("K8S_SERVICE_ACCOUNT", ""), _SUBDOMAIN, "K8S_SERVICE_ACCOUNT"),
        shm_size=_form(environ.get("K8S_SHM_SIZE") or "128Gi", _QUANTITY, "K8S_SHM_SIZE"),
        host_network=_switch(environ, "K8S_HOST_NETWORK"),
        privileged=_switch(environ, "K8S_PRIVILEGED"),
        queue=_form(environ.get("K8S_QUEUE", ""), _SUBDOMAIN, "K8S_QUEUE"),
        features=read_features(environ, limit),
        patches=tuple(patches),
    )


def path_in_pod(path: Path, settings: ClusterSettings, repo: Path) -> str:
    """Where the pods see `path`: the same place when the claim is mounted alike here, else by REPO_PATH_IN_PVC."""
    mount = PurePosixPath(settings.mount)
    path, repo = path.absolute(), repo.absolute()
    if path.is_relative_to(mount):
        return str(path)
    if path.is_relative_to(repo):
        return str(mount / (settings.repo_in_claim or repo.name) / path.relative_to(repo))
    raise UsageError(
        f"the pods cannot see {path}: put the workspace below {mount}, or below {repo} with REPO_PATH_IN_PVC set"
    )


def _selector(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        key, eq, value = pair.partition("=")
        if not eq or not _QUALIFIED.fullmatch(key) or (value and not _QUALIFIED.fullmatch(value)) or "/" in value:
            raise UsageError(f"K8S_NODE_SELECTOR '{pair}': give key=value")
        found[key] = value
    return found


def _tolerations(text: str) -> tuple[Toleration, ...]:
    # As kubectl writes taints: key[=value][:effect]; the one word `all` is upstream's way, every taint.
    if text == "all":
        return (Toleration(),)
    found = []
    for taint in filter(None, text.split(",")):
        pair, colon, effect = taint.partition(":")
        key, _, value = pair.partition("=")
        if not _QUALIFIED.fullmatch(key) or (colon and effect not in _EFFECTS):
            raise UsageError(
                f"K8S_TOLERATIONS '{taint}': give key[=value][:effect] (effects: {', '.join(_EFFECTS)}) or 'all'"
            )
        found.append(Toleration(key, value, effect))
    return tuple(found)


def _switch(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").lower()
    if text not in ("", "0", "1", "false", "true"):
        raise UsageError(f"{name}={text}: say true or false")
    return text in ("1", "true")


def _count(text: str, what: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"{what} {text}: give a whole number, {least} or more")
    return int(text)


def _form(text: str, form: re.Pattern[str], what: str) -> str:
    if text and not form.fullmatch(text):
        raise UsageError(f"{what} '{text}' is not a form that Kubernetes accepts")
    return text
