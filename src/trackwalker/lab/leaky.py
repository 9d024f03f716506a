"""The trainer with a leak: `python -m trackwalker.lab.leaky AFTER_S MB_PER_S <the trainer's words>`."""

from __future__ import annotations

import runpy
import sys
import threading
import time

_PAGE = 4096
_ROUND_S = 0.25


def leak(after_s: float, mb_per_s: float) -> None:
    """Keep allocating and touching memory that nobody will ever free."""
    time.sleep(after_s)
    held = []
    while True:
        block = bytearray(int(mb_per_s * _ROUND_S) << 20)
        block[::_PAGE] = b"\1" * len(block[::_PAGE])
        held.append(block)
        time.sleep(_ROUND_S)


def main() -> None:
    """Start leaking beside the trainer."""
    after_s, mb_per_s = float(sys.argv[1]), float(sys.argv[2])
    threading.Thread(target=leak, args=(after_s, mb_per_s), name="leak", daemon=True).start()
    sys.argv = ["trackwalker.trainers.tiny", *sys.argv[3:]]
    runpy.run_module("trackwalker.trainers.tiny", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
