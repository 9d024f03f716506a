"""The NVIDIA GPU of this machine, by nvidia-smi: what it is, and cut into MIG slices for a while."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any


def machine_facts() -> dict[str, Any]:
    """Which machine this is."""
    asked = ["name", "driver_version", "power.limit", "power.default_limit", "clocks.max.sm", "mig.mode.current"]
    facts: dict[str, Any] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "cores": os.cpu_count()}
    facts["gpu"] = smi(f"--query-gpu={','.join(asked)}", "--format=csv,noheader")
    facts["temperatures"] = smi("-q", "-d", "TEMPERATURE")
    return facts


@contextlib.contextmanager
def sliced(wanted: int) -> Iterator[list[str]]:
    """The GPU cut into MIG slices, by their UUIDs; put back afterwards."""
    if not wanted:
        yield []
        return
    said = smi("-i", "0", "-mig", "1")
    try:
        said += " / " + smi("mig", "-cgi", ",".join(["9"] * wanted), "-C")  # 3g.71gb on an H200
        found = re.findall(r"UUID: (MIG-[0-9a-f-]+)", smi("-L"))
        if len(found) != wanted:
            raise RuntimeError(f"no {wanted} slices: {said}")
        yield found
    finally:
        smi("mig", "-dci")
        smi("mig", "-dgi")
        smi("-i", "0", "-mig", "0")


def smi(*words: str) -> str:
    """What nvidia-smi answers, with its exit code where it refuses."""
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"nvidia-smi: {e}"
    return (done.stdout + done.stderr).strip() + (f" (exit {done.returncode})" if done.returncode else "")
