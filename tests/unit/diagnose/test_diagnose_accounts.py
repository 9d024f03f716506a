"""Accounts: lost time is booked on recorded waits, on one rank as on all, and every sentence is made of its numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trackwalker.diagnose.accounts import waits
from trackwalker.diagnose.accounts.accounts import Account, book_losses, losses_ask
from trackwalker.diagnose.accounts.shares import carried, explained, standing
from trackwalker.diagnose.accounts.waits import all_waits
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.facts.account_facts import devices_idled, lost_besides, lost_to
from trackwalker.diagnose.facts.log_facts import FACTS
from trackwalker.diagnose.views.story import Phase
from trackwalker.job.layout import Job
from trackwalker.logs.facts import LogFacts
from trackwalker.record.stall import Stall
from trackwalker.record.timeline import Timeline
from trackwalker.telemetry.client import Matrix

WAIT = next(w for w in all_waits() if w.devices).queries[0]
WINDOW = re.compile(r"\[(\d+)s\]")


class Recording:
    """Waits by metric and host as functions of time, in seconds per second; a counter or gauge does not matter here."""

    def __init__(self, waits: dict[str, dict[str, Any]]) -> None:
        self.waits, self.asked = waits, list[tuple[str, float]]()

    def metrics(self) -> frozenset[str]:
        return frozenset(self.waits)

    def range(self) -> tuple[float, float]:
        return 0.0, 1e6

    def by_host(self, query: str, at: float) -> dict[str, float]:
        self.asked.append((query, at))
        metric = next(m for m in sorted(self.waits, key=len, reverse=True) if m in query)
        found = WINDOW.search(query)
        assert found is not None
        times = np.linspace(at - float(found[1]), at, 101)[1:]
        read = {h: [v for t in times if (v := of(t)) == v] for h, of in self.waits[metric].items()}
        return {h: float(np.mean(values)) for h, values in read.items() if values}

    def matrix(self, query: str, start: float, end: float, step: float) -> Matrix:
        times = np.arange(start, end + 1e-6, step)
        rows = [self.by_host(query, t) for t in times]
        hosts = sorted({h for r in rows for h in r})
        values = np.array([[r.get(h, np.nan) for r in rows] for h in hosts])
        return Matrix([{"host": h} for h in hosts], times, values)


def slowed(waits: dict[str, dict[str, Any]], slow: float = 2.0) -> tuple[Case, Symptoms]:
    """A run of 60 steps at full speed, a second each, and 60 slow ones, with recorded waits."""
    fast, n = 1.0, 60
    seconds = np.r_[np.full(n, fast), np.full(n, slow)]
    ends = 1000.0 + np.cumsum(seconds)
    timeline = Timeline(np.arange(2 * n), ends, seconds, np.full(2 * n, np.nan), True, "progress.jsonl")
    hosts = sorted({h for each in waits.values() for h in each})
    case = Case(Job("1", None, None), LogFacts(Path("job.log")), None, [], None, timeline, hosts, 900.0, None, False)
    case.telemetry = Recording(waits)  # type: ignore[assignment]
    phases = (
        Phase(0, n - 1, 1000.0, float(ends[n - 1]), fast, False),
        Phase(n, 2 * n - 1, float(ends[n - 1]), float(ends[-1]), slow, True),
    )
    symptoms = Symptoms(frozenset({"slow"}), phases=phases)
    return case, replace(symptoms, accounts=book_losses(case, symptoms))


def test_a_save_is_cut_out_of_a_stretch_whose_rows_tell_of_several_steps() -> None:
    step = np.arange(5, 401, 5)
    took = np.where(step > 200, 7.0, 5.0) + np.where(step == 305, 60.0, 0.0)  # in rows of five
    ends = 1000.0 + np.cumsum(took)
    timeline = Timeline(step, ends, took / 5, np.full(len(step), np.nan), True, "job.log")
    case = Case(
        Job("1", None, None),
        LogFacts(Path("job.log"), saves={300}),
        None,
        [],
        None,
        timeline,
        ["h1"],
        900.0,
        None,
        False,
    )
    saved = float(ends[60])  # a counter tells of a save when it is over
    stood = lambda t: 6.0 if saved - 10.0 < t <= saved else 0.0  # noqa: E731
    case.telemetry = Recording({"ckpt_blocking_seconds_total": {"h1": stood}})  # type: ignore[assignment]
    phases = (
        Phase(5, 200, 1000.0, float(ends[39]), 1.0, False),
        Phase(205, 400, float(ends[39]), float(ends[-1]), 1.4, True),
    )
    (account,) = book_losses(case, Symptoms(frozenset({"slow"}), phases=phases))
    assert account.shares["unaccounted"] == 1.0


def after(change: float, before: float, then: float) -> Any:
    return lambda t: then if t > change else before


CHANGE = 1060.0
DATA, CPU, IDLE = "train_data_wait_seconds_total", "hw_cpu_wait_seconds_total", "hw_gpu_utilization_percent"


def only(symptoms: Symptoms) -> Account:
    (account,) = symptoms.accounts
    return account


def test_data_wait_of_the_only_rank_carries_the_loss_and_accuses_nobody() -> None:
    case, symptoms = slowed({DATA: {"r0": after(CHANGE, 0.0, 0.49)}})
    account = only(symptoms)
    assert account.lost_s == pytest.approx(60.0)
    assert account.shares["input-stall"] == pytest.approx(0.98, abs=0.02)
    answer = lost_to("data", case, symptoms, EvidenceBook())
    assert (answer.fired, answer.hosts, answer.spans) == (True, (), frozenset({0}))
    assert explained(symptoms.accounts, "input-stall") == pytest.approx(0.98, abs=0.02)


def test_what_accounts_ask_whatever_they_find_can_be_asked_ahead() -> None:
    case, symptoms = slowed({DATA: {"r0": after(CHANGE, 0.0, 0.49)}, IDLE: {"r0": after(CHANGE, 95.0, 50.0)}})
    recording: Any = case.telemetry
    recording.matrix = lambda *_: Matrix([], np.zeros(0), np.zeros((0, 0)))
    recording.asked.clear()
    assert book_losses(case, symptoms)
    asked = recording.asked.copy()
    assert len(asked) == 4  # two waits, while it was slow and at full speed
    assert sorted(q for (q,) in losses_ask(case, symptoms)) == sorted(asked)
    assert len(recording.asked) == len(asked)  # to say what will be asked asks nothing


def test_one_late_rank_is_named_and_the_waiting_of_the_others_is_no_wait_of_theirs() -> None:
    waits = {"r0": after(CHANGE, 0.0, 0.01), "r1": after(CHANGE, 0.0, 0.01), "r2": after(CHANGE, 0.0, 0.5)}
    case, symptoms = slowed({DATA: waits})
    assert lost_to("data", case, symptoms, EvidenceBook()).hosts == ("r2",)


def test_what_comes_on_top_of_a_slow_stretch_is_booked_on_what_the_steps_lost_beyond_it() -> None:
    def account(steps: tuple[int, int], lost: float, share: float, slow: int) -> Account:
        _, symptoms = slowed({DATA: {"r0": after(CHANGE, 0.0, 0.49), "r1": after(CHANGE, 0.0, 0.49)}})
        booking = replace(only(symptoms).booked("data"), share=share)  # type: ignore[type-var]
        return Account(f"slow-{slow}", steps, 0.0, lost, frozenset({slow}), 1.0, (booking,))  # type: ignore[arg-type]

    case, symptoms = slowed({DATA: {"r0": after(CHANGE, 0.0, 0.49)}})
    for share, steps, fired in ((0.45, (200, 299), True), (0.2, (200, 299), None), (0.45, (260, 359), None)):
        both = (account((100, 199), 100.0, 0.0, 0), account(steps, 190.0, share, 1))
        answer = lost_to("data", case, replace(symptoms, accounts=both), EvidenceBook())
        assert answer.fired is fired, (share, steps)
        assert not fired or answer.spans == frozenset({1})


def test_all_ranks_late_together_is_found_without_peers_to_tell_them_from() -> None:
    case, symptoms = slowed({DATA: {f"r{i}": after(CHANGE, 0.001, 0.5) for i in range(4)}})
    answer = lost_to("data", case, symptoms, EvidenceBook())
    assert (answer.fired, answer.hosts) == (True, ())


def test_where_all_loaders_are_late_the_quicker_rank_that_waits_longer_is_not_accused() -> None:
    case, symptoms = slowed({DATA: {"r0": after(CHANGE, 0.0, 0.4), "r1": after(CHANGE, 0.0, 0.1)}})
    answer = lost_to("data", case, symptoms, EvidenceBook())
    assert (answer.fired, answer.hosts) == (True, ())


def test_a_wait_that_was_always_there_is_not_what_was_lost() -> None:
    """Ninety per cent waiting before and after: the rest became slower."""
    case, symptoms = slowed({DATA: {"r0": after(CHANGE, 0.9, 0.45)}})
    assert only(symptoms).shares["input-stall"] == 0.0
    assert lost_to("data", case, symptoms, EvidenceBook()).fired is False


def test_without_a_sample_at_full_speed_the_wait_cannot_have_been_longer_than_the_step() -> None:
    _, symptoms = slowed({DATA: {"r0": lambda t: 0.9 if t > CHANGE + 20 else float("nan")}}, slow=10.0)
    assert only(symptoms).shares["input-stall"] == pytest.approx(8.0 / 9.0, abs=0.05)


def test_thread_seconds_are_clipped_at_the_loss_and_do_not_count_unless_their_rate_rose() -> None:
    _, symptoms = slowed({CPU: {"r0": after(CHANGE, 0.2, 3.0)}})
    assert only(symptoms).shares["cpu-contention"] == 1.0
    _, symptoms = slowed({CPU: {"r0": after(CHANGE, 0.8, 0.8)}})
    assert only(symptoms).shares["cpu-contention"] == 0.0


def test_a_rank_is_accused_of_waiting_for_cpus_only_where_it_waits_far_longer_than_the_others() -> None:
    case, symptoms = slowed({CPU: {"r0": after(CHANGE, 1.8, 1.9), "r1": after(CHANGE, 0.9, 1.4)}})
    answer = lost_to("cpu", case, symptoms, EvidenceBook())
    assert (answer.fired, answer.hosts) == (True, ())
    case, symptoms = slowed({CPU: {"r0": after(CHANGE, 0.2, 0.2), "r1": after(CHANGE, 0.2, 3.0)}})
    assert lost_to("cpu", case, symptoms, EvidenceBook()).hosts == ("r1",)
    # A real rank at a lower priority, between loops of the same machine: both wait, and one far more than it did.
    case, symptoms = slowed({CPU: {"r0": after(CHANGE, 0.27, 0.42), "r1": after(CHANGE, 0.26, 0.76)}})
    assert lost_to("cpu", case, symptoms, EvidenceBook()).hosts == ("r1",)
    case, symptoms = slowed({CPU: {"r0": after(CHANGE, 0.28, 0.61), "r1": after(CHANGE, 0.29, 0.67)}})
    assert lost_to("cpu", case, symptoms, EvidenceBook()).hosts == ()


def test_a_loader_without_a_cpu_is_booked_on_the_cpu() -> None:
    case, symptoms = slowed({CPU: {"r0": after(CHANGE, 0.1, 2.0)}, DATA: {"r0": after(CHANGE, 0.0, 0.4)}})
    shares = only(symptoms).shares
    assert (shares["cpu-contention"], shares["input-stall"]) == (1.0, 0.0)
    assert lost_besides("data", case, symptoms, EvidenceBook()).fired is True
    assert lost_besides("cpu", case, symptoms, EvidenceBook()).fired is False


def test_idle_devices_refute_what_keeps_devices_busy() -> None:
    busy = lambda t: 0.0  # noqa: E731
    case, symptoms = slowed({IDLE: {"n1": after(CHANGE, 0.0, 0.5), "n2": after(CHANGE, 0.0, 0.5)}})
    assert devices_idled(case, symptoms, EvidenceBook()).fired is True
    case, symptoms = slowed({IDLE: {"n1": busy, "n2": busy}})
    assert devices_idled(case, symptoms, EvidenceBook()).fired is False


def test_a_few_looks_at_devices_that_idle_now_and_then_are_coins() -> None:
    spans = (Span(0.0, 600.0),)
    case: Any = SimpleNamespace(telemetry=object(), interval=30.0)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(waits, "scatter", lambda *_: {"n1": 0.2, "n2": 0.001})
        of = {h: waits.scatter_of_looks(case, WAIT, spans, h, 0.1) for h in ("n1", "n2", "n3")}
    assert of["n1"] == of["n3"] == pytest.approx(0.08, abs=0.01), "twenty looks; more restless than a coin is none"
    assert of["n2"] == 0.001, "a gauge that is a mean already"


def test_devices_of_all_hosts_together_are_looked_at_more_often() -> None:
    every = {f"n{i}": after(CHANGE, 0.02, 0.4) for i in range(9)}
    with pytest.MonkeyPatch.context() as m:
        m.setattr(waits, "scatter_of_looks", lambda *_: 0.1)
        assert only(slowed({IDLE: {"n1": every["n1"]}})[1]).booked("idle").share == pytest.approx(0.78, abs=0.02)  # type: ignore[union-attr]
        m.setattr(waits, "scatter_of_looks", lambda *_: 0.2)
        alone, together = (only(slowed({IDLE: rows})[1]).booked("idle") for rows in ({"n1": every["n1"]}, every))
    assert alone is not None
    assert together is not None
    assert (alone.share, together.share > 0.7, together.least < together.share) == (0.0, True, True)


def test_only_time_in_which_steps_stood_still_speaks_for_a_change_that_may_be_weather() -> None:
    _, symptoms = slowed({CPU: {"r0": after(CHANGE, 0.2, 3.0)}})
    assert not carried(symptoms.accounts, "cpu-contention")
    _, symptoms = slowed({DATA: {"r0": after(CHANGE, 0.0, 0.4)}})
    assert carried(symptoms.accounts, "input-stall")


def test_a_part_of_the_loss_neither_makes_a_cause_nor_rules_it_out() -> None:
    case, symptoms = slowed({DATA: {"r0": after(CHANGE, 0.0, 0.15)}})
    assert only(symptoms).shares["input-stall"] == pytest.approx(0.3, abs=0.02)
    assert lost_to("data", case, symptoms, EvidenceBook()).fired is None


def test_sentences_say_the_numbers_beside_them() -> None:
    case, symptoms = slowed({DATA: {"r0": after(CHANGE, 0.002, 0.883)}}, slow=9.0)
    book = EvidenceBook()
    lost_to("data", case, symptoms, book)
    measured, told = book.items
    assert f"{measured.values['r0']:.3g} s of every second" in measured.says
    assert f"{measured.values['r0/fast']:.3g} s in a faster stretch" in measured.says
    assert f"lost {told.values['lost_s']:.1f} s" in told.says
    assert f"{100 * told.values['input-stall']:.0f} % input-stall" in told.says


def test_lasting_levels_are_two_episodes_and_fragments_are_one() -> None:
    n = 40
    levels = [1.0, 1.4, 2.2]
    seconds = np.repeat(levels, n)
    case, _ = slowed({DATA: {"r0": lambda t: 0.0}})
    ends = 1000.0 + np.cumsum(seconds)
    case.timeline = Timeline(np.arange(3 * n), ends, seconds, np.full(3 * n, np.nan), True, "progress.jsonl")
    phases = tuple(
        Phase(i * n, (i + 1) * n - 1, float(ends[i * n] - seconds[i * n]), float(ends[(i + 1) * n - 1]), s, s > 1)
        for i, s in enumerate(levels)
    )
    told = Symptoms(frozenset({"slow"}), phases=phases)
    assert [a.steps for a in book_losses(case, told)] == [(40, 79), (80, 119)]
    short = (phases[0], replace(phases[1], last_step=49), replace(phases[2], first_step=50))
    assert [a.steps for a in book_losses(case, replace(told, phases=short))] == [(40, 119)]


def test_saves_that_take_longer_are_an_episode_between_steps_as_fast_as_ever() -> None:
    case, symptoms = slowed({"ckpt_blocking_seconds_total": {"r0": after(1205.0, 0.02, 0.45)}})
    n, period = 400, 10
    seconds = np.full(n, 1.0)
    apart = seconds.copy()
    apart[1::period] = np.where(np.arange(n)[1::period] < 200, 1.2, 9.0)  # the step after a save waits for it
    timeline = Timeline(np.arange(n), 1000.0 + np.cumsum(apart), seconds, np.full(n, np.nan), True, "p")
    case = replace(case, timeline=timeline)  # with masks of its own
    case.log.saves = set(range(0, n, period))
    told = replace(symptoms, phases=(), accounts=())
    told = replace(told, accounts=book_losses(case, told))
    (account,) = told.accounts
    assert (account.episode, account.steps) == ("saves", (201, 391))
    assert account.lost_s == pytest.approx(20 * 7.8, rel=0.02)
    assert account.shares["storage-degradation"] > 0.9
    assert lost_to("save", case, told, EvidenceBook()).fired is True


def test_a_wait_all_along_is_never_ruled_out() -> None:
    case, symptoms = slowed({CPU: {"r0": lambda t: 0.8}})
    steady = replace(symptoms, phases=(), accounts=(), windows={"steady": [Span(1000.0, 1100.0)]})
    assert list(standing(case, steady)) == ["cpu-contention"]
    assert "0.8 s of every second" in standing(case, steady)["cpu-contention"]


def test_without_a_recording_there_are_no_accounts() -> None:
    case, symptoms = slowed({DATA: {"r0": lambda t: 0.0}})
    case.telemetry = None
    assert book_losses(case, symptoms) == ()
    assert lost_to("data", case, replace(symptoms, accounts=()), EvidenceBook()).fired is None


def test_a_stopped_rank_fills_the_silence() -> None:
    case, symptoms = slowed({"hw_rank_stopped": {"r0": lambda t: 1.0, "r1": lambda t: 0.0}})
    stall = Stall(60.0, 8.0, "silent", 119, 1180.0, 1240.0)
    silent = replace(symptoms, phases=(), stall=stall, windows={"during": [Span(1186.0, 1238.0)]})
    (account,) = book_losses(case, silent)
    assert account.shares == {"collective-hang": 1.0, "unaccounted": 0.0}
    assert account.bookings[0].hosts == ("r0",)


def test_every_wait_has_its_questions() -> None:
    for wait in all_waits():
        assert {f"lost-to-{wait.id}", f"lost-besides-{wait.id}"} <= set(FACTS)
