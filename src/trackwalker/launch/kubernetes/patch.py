"""`--patch FILE`: what has no knob, merged into the manifests as `kubectl patch --type strategic` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trackwalker.errors import UsageError

# Lists of the API that are merged by a key; every other list is replaced.
_KEYS = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath",
    "imagePullSecrets": "name", "replicatedJobs": "name", "ports": "containerPort", "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}  # fmt: skip
_DIRECTIVE = "$patch"


def read_patches(path: Path) -> list[dict[str, Any]]:
    """Documents of a YAML or JSON file; each says by its `kind` which manifest it is for."""
    try:
        found = [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]
    except OSError as e:
        raise UsageError(f"--patch {path}: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise UsageError(f"--patch {path} is neither YAML nor JSON: {str(e).splitlines()[0]}") from e
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("kind"), str):
            raise UsageError(
                f"--patch {path}: every document needs a 'kind' (Job, JobSet or Service) to be merged into"
            )
    return found


def apply_patches(manifests: list[dict[str, Any]], patches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The manifests, patched; a patch that fits none is an error, not a word in the wind."""
    for patch in patches:
        fitting = [at for at, manifest in enumerate(manifests) if manifest["kind"] == patch["kind"]]
        if not fitting:
            kinds = ", ".join(sorted({str(m["kind"]) for m in manifests}))
            raise UsageError(f"--patch: there is no {patch['kind']} here; this run has {kinds}")
        for at in fitting:
            manifests[at] = merge(manifests[at], patch)
    return manifests


def merge(value: Any, patch: Any, name: str = "") -> Any:
    """Strategic merge: mappings by key, null deletes, keyed lists by their key, other lists are replaced."""
    if isinstance(value, dict) and isinstance(patch, dict):
        if patch.get(_DIRECTIVE) == "replace":
            return {key: one for key, one in patch.items() if key != _DIRECTIVE}
        out = dict(value)
        for key, one in patch.items():
            if one is None:
                out.pop(key, None)
            else:
                out[key] = merge(out[key], one, key) if key in out else one
        return out
    if isinstance(value, list) and isinstance(patch, list) and name in _KEYS:
        return _merge_list(value, patch, _KEYS[name])
    return patch


def _merge_list(value: list[Any], patch: list[Any], key: str) -> list[Any]:
    out = list(value)
    for one in patch:
        if not isinstance(one, dict) or key not in one:
            raise UsageError(f"--patch: an entry of a list needs its '{key}' to say which one it changes")
        at = next((i for i, known in enumerate(out) if isinstance(known, dict) and known.get(key) == one[key]), None)
        if one.get(_DIRECTIVE) == "delete":
            out = [known for i, known in enumerate(out) if i != at]
        elif at is None:
            out.append(one)
        else:
            out[at] = merge(out[at], one)
    return out
