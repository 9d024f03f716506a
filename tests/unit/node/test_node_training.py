"""A rank's progress records added up: phases share the time without rest, NaN counts, a new agent continues."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from helpers import write_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from trackwalker.node.agent.rank_progress import Ledger
from trackwalker.node.collectors.training import TrainingCollector, last_records
from trackwalker.node.exporter.backlog import Backlog
from trackwalker.node.exporter.exposition import render


def rec(t: float, phase: str, state: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"t": t, "rank": 0, "host": "n-r0", "phase": phase, **({"state": state} if state else {}), **fields}


STORY = [
    rec(100, "init", "begin"),
    rec(103, "init", "end", seconds=3),
    rec(103, "restore", "begin", step=9),
    rec(105, "restore", "end", step=9, seconds=2),
    rec(106, "compile", "begin"),
    rec(110, "compile", "end", seconds=4),
    rec(111, "train", step=10, seconds=6.0, data_wait_s=0.25, loss=2.0),  # the first step's time holds the compilation
    rec(112, "train", step=11, seconds=1.0, data_wait_s=0.5, loss="nan", grad_norm="inf"),
    rec(112, "checkpoint", "begin", step=11),
    rec(115, "checkpoint", "end", step=11, seconds=3),
    rec(116, "train", step=12, seconds=4.0, data_wait_s=0.0, loss=1.5),
]


def told(records: list[dict[str, Any]]) -> Ledger:
    ledger = Ledger("n-r0")
    for record in records:
        ledger.take(record)
    return ledger


def test_every_second_belongs_to_one_phase() -> None:
    ledger = told(STORY)
    expected = {"init": 4, "restore": 2, "compile": 4, "train": 2.25, "data_wait": 0.75, "checkpoint": 3}
    assert ledger.phases == pytest.approx(expected)
    assert sum(ledger.phases.values()) == pytest.approx(16)
    assert (ledger.step, ledger.step_at, ledger.steps, ledger.step_seconds) == (12, 116, 3, 11)
    assert (ledger.phase, ledger.data_wait) == ("train", 0.75)
    assert (ledger.saves, ledger.save_s, ledger.blocking, ledger.saved_step, ledger.restore_s) == (1, 3, 3, 11, 2)
    assert ledger.nonfinite == {"learning/loss": 1, "learning/grad_norm": 1}


def test_an_overdue_batch_is_a_phase_until_its_step_and_is_counted_once() -> None:
    ledger = told([*STORY, rec(121, "data_wait", "begin")])
    assert (ledger.phase, ledger.phase_at) == ("data_wait", 121)
    assert ledger.data_wait == 0.75, "the step that gets the batch tells how long it waited"
    ledger.take(rec(127, "train", step=13, seconds=11.0, data_wait_s=10.0))
    assert (ledger.phase, ledger.data_wait) == ("train", 10.75)
    assert ledger.phases["data_wait"] == pytest.approx(10.75)
    assert sum(ledger.phases.values()) == pytest.approx(27)


def test_what_a_rank_is_doing_while_it_does_it() -> None:
    doing = []
    ledger = Ledger("n")
    for record in [*STORY, rec(117, "eval", "begin"), rec(118, "eval", "end", seconds=1), rec(119, "done")]:
        ledger.take(record)
        doing.append((ledger.phase, ledger.phase_at))
    assert doing[:6] == [
        ("init", 100), ("init", 100), ("restore", 103), ("init", 105), ("compile", 106), ("train", 110)
    ]  # fmt: skip
    assert doing[8:] == [
        ("checkpoint", 112), ("train", 115), ("train", 115), ("eval", 117), ("train", 118), ("done", 119)
    ]  # fmt: skip


def test_a_save_in_the_background_takes_no_time_from_training() -> None:
    ledger = told(
        [
            rec(10, "train", step=1, seconds=1.0),
            rec(10, "checkpoint", "begin", step=1, background=True),
            rec(12, "train", step=2, seconds=2.0),
            rec(13, "checkpoint", "end", step=1, seconds=3.0, background=True),
            rec(14, "checkpoint", "end", step=2, seconds=0.5, committed=False),
        ]
    )
    assert (ledger.phases, ledger.phase) == ({"train": pytest.approx(4.5), "checkpoint": 0.5}, "train")
    assert (ledger.saves, ledger.saving, ledger.blocking) == (2, 3.5, 0.5)
    assert ledger.saved_step == 1, "what is not known to be complete is not called saved"


def test_step_lines_alone_make_training_time() -> None:
    ledger = told([rec(10, "train", step=0, seconds=2.0), rec(12.5, "train", step=1, seconds=2.5)])
    assert ledger.phases == {"train": 4.5}
    assert ledger.phase == "train"


values = st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=5), st.integers(), st.just([1]))
records = st.fixed_dictionaries(
    {"t": st.floats(0, 1e6), "phase": st.sampled_from(["train", "init", "compile", "eval", "done", "x"])},
    optional=dict.fromkeys(("state", "step", "seconds", "data_wait_s", "loss", "background", "saved"), values)
    | {"state": st.sampled_from(["begin", "end"])},
)


@settings(max_examples=60, deadline=None)
@given(st.lists(records, max_size=12))
def test_no_record_breaks_the_totals(story: list[dict[str, Any]]) -> None:
    ledger = Ledger("n")
    before: dict[str, float] = {}
    for record in story:
        ledger.take(record)
        assert all(v >= before.get(k, 0.0) for k, v in ledger.phases.items()), "a counter never goes back"
        before = dict(ledger.phases)
    assert Ledger(**json.loads(json.dumps(asdict(ledger)))).phases == ledger.phases
    assert all(math.isfinite(v) for v in ledger.phases.values())


def test_a_new_agent_continues_the_totals_and_offers_the_last_steps_again(tmp_path: Path) -> None:
    journal = write_lines(tmp_path / "p.jsonl", [*STORY, {"t": "x"}], tail='{"t": 1')
    first = TrainingCollector(Backlog(lambda: 120.0), "n")
    for record in STORY:
        first.feed(record)
    backlog = Backlog(lambda: 120.0)
    second = TrainingCollector(backlog, "n")
    second.restore(json.loads(json.dumps(first.saved())))
    second.replay(last_records(journal))
    assert render(second.collect()) == render(first.collect())
    assert second.reported(0) == first.reported(0) >= {"tb_step", "tb_learning_loss"}
    samples = {f.name: f.samples for f in backlog.since(0)[0]}
    assert [(value, time) for _, value, time in samples["tb_step"]] == [(10, 111), (11, 112), (12, 116)]
    second.feed(STORY[-1])  # written down, but not yet noted as read: the same sample is not offered twice
    assert len({f.name: f.samples for f in backlog.since(0)[0]}["tb_step"]) == 3
    assert last_records(tmp_path / "none") == []


def test_the_totals_as_metrics() -> None:
    collector = TrainingCollector(Backlog(lambda: 120.0), "n")
    for record in STORY:
        collector.feed(record)
    text = render(collector.collect())
    for line in (
        'train_step{host="n-r0",rank="0"} 12',
        'train_last_step_timestamp_seconds{host="n-r0",rank="0"} 116',
        'train_phase{phase="train",host="n-r0",rank="0"} 1',
        'train_phase_seconds_total{phase="compile",host="n-r0",rank="0"} 4',
        'train_nonfinite_total{tag="learning/loss",host="n-r0",rank="0"} 1',
        'ckpt_last_success_step{host="n-r0",rank="0"} 11',
        'train_samples_dropped_total{host="n"} 0',
    ):
        assert line in text.splitlines()
