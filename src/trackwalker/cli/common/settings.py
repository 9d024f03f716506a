"""The config file: what is the same in most commands, said once; flags beat environment beats project beats user.

Every setting stands for a variable of the environment that the commands read anyway, so there is one way in which a
value reaches them.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError

# Setting: its variable, and what it is.
KEYS = {
    "workspace": ("JOB_WORKSPACE", "folder that holds the jobs"),
    "partition": ("TRACKWALKER_PARTITION", "Slurm partition of submitted jobs"),
    "account": ("TRACKWALKER_ACCOUNT", "Slurm account of submitted jobs"),
    "image": ("DOCKER_IMAGE", "container image"),
    "registry": ("DOCKER_REGISTRY", "where images come from"),
    "gpu": ("TRACKWALKER_GPU", "GPU of the nodes, as MI300X"),
    "fabric": ("TRACKWALKER_FABRIC", "network of the nodes: ionic, mlx5, bnxt, efa, tcp"),
    "store": ("TRACKWALKER_REMOTE_WRITE", "Prometheus store that every sample is sent to"),
    "metrics": ("TRACKWALKER_METRICS", "the cluster's own metric store that `diagnose` reads: Prometheus' address"),
    "metrics_tenant": ("TRACKWALKER_METRICS_TENANT", "X-Scope-OrgID of that store"),
    "metrics_auth_file": ("TRACKWALKER_METRICS_AUTH_FILE", "file with 'bearer TOKEN' or 'basic USER:PASSWORD' for it"),
    "metrics_ca_file": ("TRACKWALKER_METRICS_CA_FILE", "certificates that it has"),
    "metric_map": ("TRACKWALKER_METRIC_MAP", "a map of further metrics in it"),
    "notifiers": ("TRACKWALKER_WATCH", "file with channels, routes and resume policy of `watch`"),
}
_PATHS = (
    "workspace",
    "notifiers",
    "metrics_auth_file",
    "metrics_ca_file",
    "metric_map",
)  # relative to the file that says them
PROJECT = "trackwalker.toml"
_applied: dict[str, str] = {}  # variables that a file set, so that they are not taken for the user's own


@dataclass(frozen=True)
class Found:
    """A setting that is set, and by what."""

    value: str
    origin: str


def user_file(env: Mapping[str, str] = os.environ) -> Path:
    """Where this user's settings are."""
    home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".config")
    return Path(home) / "trackwalker" / "config.toml"


def project_file(folder: Path | None = None) -> Path | None:
    """The nearest trackwalker.toml, here or above."""
    here = (folder or Path.cwd()).absolute()
    return next((path for place in (here, *here.parents) if (path := place / PROJECT).is_file()), None)


def apply_settings() -> None:
    """Set the variables that a file says and the environment does not."""
    for key, found in from_files().items():
        if not os.environ.get(KEYS[key][0]):
            os.environ[KEYS[key][0]] = _applied[KEYS[key][0]] = found.value


def from_files() -> dict[str, Found]:
    """What the files say: the project's beats the user's."""
    found: dict[str, Found] = {}
    project = project_file()
    for path in (user_file(), *([project] if project else [])):
        found |= {key: Found(value, str(path)) for key, value in read_file(path).items()}
    return found


def effective(env: Mapping[str, str]) -> dict[str, Found]:
    """Every setting that is set: the environment's beat the files'."""
    own = {key: name for key, (name, _) in KEYS.items() if env.get(name) and env[name] != _applied.get(name)}
    return {**from_files(), **{key: Found(env[name], f"environment ({name})") for key, name in own.items()}}


def read_file(path: Path) -> dict[str, str]:
    """The settings of a file; one that others could have written is not believed, a mistake is one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{path} cannot be read: {e}") from e
    from trackwalker.job.trust import distrust  # most users have no such file

    if why := distrust(path):
        print(f"trackwalker: warning: {path} is ignored: {why}", file=sys.stderr)
        return {}
    try:
        said: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path} is not valid TOML: {e}") from e
    for key, value in said.items():
        known(key, str(path))
        if not isinstance(value, str) or not value or "\0" in value:
            raise UsageError(f'{path}: {key} must be text, as {key} = "…"')
    return {key: str(path.parent / Path(value).expanduser()) if key in _PATHS else value for key, value in said.items()}


def known(key: str, where: str = "") -> str:
    """The variable of a setting; an unknown one is an error that names the nearest."""
    if key in KEYS:
        return KEYS[key][0]
    near = difflib.get_close_matches(key, KEYS, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(KEYS)}"
    raise UsageError(f"{where}{': ' if where else ''}no setting '{key}'; {hint}")


def write(path: Path, key: str, value: str) -> None:
    """Set one line of a file, and leave the others as they are; an empty value takes the line away."""
    known(key)
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    kept = [line for line in lines if not re.match(rf"\s*{key}\s*=", line)]
    path.parent.mkdir(parents=True, exist_ok=True)
    new = [f"{key} = {json.dumps(value, ensure_ascii=False)}"] if value else []
    path.write_text("\n".join([*kept, *new]) + "\n", encoding="utf-8")
