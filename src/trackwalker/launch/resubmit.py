"""The same request once more: the words of a run's record, with its own code, knobs and workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.job.redact import HIDDEN
from trackwalker.job.run import RunRecord
from trackwalker.job.scrub import shown
from trackwalker.launch.code.snapshot import foreign_tree
from trackwalker.launch.code.store import FOLDER

# Environment variables that shape a request as options do. The workspace and the code are named by the record itself.
KNOBS = (
    *("RAY", "DOCKER_IMAGE", "DOCKER_REGISTRY", "STAGE_TIMEOUTS", "DATASET_DIR", "MAXTEXT_REPO_DIR"),
    *("MAXTEXT_PATCH_BRANCH", "COREDUMP_DIR", "COREDUMP_EXTRA_DIRS", "COREDUMP_WAIT_TIMEOUT", "GPUS_PER_NODE"),
    *("GPU_RESOURCE_TYPE", "K8S_NAMESPACE", "K8S_NODE_SELECTOR", "K8S_PVC_NAME", "K8S_PVC_MOUNT", "REPO_PATH_IN_PVC"),
    *("K8S_TOLERATIONS", "K8S_SERVICE_ACCOUNT", "K8S_SHM_SIZE", "K8S_HOST_NETWORK", "K8S_PRIVILEGED", "K8S_QUEUE"),
)
_COMMANDS = ("run", "submit")


def knobs(environ: Mapping[str, str]) -> dict[str, str]:
    """The knobs that are set, for the record."""
    # JSON holds no bytes that are not UTF-8.
    found = {name: environ[name] for name in KNOBS if name in environ}
    return {
        k: shown(k, v.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")) for k, v in found.items()
    }


def environment(record: RunRecord, environ: Mapping[str, str]) -> dict[str, str]:
    """This environment with the record's knobs, and none that are set only now."""
    known = {name: value for name, value in record.knobs.items() if HIDDEN not in value}
    # One with a secret in it is not in the record: the one that is set now stands in for it.
    return {
        name: value for name, value in environ.items() if name not in KNOBS or HIDDEN in record.knobs.get(name, "")
    } | known


def again(record: RunRecord, given: Sequence[str] = ()) -> list[str]:
    """The words to call trackwalker with; `given` are the secrets that the record does not keep, as key=value."""
    if not record.argv or record.argv[0] not in _COMMANDS:
        raise UsageError(f"{record.id}: its record does not say how it was asked for, so it cannot be asked for again")
    words = _with_secrets(record, given)
    cut = words.index("--") if "--" in words else len(words)
    command, head, tail = words[0], words[1:cut], words[cut:]
    # `-w` is the workspace of `run`, and sbatch's list of nodes in a submit.
    head = _without(head, "--workspace", "-w" if command == "run" else "")
    head += ["--workspace", record.workspace]
    if record.snapshot:
        tree = Path(record.workspace, FOLDER, record.snapshot)
        if not tree.is_dir():
            raise UsageError(f"{record.id}: its code snapshot {record.snapshot[:12]} is gone from {tree.parent}")
        if why := foreign_tree(tree):
            raise UsageError(f"{record.id}: its code snapshot is not run: {why}")
        head = [*_without(head, "--code", ""), "--code", str(tree)]
    return [command, *head, *tail]


def _with_secrets(record: RunRecord, given: Sequence[str]) -> list[str]:
    values = dict(word.partition("=")[::2] for word in given)
    hidden = [key for key, _, value in (word.partition("=") for word in record.argv) if HIDDEN in value]
    missing = [key for key in hidden if not values.get(key)]
    if missing:
        form = " ".join(f"{key}=…" for key in missing)
        raise UsageError(f"{record.id}: secrets are not kept; give them again: resubmit {record.id} -- {form}")
    foreign = [key for key in values if key not in hidden]
    if foreign:
        raise UsageError(f"'{foreign[0]}' is no secret of {record.id}: resubmit repeats a request as it was")
    keys = (word.partition("=")[0] for word in record.argv)
    return [f"{key}={values[key]}" if key in values else word for key, word in zip(keys, record.argv, strict=True)]


def _without(words: Sequence[str], long: str, short: str) -> list[str]:
    """The words less one option, in whichever way it was written."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == long or (short and word == short):
            skip = True
        elif not word.startswith(f"{long}=") and not (short and word.startswith(short) and len(word) > len(short)):
            kept.append(word)
    return kept
