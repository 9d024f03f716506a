"""Logs that tell of every fifth step only: what a row stands for, and how many steps are planned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from triage_logs import triage_text

from trackwalker.job.dialects import by_name
from trackwalker.logs.facts import LogFacts
from trackwalker.record.masks import holds, masks, row_seconds
from trackwalker.record.projection import final_step


def _facts(**known: object) -> LogFacts:
    facts = LogFacts(Path("x.log"))
    for name, value in known.items():
        setattr(facts, name, value)
    return facts


def test_a_save_lengthens_the_row_behind_it() -> None:
    step = np.arange(5, 405, 5)
    seconds = np.full(len(step), 10.0)
    found = masks(step, seconds, _facts(saves={200, 300})).only("checkpoint")
    assert step[found].tolist() == [200, 205, 300, 305]


def test_where_every_step_is_told_it_is_as_before() -> None:
    step = np.arange(1, 100)
    found = masks(step, np.full(99, 10.0), _facts(saves={50})).only("checkpoint")
    assert step[found].tolist() == [50, 51, 52]


def test_a_series_that_begins_again_holds_its_own_steps_only() -> None:
    step = np.array([5, 10, 15, 10, 15, 20])
    assert holds(step, [12]).tolist() == [False, False, True, False, True, False]
    assert holds(step, [8]).tolist() == [False, True, False, False, False, False]


TITAN = "[titan] 2026-11-17 12:2{i}:00,000 - root - INFO - step: {step}  loss:  8.{i}  grad_norm:  1.9  memory: 66.86GiB(84.00%)  tps: 1,472  tflops: 373.95  mfu: 37.81%\n"  # noqa: E501


@pytest.mark.parametrize(
    "says",
    [
        "[titan] - root - INFO - Training starts at step 1, with local batch size 1, total steps 20000 (warmup 200)\n",
        "***** Running training *****\n  Total optimization steps = 20,000\n",
        'PASSTHROUGH_ARGS="--job.config_file ./llama3.toml --training.steps 20000"\n',
    ],
    ids=["torchtitan", "hugging-face", "arguments"],
)
def test_the_planned_steps_of_other_trainers(tmp_path: Path, says: str) -> None:
    rows = "".join(TITAN.format(i=i, step=i + 1) for i in range(8))
    assert final_step(triage_text(tmp_path, "JOB_ID=7\n" + says + rows).index) == 20000


def test_rows_without_a_number_are_not_compared_by_number() -> None:
    without, with_number = by_name("hugging-face"), by_name("megatron")
    assert without is not None
    assert with_number is not None
    assert (without.numbered, with_number.numbered) == (False, True)


def test_the_steps_between_two_rows_took_their_time_too() -> None:
    step = np.array([0, 20, 40, 60, 80])
    seconds = np.array([70.0, 0.5, 0.5, 30.0, 0.5])  # the first holds a compilation, one a save of its own
    assert row_seconds(step, seconds).tolist() == [70.0, 10.0, 10.0, 39.5, 10.0]
    assert row_seconds(np.arange(5), seconds) is seconds
    assert row_seconds(np.array([0, 1, 2, 900, 901]), seconds).tolist() == seconds.tolist()  # a hole is no rhythm


NANO = "0: iter {step}: loss 2.5000, time 500.00ms, mfu 40.00%\n"


def test_a_log_of_every_twentieth_iteration_lasts_as_long_as_all_of_them(tmp_path: Path) -> None:
    rows = "".join(NANO.format(step=step) for step in range(0, 2000, 20))
    record = triage_text(tmp_path, "JOB_ID=7\nNNODES=1\n" + rows).record
    assert record.progress.training_s == pytest.approx(0.5 * 1981)


def test_torchtitan_prints_colours_between_its_words(tmp_path: Path) -> None:
    colours = "[titan] 2026-11-17 12:2{i}:00,000 - root - INFO - \x1b[31mstep: {i:2}  \x1b[32mloss:  8.{i}  \x1b[38;2;180;60;0mgrad_norm:  1.9  \x1b[33mmemory: 66.86GiB(84.00%)  \x1b[34mtps: 1,472  \x1b[36mtflops: 373.95  \x1b[35mmfu: 37.81%\x1b[39m\n"  # noqa: E501
    rows = "".join(colours.format(i=i) for i in range(1, 9))
    steps = triage_text(tmp_path, "JOB_ID=7\nNNODES=1\n" + rows).index.steps
    assert (steps.dialect, steps.step.tolist()) == ("torchtitan", list(range(1, 9)))


def test_a_profiler_that_is_deactivated_has_ended(tmp_path: Path) -> None:
    step = "0: completed step: {i}, seconds: 9.0, TFLOP/s/device: 400.0, Tokens/s/device: 800.0, loss: 2.0\n"
    words = {9: "0: Activating profiler: profiler_steps=4\n", 13: "0: Deactivating profiler: wrote xplane.pb\n"}
    rows = "".join(words.get(i, "") + step.format(i=i) for i in range(30))
    assert [len(told) for told in triage_text(tmp_path, "JOB_ID=7\nNNODES=1\n" + rows).index.facts.profiles] == [2]


def test_lines_that_begin_with_their_step_are_all_of_one_rank(tmp_path: Path) -> None:
    rows = "".join(NANO.format(step=step).removeprefix("0: ") for step in range(0, 200, 10))
    assert triage_text(tmp_path, rows).index.steps.step.tolist() == list(range(0, 200, 10))


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        (
            "[titan] - root - INFO - Profiling active. Traces will be saved at ./out",
            "[titan] Finished dumping profiler traces in 9 s",
        ),
        (
            "[NeMo I] ====== Start torch profiling from step 40 to step 44 ======",
            "[NeMo I] ====== End torch profiling; trace written",
        ),
        ("", "[titan] - root - INFO - Dumping profiler traces at step 44"),
    ],
)
def test_what_profilers_say_of_their_beginning_and_end_is_believed(tmp_path: Path, begins: str, ends: str) -> None:
    rows = [f"completed step: {i}, seconds: {7.0 if 40 <= i < 45 else 5.0:.3f}, loss: 2.0" for i in range(80)]
    rows[44] = f"{rows[44]}\n{ends}"
    rows[39] = f"{rows[39]}\n{begins}"
    masked = triage_text(tmp_path, "\n".join(rows) + "\n").record.masks.of("profiler")
    assert masked[45 if not begins else 41]
    assert masked.sum() <= 10


def test_a_step_long_before_a_profiler_writes_is_no_step_of_its(tmp_path: Path) -> None:
    rows = [f"completed step: {i}, seconds: 5.000, loss: 2.0" for i in range(300)]
    rows[0] += "\n[titan] - root - INFO - Profiling active. Traces will be saved at ./out"
    rows[249] += "\n[titan] - root - INFO - Dumping profiler traces at step 250"
    assert triage_text(tmp_path, "\n".join(rows) + "\n").record.masks.of("profiler").sum() < 30


def test_a_trainers_plain_word_on_its_end_counts_where_no_plan_is_told(tmp_path: Path) -> None:
    rows = [f"completed step: {i}, seconds: 5.000, loss: 2.0" for i in range(60)]
    rows += ["0: training finished", "2: [rank19]: torch.distributed.DistNetworkError: Broken pipe",
             "srun: error: n3: task 2: Exited with exit code 1"]  # fmt: skip
    found = triage_text(tmp_path, "\n".join(rows) + "\n")
    assert found.status == "completed"
    assert found.record.stall is None


@pytest.mark.parametrize(("at", "stalled"), [("02:46:09", True), ("02:06:20", False), ("11:06:20", False)])
def test_a_cancel_long_after_the_last_step_ends_a_silence(tmp_path: Path, at: str, stalled: bool) -> None:
    rows = "".join(
        f"0:  [2026-03-24 02:0{i // 60}:{i % 60:02}] iteration {i:8}/   70000 | consumed samples: 1 | "
        "elapsed time per iteration (ms): 1000.0 | lm loss: 2.0E+00 |\n"
        for i in range(345)
    )
    end = f"slurmstepd: error: *** STEP 516393.0 ON n1 CANCELLED AT 2026-03-24T{at} ***\n"
    assert (triage_text(tmp_path, rows + end).record.stall is not None) == stalled
