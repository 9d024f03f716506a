"""What found causes leave open: phases nobody speaks for, phases that became slower still, idleness without a why."""

from __future__ import annotations

from dataclasses import replace

from trackwalker.diagnose.accounts.accounts import Account, Booking
from trackwalker.diagnose.accounts.waits import Rates, all_waits
from trackwalker.diagnose.causes.claims import claim_of, covered
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.causes.examine import TestResult as Result
from trackwalker.diagnose.causes.playbook import Playbook
from trackwalker.diagnose.causes.playbook import Test as Question
from trackwalker.diagnose.causes.second_look import OpenQuestion, SecondLook, _spoken, open_question
from trackwalker.diagnose.causes.states import graph
from trackwalker.diagnose.deviations.sweep import Deviation
from trackwalker.diagnose.episodes.episodes import Episode, alone, further
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.views.story import Phase
from trackwalker.record.stall import Stall
from trackwalker.telemetry.meaning import meaning_of

FAST = Phase(0, 99, 0.0, 1000.0, 10.0, False)
FIRST = Phase(100, 199, 1000.0, 2200.0, 12.0, True)
SECOND = Phase(200, 299, 2200.0, 3700.0, 15.0, True)
SYMPTOMS = Symptoms(frozenset({"slow"}), phases=(FAST, FIRST, SECOND))
SPANS = {0: Span(1000.0, 2200.0), 1: Span(2200.0, 3700.0)}


def found(spans: set[int], fact: str | None = None) -> Examination:
    asked = {"fact": fact} if fact else {"query": "q", "detector": "outliers", "says": "s"}
    test = Question(id="t", role="require", accuses=True, metrics=["hw_rdma_tx_retx_pkts_total"], **asked)
    book = Playbook(id="rdma-degradation", title="t", symptoms=["slow"], summary="s", tests=[test])
    return Examination(book, [Result(test, True, ["e1"], set() if fact else {"h1"}, spans=spans)])


def off(metric: str, host: str, episode: str, phase: int) -> Deviation:
    window = Episode(episode, "slow", (SPANS[phase],), (Span(0.0, 1000.0),), SPANS[phase].start)
    return Deviation(window, meaning_of(metric), "rose", 11.0, host, before=3.0, after=60.0, of=12)


def asked(cause: Examination, *deviations: Deviation) -> OpenQuestion | None:
    return open_question(SecondLook(deviations), "incident", [cause], [cause], SYMPTOMS)


def hosts(question: OpenQuestion | None) -> set[str | None]:
    return set() if question is None else {d.host for d in question.deviations}


def test_a_phase_that_no_found_cause_speaks_for_is_open() -> None:
    slow_disk = off("acme_nvme_await_ms", "h9", alone(1), 1)
    question = asked(found({0}), slow_disk)
    assert question is not None
    assert (question.standing, hosts(question)) == ("beside", {"h9"})
    mine = off("hw_rdma_tx_retx_pkts_total", "h1", alone(1), 1)
    assert hosts(asked(found({0, 1}), slow_disk, mine)) == set()


def test_a_phase_that_became_slower_still_is_open_unless_the_cause_itself_grew() -> None:
    slow_disk = off("acme_nvme_await_ms", "h9", further(1), 1)
    assert hosts(asked(found({0, 1}), slow_disk)) == {"h9"}
    grew = off("hw_rdma_tx_retx_pkts_total", "h1", further(1), 1)
    assert hosts(asked(found({0, 1}), slow_disk, grew)) == set()


def test_idle_devices_alone_do_not_outweigh_what_stands_out_and_is_unknown() -> None:
    waiting = off("acme_rng_entropy_block_ms", "h4", alone(1), 1)
    known = off("hw_io_pressure_full_pct", "h5", alone(1), 1)
    question = asked(found({0, 1}, "lost-to-idle"), waiting, known)
    assert question is not None
    assert (question.standing, hosts(question)) == ("before", {"h4"})


def test_what_shows_in_a_small_part_of_the_loss_does_not_stand_before_a_cause_of_all_of_it() -> None:
    idle = found({0, 1}, "lost-to-idle")
    assert hosts(asked(idle, off("acme_rng_entropy_block_ms", "h4", alone(0), 0))) == set()  # 200 s of 700 s lost
    both = [off("acme_rng_entropy_block_ms", "h4", alone(i), i) for i in (0, 1)]
    assert hosts(asked(idle, *both)) == {"h4"}


def test_an_uneven_run_that_looks_well_is_looked_at_and_an_even_one_is_not() -> None:
    look = SecondLook((off("acme_page_scan_rate", "h2", "long-steps", 0),))
    for names, expected in ((frozenset({"uneven"}), {"h2"}), (frozenset({"blip"}), set())):
        assert hosts(open_question(look, "healthy", [], [], Symptoms(names))) == expected


def test_what_idles_devices_without_a_late_batch_stands_before_idleness_even_on_the_accused_host() -> None:
    idle = found({0, 1}, "lost-to-idle")
    idle.results[0].hosts = {"h4"}
    errors = off("hw_gpu_pcie_correctable_total", "h4", alone(1), 1)
    disk = off("hw_io_pressure_full_pct", "h4", alone(1), 1)  # blocked readers are how batches become late
    assert hosts(asked(idle, errors, disk)) == {"h4"}
    assert hosts(asked(idle, disk)) == set()


def test_an_account_claims_what_it_booked_and_not_all_that_its_hosts_show() -> None:
    booked = found({0}, "lost-to-data")
    booked.results[0].hosts = {"h4"}
    claim = claim_of(booked)
    assert (claim.quantities, claim.told_by_log) == (frozenset({"data-wait"}), False)
    assert not claim.covers(off("acme_rng_entropy_block_ms", "h4", alone(0), 0), graph(), {})


def test_a_hang_that_only_idle_devices_speak_for_asks_what_else_stands_out_on_that_host() -> None:
    stall = Episode("stall", "stall", (Span(1000.0, 2200.0),), (Span(0.0, 900.0),), 1000.0)
    idle = Question(
        id="i", role="require", accuses=True, query="q", detector="silent", says="s",
        metrics=["hw_gpu_utilization_percent"],
    )  # fmt: skip
    stalled = Question(id="s", role="require", fact="stalled")
    book = Playbook(
        id="dataloader-hang", title="t", symptoms=["stall"], state="batches-stuck", summary="s", tests=[stalled, idle]
    )
    hang = Examination(book, [Result(stalled, True, ["e1"]), Result(idle, True, ["e2"], {"h4"})])
    licence = Deviation(stall, meaning_of("acme_licence_s"), "rose", 11.0, "h4", before=0.1, after=26.0, of=12)
    symptoms = Symptoms(frozenset({"stall"}), Stall(1200.0, 60.0, "no step", 99, 1000.0, 2200.0))
    question = open_question(SecondLook((licence,)), "incident", [hang], [hang], symptoms)
    assert question is not None
    assert (question.standing, hosts(question)) == ("before", {"h4"})


def test_what_shows_in_a_splinter_of_a_slow_stretch_did_not_make_it_slow() -> None:
    one = Account("slow-1", (100, 299), 1000.0, 700.0, frozenset({0, 1}), 10.0, ())
    splinter, most = off("acme_nvme_await_ms", "h9", alone(0), 0), off("acme_nvme_await_ms", "h8", alone(1), 1)
    look, joined = SecondLook((splinter, most)), replace(SYMPTOMS, accounts=(one,))
    assert hosts(open_question(look, "insufficient-evidence", [], [], joined)) == {"h8"}
    apart = tuple(replace(one, slow=frozenset({i})) for i in (0, 1))
    assert hosts(open_question(look, "insufficient-evidence", [], [], replace(SYMPTOMS, accounts=apart))) == {
        "h8",
        "h9",
    }


def test_what_is_far_less_clear_than_what_it_leaves_over_is_not_the_reason() -> None:
    errors = off("hw_gpu_nvlink_errors_total", "h1", "slow", 1)
    question = asked(found({0, 1}), errors)
    assert question is not None
    assert (question.standing, hosts(question)) == ("before", {"h1"})
    mine = off("hw_rdma_tx_retx_pkts_total", "h1", "slow", 1)
    assert hosts(asked(found({0, 1}), errors, mine)) == set(), "its own quantity is as clear"


def test_late_data_of_a_whole_fleet_have_to_be_able_to_cost_what_was_lost() -> None:
    odd = off("site_compact_stalls_total", "h4", "slow", 1)

    def late(seconds: float) -> OpenQuestion | None:
        nfs = replace(off("hw_nfs_exec_seconds_total", "h1", "slow", 1), host=None, before=0.0)
        return asked(found({0, 1}, "lost-to-idle"), odd, replace(nfs, after=seconds))

    assert late(0.2) is None
    assert hosts(late(0.01)) == {"h4", None}, "a hundredth of each second is no fifth"


def test_of_two_roots_the_one_that_speaks_for_a_splinter_of_the_stretch_is_chance() -> None:
    whole = found({0, 1})
    splinter = replace(found({0}), playbook=found({0}).playbook.model_copy(update={"id": "gpu-power-cap"}))
    stretch = Account("slow-1", (100, 299), 1000.0, 700.0, frozenset({0, 1}), 10.0, ())
    joined = replace(SYMPTOMS, accounts=(stretch,))
    assert covered([whole, splinter], joined, graph()) == {"gpu-power-cap"}
    assert covered([splinter], joined, graph()) == frozenset(), "alone it is the best there is"
    apart = tuple(replace(stretch, slow=frozenset({i})) for i in (0, 1))
    assert covered([whole, splinter], replace(SYMPTOMS, accounts=apart), graph()) == frozenset(), "a stretch of its own"


def test_slower_saves_speak_for_no_slow_phase_in_which_the_time_for_saves_was_read_and_is_no_part_of_it() -> None:
    cause = found({0, 1}, "growing-saves")
    cause.results[0].spans, cause.playbook = None, cause.playbook.model_copy(update={"id": "storage-degradation"})
    wait = next(w for w in all_waits() if w.id == "save")

    def spoken(share: float) -> set[int]:
        read = Booking(wait, wait.cause, share, (), "h1", Rates("q", {"h1": share}), None)
        account = Account("slow-1", (100, 199), 1000.0, 200.0, frozenset({0}), 10.0, (read,))
        return _spoken([cause], replace(SYMPTOMS, accounts=(account,)))

    assert (spoken(0.0), spoken(0.6)) == ({1}, {0, 1})
