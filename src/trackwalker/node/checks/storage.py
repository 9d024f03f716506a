"""Storage: the job directory takes what is written and gives it back, and there is room where the job needs it."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
import uuid
from typing import Any

from trackwalker.job.processes import read_bytes
from trackwalker.node.checks.result import Check, Context, Result, failed, passed, skipped, warned

GIB = 1 << 30
JOB_FREE = 1 * GIB  # less and the log itself is at risk
JOB_ROOM = 50 * GIB  # less and one checkpoint may not fit
TMP_FREE = 1 * GIB
SHM_SIZE = 8 * GIB  # what RCCL and data loaders of eight ranks take between them
SLOW_S = 5.0
CHILD_S = 15.0
# Read now: a job directory that hangs may hold this very program.
# By name: in a zipapp, Python 3.9 has not set __package__ yet.
_SOURCE = (pkgutil.get_data(__name__.rpartition(".")[0], "fschild.py") or b"").decode("utf-8")


def shared(context: Context) -> Result:
    """Write, fsync and read back in the job directory, and see how much room it has."""
    if not context.job_dir:
        return skipped("no job directory yet")
    mount = filesystem(context.job_dir, context.proc)
    found = look(context.job_dir)
    data = {**found, **mount, "directory": context.job_dir}
    where = f"{context.job_dir} ({mount.get('type') or 'unknown file system'})"
    if found.get("hangs"):
        return failed(f"{where} does not answer", "see whether its server is up (mount, dmesg)", **data)
    if "error" in found:
        return failed(f"{where}: {found['error']}", "choose a job workspace that every node can write", **data)
    free, seconds = found["free"], found["write_s"] + found["read_s"]
    text = f"{where}: written and read back in {seconds:.3f} s, {_gib(free)} free"
    if free < JOB_FREE or found["inodes_free"] == 0:
        why = "no inodes are left" if found["inodes_free"] == 0 else "too little to log"
        return failed(f"{text}: {why}", "free some space, or choose another job workspace", **data)
    if free < JOB_ROOM:
        return warned(text, "a checkpoint may not fit", **data)
    if seconds > SLOW_S:
        return warned(text, "the file system is slow: checkpoints will be, too", **data)
    return passed(text, **data)


def look(folder: str) -> dict[str, Any]:
    """What the child found; `hangs` when it has not come back (then it is left behind, and cleans up by itself)."""
    name = f".trackwalker-preflight-{uuid.uuid4().hex[:12]}"
    # -I -S: nothing of the user's Python setup, which may be on the file system that hangs.
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SOURCE, folder, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )
    try:
        answer, trouble = child.communicate(timeout=CHILD_S)
    except subprocess.TimeoutExpired:
        child.kill()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        return {"hangs": True}
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        return {"error": f"probe: {trouble.decode('utf-8', 'replace').strip()[-200:]}"}
    return found


def filesystem(path: str, proc: str = "/proc") -> dict[str, str]:
    """Type and source of the mount that holds a path, from the mount table alone: nothing is asked of the server."""
    best: tuple[int, dict[str, str]] = (-1, {})
    path = os.path.abspath(path)
    for text in (read_bytes(f"{proc}/self/mounts") or b"").decode("utf-8", "replace").splitlines():
        source, point, kind = [*text.split(" "), "", "", ""][:3]
        point = point.replace("\\040", " ")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= best[0]:
            best = len(point), {"type": kind, "source": source, "mount": point}
    return best[1]


def disk(context: Context) -> Result:
    """Room in /tmp, and a /dev/shm large enough for the ranks' exchange."""
    sizes = {}
    for name, path in (("tmp", context.tmp), ("shm", f"{context.dev}/shm")):
        try:
            space = os.statvfs(path)
        except OSError:
            continue
        sizes[f"{name}_free"], sizes[f"{name}_size"] = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    short = []
    if sizes.get("tmp_free", TMP_FREE) < TMP_FREE:
        short.append(f"{context.tmp} has {_gib(sizes['tmp_free'])} free")
    if sizes.get("shm_size", SHM_SIZE) < SHM_SIZE:
        short.append(f"{context.dev}/shm is {_gib(sizes['shm_size'])} large")
    if short:
        return failed("; ".join(short), "free /tmp; enlarge /dev/shm (mount -o remount,size=, --shm-size)", **sizes)
    text = f"{_gib(sizes.get('tmp_free', 0))} free in {context.tmp}, {context.dev}/shm {_gib(sizes.get('shm_size', 0))}"
    return passed(text, **sizes)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


CHECKS = (
    Check("shared_fs", shared, gates=True),
    Check("disk", disk, gates=False),
)
