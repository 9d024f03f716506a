"""Where the real Prometheus is: the user's, the system's, or one we fetched once into our tool directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from trackwalker.errors import MissingToolError
from trackwalker.observe.install import BINARY, CannotInstall, from_apt, from_release, place

OLDEST = (2, 40)  # older ones refuse overlapping blocks and do not know every flag and API we use
_REMEDY = "install Prometheus >= 2.40 or set TRACKWALKER_PROMETHEUS to its binary"


def tool_dir() -> Path:
    """Our own directory for fetched programs."""
    if chosen := os.environ.get("TRACKWALKER_TOOLS"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "trackwalker" / "tools"


def find_prometheus() -> Path | None:
    """The first usable Prometheus: TRACKWALKER_PROMETHEUS, then PATH, then our tool directory."""
    if named := os.environ.get("TRACKWALKER_PROMETHEUS"):
        # Named on purpose: silently taking another one would hide the mistake.
        if why := _unfit(Path(named)):
            raise MissingToolError(f"TRACKWALKER_PROMETHEUS: {named} {why}; {_REMEDY}")
        return Path(named)
    on_path = shutil.which("prometheus")
    candidates = [Path(on_path)] if on_path else []
    candidates.append(tool_dir() / BINARY)
    return next((path for path in candidates if not _unfit(path)), None)


def ensure_prometheus(say: Callable[[str], None]) -> Path:
    """A usable Prometheus, fetched if there is none yet; `say` hears about anything that takes time."""
    if found := find_prometheus():
        return found
    target = tool_dir() / BINARY
    failures = []
    for source, fetch in (("apt", from_apt), ("download", from_release)):
        try:
            place(fetch, tool_dir(), _unfit, say)
        except (CannotInstall, OSError) as e:
            failures.append(f"{source}: {e}")
            continue
        say(f"Prometheus is ready: {target}")
        return target
    reasons = "; ".join(" ".join(f.split()) for f in failures)
    raise MissingToolError(f"Prometheus is missing and could not be fetched ({reasons}): {_REMEDY}")


def find_promtool(prometheus: Path) -> Path | None:
    """The promtool that came with this Prometheus."""
    beside = prometheus.resolve().with_name("promtool")
    return beside if os.access(beside, os.X_OK) else None


def version_of(binary: Path) -> tuple[int, int] | None:
    """Major and minor version, None where the program does not run or is not Prometheus."""
    try:
        return _ask_version(str(binary), binary.stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=8)
def _ask_version(binary: str, _changed: int) -> tuple[int, int] | None:
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"prometheus, version (\d+)\.(\d+)", done.stdout + done.stderr)
    return (int(match[1]), int(match[2])) if match and done.returncode == 0 else None


def _unfit(binary: Path) -> str | None:
    """Why this binary cannot be used, None if it can."""
    if not (binary.is_file() and os.access(binary, os.X_OK)):
        return "is not an executable file"
    version = version_of(binary)
    if version is None:
        return "does not run as Prometheus"
    if version < OLDEST:
        return f"is version {version[0]}.{version[1]}, too old"
    return None
