"""Acceptance test 18 in short: recording is not seen to slow training; `bench/overhead.py` says by how much."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "overhead.py"


@pytest.mark.alone
@pytest.mark.long(reason="half a minute of measuring with nothing beside it; bench/overhead.py measures longer")
@pytest.mark.usefixtures("prometheus")
def test_a18_recording_is_not_seen_to_slow_training() -> None:
    done = subprocess.run(
        [sys.executable, BENCH, "--pairs", "8", "--seconds", "1.5"], capture_output=True, text=True, timeout=240
    )
    said = done.stdout + done.stderr
    found = re.search(r"95 % interval ([\d.]+) \.\. ([\d.]+)", said)
    assert found, said
    # A few noisy pairs cannot prove that the cost is below 1 %, but a cost clearly above it would show.
    assert float(found[1]) < 1.01, said
    share = re.search(r"([\d.]+) % of one core while on", said)
    assert share, said
    assert float(share[1]) < 15.0, said
