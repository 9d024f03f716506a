"""Steps without a time of their own are put between the lines that have one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from trackwalker.logs.scanning.steps import Steps
from trackwalker.record.line_clock import put_on_the_clock, stamps_in
from trackwalker.record.timeline import Timeline

START = datetime(2026, 2, 11, 3, 15, tzinfo=UTC).timestamp()
STEP_S, STEPS, SET_UP_S = 20.0, 30, 400.0


def line(after_s: float, zone_s: float = 0.0) -> str:
    at = datetime.fromtimestamp(START + after_s + zone_s, UTC)
    return f"00: [NeMo I {at:%Y-%m-%d %H:%M:%S} megatron_init:396] words"


def moved(place: Path, before: list[str], between: dict[int, str]) -> float:
    """By how much the steps are moved when these lines stand before the first and before certain steps."""
    lines, numbers = list(before), []
    for step in range(STEPS):
        lines += [between[step]] if step in between else []
        numbers.append(len(lines) + 1)
        lines.append(f"00: iteration {step}/99 | train_step_timing in s: {STEP_S}")
    log = place / "job.log"
    log.write_text("\n".join(lines) + "\n")
    numbered = np.arange(STEPS)
    reckoned = START + STEP_S * (numbered + 1)
    seconds = np.full(STEPS, STEP_S)
    timeline = Timeline(numbered, reckoned, seconds, np.full(STEPS, np.nan), False, "job.log")
    steps = Steps(step=numbered, seconds=seconds, line=np.array(numbers))
    end = START + SET_UP_S + STEP_S * STEPS + 900.0
    return float(put_on_the_clock(timeline, steps, log, START, end).ends[0] - reckoned[0])


def test_lines_between_the_steps_tell_when_they_were(tmp_path: Path) -> None:
    between = {i: line(SET_UP_S + STEP_S * i + 1.0) for i in (5, 12, 20)}
    assert moved(tmp_path, [line(300.0)], between) == pytest.approx(SET_UP_S, abs=STEP_S)


def test_lines_before_the_first_step_are_the_least(tmp_path: Path) -> None:
    assert moved(tmp_path, [line(40.0), line(380.0)], {}) == pytest.approx(380.0 - STEP_S, abs=1.0)


@pytest.mark.parametrize("zone_s", [-7 * 3600.0, 9 * 3600.0])
def test_times_of_another_zone_say_nothing(tmp_path: Path, zone_s: float) -> None:
    assert moved(tmp_path, [line(380.0, zone_s)], {}) == 0.0


def test_times_that_contradict_each_other_say_nothing(tmp_path: Path) -> None:
    assert moved(tmp_path, [line(700.0)], {10: line(320.0)}) == 0.0


def test_a_log_without_times_is_left_as_it_is(tmp_path: Path) -> None:
    assert moved(tmp_path, ["00: words"], {}) == 0.0


def test_of_many_lines_with_a_time_some_are_read_evenly_the_last_among_them() -> None:
    at = [line(float(second)) for second in range(1000)]
    found = stamps_in("\n".join(["words", *at, "20 of 2026 words"]).encode(), 11)
    assert found.lines.tolist() == [2 + n for n in (0, 99, 199, 299, 399, 499, 599, 699, 799, 899, 999)]
    assert (found.times - START).tolist() == pytest.approx(found.lines - 2.0)


def test_a_date_within_a_text_is_no_time_of_its_line() -> None:
    assert not len(stamps_in(b"x" * 300 + b" 2026-02-11 03:15:00 was the day\n", 10).lines)
