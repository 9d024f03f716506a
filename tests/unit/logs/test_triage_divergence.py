"""A loss that jumps and stays is a divergence; a spike, a noisy start and a short log are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from triage_logs import triage_text

from trackwalker.logs.failures.step_numbers import sustained_jump

LINE = (
    " iteration {step:8d}/  900 | consumed samples: {step} | elapsed time per iteration (ms): 2100.0 | "
    "lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 0.300 | number of nan iterations:   0 |\n"
)


def jump(losses: list[float], steps: list[int] | None = None) -> int | None:
    return sustained_jump(np.array(steps or range(len(losses))), np.array(losses))


def test_a_jump_that_stays_is_found_where_it_began() -> None:
    assert jump([2.80, 2.79, 2.77, 2.78, 7.3, 8.7, 7.6, 7.2]) == 4
    assert jump([2.8, np.nan, 2.8, 2.7, np.nan, 6.1, 6.0, 6.2]) == 5


def test_what_comes_back_or_only_falls_is_no_divergence() -> None:
    assert jump([2.8, 2.8, 2.8, 9.0, 8.0, 5.0, 2.9, 2.8, 2.8]) is None
    assert jump(list(np.linspace(11.0, 2.5, 400))) is None
    assert jump([2.8, 2.8, 2.8, 7.0]) is None  # one bad value at the end is no level
    assert jump([0.2, 0.1, 0.1, 0.5, 0.6, 0.7]) is None  # small losses jitter by more than half
    assert jump([np.nan] * 9) is None


def test_a_few_high_values_at_the_end_of_a_long_restless_run_are_chance() -> None:
    restless = list(1.3 + np.random.default_rng(7).exponential(0.45, 2400))
    assert sum(value > 2.4 for value in restless) > 100
    assert jump([*restless, 2.6, 2.5, 2.7, 2.6]) is None
    assert jump([*restless, *[2.7] * 30]) is not None


def test_a_restart_from_scratch_is_no_divergence() -> None:
    losses = [9.0, 5.0, 3.0, 2.5, 2.4, 2.4, 10.8, 9.0, 7.5, 6.0]
    assert jump(losses, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]) is None
    assert jump(losses) == 6


def test_triage_names_the_step(tmp_path: Path) -> None:
    losses = [2.9, 2.8, 2.8, 2.7, 7.4, 8.2, 7.9, 7.8]
    found = triage_text(tmp_path, "".join(LINE.format(step=10 * i, loss=x) for i, x in enumerate(losses, 1)))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.line) == ("loss-divergence", 5)
    assert "step 50" in found.primary.text
