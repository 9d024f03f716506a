"""What a demo notices live, from journals with an injected clock."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import write_lines

from trackwalker.lab.real.noticing import Notice, Noticing


def ends_of(seconds: Iterable[float], start: float = 1000.0) -> list[float]:
    return [float(t) for t in start + np.cumsum(list(seconds))]


def progress(ends: list[float], ranks: int = 2) -> list[dict[str, Any]]:
    """Each rank reports each step; the last rank a little later than the first."""
    return [
        {"t": t - 0.01 * (ranks - 1 - r), "rank": r, "host": f"b-r{r}", "phase": "train", "step": s, "loss": 2.0}
        for s, t in enumerate(ends)
        for r in range(ranks)
    ]


def watch(tmp_path: Path, ends: list[float], now: float) -> Notice | None:
    write_lines(tmp_path / "progress.jsonl", progress(ends))
    return Noticing(tmp_path).notice(now)


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"t": 1.0, "kind": kind, "rank": 2, "host": "b-r2", "data": data}


def test_a_stall_is_noticed_when_its_limit_has_passed(tmp_path: Path) -> None:
    ends = ends_of([0.2] * 60)
    assert watch(tmp_path, ends, ends[-1] + 7.9) is None
    notice = watch(tmp_path, ends, ends[-1] + 8.1)
    assert notice is not None
    assert (notice.kind, notice.time) == ("stall", ends[-1] + 8.1)
    assert notice.text == "no step for 8 s after step 59 (limit 8 s)"


def test_slow_jobs_are_given_more_time(tmp_path: Path) -> None:
    ends = ends_of([10.0] * 40)
    assert watch(tmp_path, ends, ends[-1] + 59) is None
    notice = watch(tmp_path, ends, ends[-1] + 61)
    assert notice is not None
    assert notice.kind == "stall"


@pytest.mark.parametrize("steps", [5, 19])
def test_too_few_steps_are_no_baseline(tmp_path: Path, steps: int) -> None:
    ends = ends_of([0.2] * steps)
    assert watch(tmp_path, ends, ends[-1] + 3600) is None


@pytest.mark.parametrize("step", [0.2, 17.0])
@pytest.mark.parametrize(("factor", "kind"), [(1.0, None), (1.1, None), (1.5, "slow"), (3.0, "slow"), (20.0, "slow")])
def test_slow_steps_are_noticed(tmp_path: Path, step: float, factor: float, kind: str | None) -> None:
    rng = np.random.default_rng(0)
    usual, after = np.full(120, step), np.full(40, step * factor)
    ends = ends_of(np.concatenate([usual, after]) * (1 + 0.02 * rng.normal(size=160)))
    live = Noticing(tmp_path)
    notices = []
    for shown in range(100, 160):  # a look after every step
        write_lines(tmp_path / "progress.jsonl", progress(ends[: shown + 1]))
        notices.append((shown, live.notice(ends[shown] + 0.01)))
    told = [(shown, n) for shown, n in notices if n is not None]
    assert {n.kind for _, n in told} == ({kind} if kind else set())
    if told:
        assert told[0][0] >= 121, "before there was anything"
        assert ends[told[0][0]] - ends[119] <= max(10.0, 6 * step * factor)
        assert re.fullmatch(rf"steps take [0-9.]+ s instead of {step:.2f} s", told[0][1].text) or step > 1


@pytest.mark.parametrize("seed", range(10))
def test_healthy_noise_is_never_news(tmp_path: Path, seed: int) -> None:
    """Ten percent jitter, a long first step, a save every 25 steps that takes five times as long; a look every step."""
    rng = np.random.default_rng(seed)
    seconds = 0.3 * np.exp(0.1 * rng.normal(size=200))
    seconds[0], seconds[::25] = 20.0, 1.5
    ends = ends_of(seconds)
    path = tmp_path / "progress.jsonl"
    path.touch()
    live = Noticing(tmp_path)
    with path.open("a") as f:
        for record in progress(ends, ranks=1):
            f.write(json.dumps({"v": 1, **record}) + "\n")
            f.flush()
            assert live.notice(record["t"] + 0.2) is None
    assert live.last_step == 199


def test_a_hiccup_is_not_a_phase(tmp_path: Path) -> None:
    seconds = np.full(120, 0.3)
    seconds[100:103] = 2.0
    assert watch(tmp_path, ends_of(seconds), ends_of(seconds)[-1]) is None


def test_failure_and_end_are_each_told_once_in_order(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_lines(
        path,
        [event("stage-begin"), event("first-failure", exit=137, cause="killed by SIGKILL"), event("run-end", exit=1)],
    )
    live = Noticing(tmp_path)
    assert live.notice(5.0) == Notice("failure", "rank 2 (b-r2) killed by SIGKILL", 5.0)
    assert live.notice(6.0) == Notice("end", "the run ended with exit code 1", 5.0)
    assert live.notice(7.0) is None


def test_foreign_events_do_not_stop_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "events.jsonl", [{"kind": "first-failure"}, {"kind": "run-end", "data": None}])
    live = Noticing(tmp_path)
    assert [n.kind for n in (live.notice(1.0), live.notice(1.0)) if n] == ["failure", "end"]
