"""Ray's folder, ports and environment: private, short, quiet."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
from importlib.util import find_spec
from pathlib import Path

# What Ray adds to its folder for its longest socket, and what the kernel allows a socket's name to have.
_SOCKET = "/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
_LONGEST_SOCKET = 107
_SLOW_MS = "300000"

# Ray's own housekeeping must not cost training anything: as upstream runs it, and nothing leaves the machine.
_QUIET = {
    "RAY_metrics_report_interval_ms": _SLOW_MS,
    "RAY_event_stats": "0",
    "RAY_health_check_period_ms": "30000",
    "RAY_health_check_failure_threshold": "20",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS": "0",
    "AUTOSCALER_METRIC_PORT": "0",  # any: the usual ones may be another Ray's
    "DASHBOARD_METRIC_PORT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def missing_ray() -> str | None:
    """What is not installed of `ray[default]`, None when all of it is there; Ray itself is not imported."""
    needed = ("ray", "aiohttp_cors", "opencensus")  # the last two make `ray` into `ray[default]`
    return next((name for name in needed if find_spec(name) is None), None)


def ray_home(job_dir: Path) -> Path:
    """A folder of this job's own on node-local disk, short enough for Ray's sockets."""
    mark = hashlib.sha256(os.fsencode(job_dir.resolve())).hexdigest()[:10]
    home = Path(tempfile.gettempdir()) / f"tw-ray-{mark}"
    fits = len(os.fsencode(home)) + len(_SOCKET) <= _LONGEST_SOCKET
    return home if fits else Path("/tmp") / home.name  # noqa: S108 - claimed as a private folder before use


def where_ray_is(job_dir: Path) -> str | None:
    """One line for the user once Ray is up: its dashboard, its token's place, and whether stacks can be seen."""
    path = job_dir / "agent" / "ray.json"
    try:
        about = json.loads(path.read_bytes())
        stacks = "" if about["stacks"] == "yes" else f"; no stacks: {about['stacks']}"
        return f"Ray dashboard {about['dashboard']}, its token is in {path}{stacks}"
    except (OSError, ValueError, KeyError):
        return None


def environment(home: Path) -> dict[str, str]:
    """The environment of all Ray processes: ours without anybody's Ray settings, throttled, with a token of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= _QUIET
    env["PATH"] = f"{home / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
    # Whoever may talk to Ray may run programs as us. Its dashboard is on loopback only, but a machine has other users,
    # and Ray opens its inner ports on every interface: nobody gets in without the token.
    env["RAY_AUTH_MODE"] = "token"
    env["RAY_AUTH_TOKEN_PATH"] = str(home / "token")
    env["RAY_DASHBOARD_ENABLE_PROFILING"] = "1"  # stacks, which Ray leaves off for security: here they need the token
    return env


def hold_port(wanted: int) -> socket.socket:
    """Bind a port for a program that will listen there: this one if it is free, else any."""
    with socket.socket() as strict:  # without reuse: a port that another keeper holds counts as taken
        try:
            strict.bind(("", wanted))
        except OSError:
            strict.bind(("", 0))
        port = strict.getsockname()[1]
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the program binds it as well, with the same option
    held.bind(("127.0.0.1", port))
    return held
