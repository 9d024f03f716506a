"""The trainer with a leak: `python -m trackwalker.lab.real.leaky AFTER_S|confined MB_PER_S <the trainer's words>`."""

from __future__ import annotations

import runpy
import sys
import threading
import time
from pathlib import Path

CONFINED = "confined"  # begin to leak once moved into another control group: a sudden hunger, not a slow leak
_PAGE = 4096
_ROUND_S = 0.25


def leak(after: str, mb_per_s: float) -> None:
    """Keep allocating and touching memory that nobody will ever free."""
    if after == CONFINED:
        _wait_for_another_group()
    else:
        time.sleep(float(after))
    held = []
    while True:
        block = bytearray(int(mb_per_s * _ROUND_S * (1 << 20)))
        block[::_PAGE] = b"\1" * len(block[::_PAGE])
        held.append(block)
        time.sleep(_ROUND_S)


def _wait_for_another_group() -> None:
    groups = Path("/proc/self/cgroup")
    first = groups.read_text()
    while groups.read_text() == first:
        time.sleep(_ROUND_S)


def main() -> None:
    """Start leaking beside the trainer."""
    threading.Thread(target=leak, args=(sys.argv[1], float(sys.argv[2])), name="leak", daemon=True).start()
    sys.argv = ["trackwalker.trainers.tiny", *sys.argv[3:]]
    runpy.run_module("trackwalker.trainers.tiny", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
