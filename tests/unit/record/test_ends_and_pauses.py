"""How long a run may be silent where it saves between its steps, and who says how it ended when our agent could not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from triage_logs import CANCEL, header, steps, triage_text

from trackwalker.logs.facts import LogFacts, Quote
from trackwalker.record.accounting import Accounting
from trackwalker.record.masks import masks
from trackwalker.record.stall import limit_of, pauses_due
from trackwalker.record.status import Standing, status_of
from trackwalker.record.timeline import Timeline


@pytest.mark.parametrize(("last", "patient"), [(100, True), (110, False)])
def test_a_save_between_two_steps_counts_for_what_a_silence_at_the_next_one_may_last(last: int, patient: bool) -> None:
    facts = LogFacts(Path("job.log"))
    told = {"enable_checkpointing": "true", "checkpoint_period": "20"}
    facts.config = {k: (v, Quote(0, 1, f"Config param {k}: {v}")) for k, v in told.items()}
    step = np.arange(last + 1)
    seconds = np.full(last + 1, 8.0)
    between = np.where((step > 0) & (step % 20 == 1), 95.0, 0.0)  # no part of any step
    timeline = Timeline(step, np.cumsum(seconds + between), seconds, np.full(last + 1, np.nan), True, "job.log")
    assert bool(pauses_due(timeline, facts)) == patient
    assert (limit_of(timeline, masks(step, seconds, facts), facts) > 190.0) == patient


@pytest.mark.parametrize(("last", "patient"), [(440, True), (425, False)])
def test_saves_that_keep_time_tell_when_the_next_one_is_due_where_no_setting_does(last: int, patient: bool) -> None:
    facts = LogFacts(Path("job.log"), saves={110, 220, 330})
    step = np.arange(5, last + 1, 5)  # a row for every fifth step
    seconds = np.full(len(step), 8.0)
    between = np.where(np.isin(step, [115, 225, 335]), 240.0, 0.0)
    timeline = Timeline(step, np.cumsum(5 * seconds + between), seconds, np.full(len(step), np.nan), True, "job.log")
    assert pauses_due(timeline, facts) == (["checkpoint"] if patient else [])
    assert (limit_of(timeline, masks(step, seconds, facts), facts) > 240.0) == patient
    facts.saves = {110, 200, 330}
    assert pauses_due(timeline, facts) == [], "they keep no time"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (CANCEL, "cancelled"),
        (CANCEL.replace("16:00:49 ***", "16:00:49 DUE TO NODE FAILURE ***"), "unknown-death"),
        ("", "unknown-death"),
    ],
)  # fmt: skip
def test_the_schedulers_own_word_stands_where_our_agent_had_no_time_for_a_summary(
    tmp_path: Path, end: str, said: str
) -> None:
    index = triage_text(tmp_path, header() + steps(20) + end).index
    standing = Standing(index, None, False, True, False, False, 20, 100, Accounting())
    assert status_of(standing) == said
