"""A trainer that looks like Megatron-LM from outside: every rank meets the others in every step, the last one prints.

It knows nothing of Trackwalker. The meeting is a real one over TCP: a rank that stops or dies holds up the others.
"""

from __future__ import annotations

import os
import socket
import sys
import time


def main() -> None:
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    steps, pace = int(sys.argv[1]), float(sys.argv[2])
    work = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0  # CPU seconds of a step
    meet = Meeting(rank, world, int(os.environ["MASTER_PORT"]))
    if rank == world - 1:
        print("> building train, validation, and test datasets ...", flush=True)
    for step in range(1, steps + 1):
        began, worked = time.time(), time.thread_time()
        while time.thread_time() - worked < work:
            sum(i * i for i in range(2000))
        while time.time() - began < pace:  # some work, and some waiting, as a step has
            sum(i * i for i in range(200))
            time.sleep(pace / 20)  # the wait is the subject: a step lasts as long as it is told to
        meet.all()
        if rank == world - 1:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            parts = [
                f" [{stamp}] iteration {step:8d}/{steps:8d}",
                f"consumed samples: {step * 8:12d}",
                f"elapsed time per iteration (ms): {1000 * (time.time() - began):.1f}",
                "learning rate: 1.000000E-04",
                "global batch size:     8",
                f"lm loss: {5 / step**0.1:.6E}",
                "loss scale: 1.0",
                "grad norm: 1.000",
                "number of skipped iterations:   0",
                "number of nan iterations:   0 |",
            ]
            print(" | ".join(parts), flush=True)


class Meeting:
    """Rank 0 waits for a byte of everybody and answers."""

    def __init__(self, rank: int, world: int, port: int) -> None:
        self.peers: list[socket.socket] = []
        if rank == 0:
            with socket.create_server(("127.0.0.1", port)) as server:
                self.peers = [server.accept()[0] for _ in range(world - 1)]
            return
        for _ in range(600):
            try:
                self.peers = [socket.create_connection(("127.0.0.1", port))]
                break
            except OSError:
                time.sleep(0.1)
        self.rank = rank

    def all(self) -> None:
        first = not hasattr(self, "rank")
        if not first:
            self.peers[0].sendall(b".")
        for peer in self.peers:
            if not peer.recv(1):
                raise RuntimeError("Connection closed by peer")
        if first:
            for peer in self.peers:
                peer.sendall(b".")


main()
