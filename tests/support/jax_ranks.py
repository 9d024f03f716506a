"""Runs a script as the ranks of a small JAX job on this machine."""

from __future__ import annotations

import subprocess
import sys

from ports import free_ports

from conftest import ROOT


def run_ranks(script: str, ranks: int, *words: object) -> None:
    """Start tests/support/SCRIPT once per rank with RANK RANKS PORT and the given words, and wait for all of them."""
    start = [sys.executable, str(ROOT / "tests" / "support" / script)]
    (port,) = free_ports(1)
    running = [
        subprocess.Popen(
            [*start, *map(str, (rank, ranks, port, *words))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=180)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * ranks, said[0][-2000:]
