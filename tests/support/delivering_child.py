"""Programs that deliver an outbox and are killed while they do: for each line of input one is forked.

The line says by how much its clock is moved on, so that nothing is waited for. Written out: its process id, then how it
ended as `wait` has it. Forked from here, because importing everything fourteen times takes longer than all deliveries.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from trackwalker.watch.config import load_config
from trackwalker.watch.delivery.outbox import Outbox


def deliver(folder: Path, settings: Path, ahead: float) -> None:
    outbox = Outbox(folder, load_config(settings))
    while outbox.waiting():
        ahead += 5.0
        outbox.deliver(time.time() + ahead)


def main() -> None:
    folder, settings = Path(sys.argv[1]), Path(sys.argv[2])
    for line in sys.stdin:
        if not (child := os.fork()):
            code = 1
            try:
                deliver(folder, settings, float(line))
                code = 0
            finally:
                os._exit(code)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


main()
