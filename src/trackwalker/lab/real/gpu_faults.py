"""Real faults of a real NVIDIA GPU: settings that are changed and put back, and strangers that compute on it."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trackwalker.job.processes import read_bytes
from trackwalker.lab.real import gpu_hog
from trackwalker.lab.real.undo import NotHereError, Undo, start_of
from trackwalker.lab.real.victim import Victim
from trackwalker.node.collectors.identity import Place, gpus_of_ranks

_COMMAND_S = 30.0
_ASKED = ("index", "uuid", "power.limit", "power.default_limit", "power.min_limit", "clocks.max.sm")


class Card(NamedTuple):
    """What nvidia-smi says of one GPU."""

    number: str
    uuid: str
    power_limit: float
    default_limit: float
    least_limit: float
    most_mhz: float


def cap_power(victim: Victim, undo: Undo, strength: float) -> None:
    """Lower the power limit by the share `strength`, down to what the board allows."""
    for card in _cards_of(victim):
        watts = max(card.least_limit, card.power_limit * (1 - strength))
        _set(undo, card, ["-pl", f"{watts:.0f}"], back=["-pl", f"{card.power_limit:.0f}"])


def lock_clocks(victim: Victim, undo: Undo, strength: float) -> None:
    """Lock the clock of the multiprocessors at the highest less the share `strength`."""
    for card in _cards_of(victim):
        mhz = f"{card.most_mhz * (1 - strength):.0f}"
        _set(undo, card, ["-lgc", f"{mhz},{mhz}"], back=["-rgc"])


def hog_gpu(victim: Victim, undo: Undo, strength: float) -> float:
    """A stranger computes on the GPU, `strength` of its own time."""
    return _start_hogs(victim, undo, "burn", strength)


def busy_wait(victim: Victim, undo: Undo, strength: float) -> float:
    """A stranger's kernel only waits on the GPU, `strength` of its own time: full utilisation, little power."""
    return _start_hogs(victim, undo, "spin", strength)


def hog_gpu_memory(victim: Victim, undo: Undo, strength: float) -> float:
    """A stranger holds the share `strength` of the GPU's free memory and does nothing."""
    return _start_hogs(victim, undo, "memory", strength)


def gpu_here() -> bool:
    """Whether there is an NVIDIA GPU that this user may change."""
    return shutil.which("nvidia-smi") is not None and os.geteuid() == 0


def _start_hogs(victim: Victim, undo: Undo, what: str, strength: float) -> float:
    for card in _cards_of(victim):
        words = [sys.executable, gpu_hog.__file__, what, f"{strength:g}"]
        # Of a GPU in slices, the victim's own: a slice is all that its neighbours share with it.
        shown = _environment(victim.pid).get("CUDA_VISIBLE_DEVICES", "")
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": shown if shown.startswith("MIG-") else card.uuid}
        hog = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True)
        undo.push("end", hog.pid, start_of(hog.pid))
        if hog.stdout is None or not hog.stdout.readline().startswith(b"ready"):
            said = (hog.stderr.read() if hog.stderr else b"").decode(errors="replace").strip().splitlines()
            raise NotHereError(
                f"no stranger can be put on GPU {card.number}: {said[-1] if said else 'it ended at once'}"
            )
    return time.time()


def _set(undo: Undo, card: Card, change: list[str], back: list[str]) -> None:
    undo.push("command", _smi(), "-i", card.uuid, *back)
    _ask("-i", card.uuid, *change)


def _cards_of(victim: Victim) -> list[Card]:
    """The GPUs of a rank, as the agent finds them: by its visible devices, or by its place among the ranks."""
    cards = {c.number: c for c in _cards()}
    places = _places(victim.job_dir)
    slices = _slices() if any("MIG-" in shown for p in places for shown in p.env.values()) else {}
    gpus: list[Mapping[str, str]] = [
        {"gpu": c.number, "uuid": c.uuid, "mig": ",".join(slices.get(c.uuid, ()))} for c in cards.values()
    ]
    mine = [gpu["gpu"] for place, gpu, _ in gpus_of_ranks(places, gpus) if place.rank == victim.rank]
    if not mine:
        raise NotHereError(f"rank {victim.rank} of {victim.job_dir.name} has no GPU that is known to be its own")
    return [cards[number] for number in mine]


def _cards() -> list[Card]:
    lines = _ask(f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader,nounits").splitlines()
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines) if len(row) == len(_ASKED)]
    return [Card(row[0], row[1], *(_number(cell) for cell in row[2:])) for row in rows]


def _slices() -> dict[str, list[str]]:
    """The MIG slices of each card, by UUID."""
    found: dict[str, list[str]] = {}
    for line in _ask("-L").splitlines():
        uuid = re.search(r"UUID: ((GPU|MIG)-[^)]+)", line)
        if uuid and uuid[2] == "GPU":
            found[uuid[1]] = []
        elif uuid and found:
            found[next(reversed(found))].append(uuid[1])
    return found


def _places(job_dir: Path) -> list[Place]:
    ranks = json.loads((job_dir / "agent" / "state.json").read_text())["ranks"]
    return [Place(r["rank"], r["host"], r["main"], _environment(r["main"])) for r in ranks]


def _environment(pid: int) -> dict[str, str]:
    entries = (read_bytes(f"/proc/{pid}/environ") or b"").decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return 0.0


def _smi() -> str:
    found = shutil.which("nvidia-smi")
    if found is None:
        raise NotHereError("this fault needs an NVIDIA GPU: there is no nvidia-smi here")
    return found


def _ask(*words: str) -> str:
    try:
        done = subprocess.run([_smi(), *words], capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired as e:
        raise NotHereError(f"nvidia-smi {' '.join(words)} did not come back in {_COMMAND_S:.0f} s") from e
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise NotHereError(f"nvidia-smi {' '.join(words)}: {said[0] if said else f'exit {done.returncode}'}")
    return done.stdout
