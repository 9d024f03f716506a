"""The fuzzer: mutated inputs through every reader, in children with limits; what breaks is kept as a seed.

scripts/fuzz [--minutes M] [--only NAME,…] [--seed N]. Exit code 1 when something was found. An input must give an
answer or one of our named errors, within 10 s and within 1 GB; a child that dies over one has left its input on disk.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from fuzz.mutate import mutate  # noqa: E402
from fuzz.targets import TARGETS, Target  # noqa: E402

SEEDS = HERE / "seeds"
HANG_S, MOST_KB = 10.0, 1 << 20
_STILL_S = 120.0  # of the clock, for a reader that waits for something; a shared machine may stand still for seconds
_BATCH_S = 20.0  # a child works for so long, then its memory starts afresh


def feed(target: Target, data: bytes, folder: Path) -> str:
    """What is wrong with a reader's answer to one input; empty when nothing is."""
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, HANG_S)  # of the processor's time, however busy the machine is
    signal.setitimer(signal.ITIMER_REAL, _STILL_S)
    try:
        target.feed(data, folder)
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    return f"took {grown >> 10} MiB of memory" if grown > MOST_KB else ""


def _batch(target: Target, seeds: list[bytes], rng: random.Random, room: Path) -> int:
    """A child that feeds inputs for a while; at the first bad answer it leaves input and answer and exits with 1."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # Who asks for terabytes gets MemoryError; who really uses more than a gigabyte is told by the peak.
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        end, count = time.monotonic() + _BATCH_S, 0
        while time.monotonic() < end:
            plain = mutate(rng.choice(seeds), seeds, rng)
            data = target.pack(plain)
            (room / "input").write_bytes(data)
            folder = room / "work"
            folder.mkdir()
            if said := feed(target, data, folder):
                (room / "said").write_text(said)
                os._exit(1)
            shutil.rmtree(folder, ignore_errors=True)
            count += 1
        (room / "count").write_text(str(count))
        code = 0
    finally:
        os._exit(code)


def main() -> int:
    """Round after round over the readers until the time is up."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--only", default="")
    options.add_argument("--seed", type=int, default=int(time.time()))
    asked = options.parse_args()
    names = [name for name in TARGETS if not asked.only or name in asked.only.split(",")]
    rng = random.Random(asked.seed)
    end, found = time.monotonic() + 60 * asked.minutes, 0
    fed, spent = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    with tempfile.TemporaryDirectory(prefix="trackwalker-fuzz-") as held:
        right = {name: TARGETS[name].seeds(Path(held)) for name in names}
        while time.monotonic() < end:
            for name in names:
                begun = time.monotonic()
                room = Path(tempfile.mkdtemp(dir=held))
                child = random.Random(rng.random() + zlib.crc32(name.encode()))
                _, status, _ = os.wait4(_batch(TARGETS[name], right[name], child, room), 0)
                spent[name] += time.monotonic() - begun
                if status:
                    found += _keep(name, room, status)
                else:
                    fed[name] += int((room / "count").read_text())
                shutil.rmtree(room, ignore_errors=True)
                if time.monotonic() > end:
                    break
    for name in names:
        print(f"{name:14} {fed[name]:8d} inputs {spent[name]:8.0f} s")
    print(f"seed {asked.seed}: {found} found")
    return 1 if found else 0


def _keep(name: str, room: Path, status: int) -> int:
    said = (
        (room / "said").read_text()
        if (room / "said").exists()
        else f"died of signal {status & 0x7F} (27: over 10 s of work, 14: over 120 s of waiting)"
    )
    data = (room / "input").read_bytes()
    path = SEEDS / name / hashlib.sha256(data).hexdigest()[:16]
    last = " | ".join(said.strip().splitlines()[-4:])
    print(f"FOUND {name} {path.name} ({len(data)} bytes): {last}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return 1


if __name__ == "__main__":
    sys.exit(main())
