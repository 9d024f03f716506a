"""How far a cause stands before the next best explanation, and what an everyday error or a lone candidate is worth."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from trackwalker.diagnose.accounts.accounts import Account, Booking
from trackwalker.diagnose.accounts.waits import Rates, all_waits
from trackwalker.diagnose.causes.claims import Claim, called, chance_hits, confirmed, margin_of, told_by_log
from trackwalker.diagnose.causes.confidence import calibration, certainty, shown
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.causes.examine import TestResult as Result
from trackwalker.diagnose.causes.playbook import Playbook, load_playbooks
from trackwalker.diagnose.causes.playbook import Test as Question
from trackwalker.diagnose.causes.states import graph
from trackwalker.diagnose.deviations.sweep import Deviation
from trackwalker.diagnose.deviations.unclassified import suspect
from trackwalker.diagnose.episodes.episodes import Episode
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.facts.account_facts import lost_to
from trackwalker.logs.failures.findings import Finding, Role
from trackwalker.telemetry.meaning import meaning_of

SLOW = Episode("slow-1", "slow", (Span(1000.0, 2000.0),), (Span(0.0, 1000.0),), 1000.0)
NIC = Claim("rdma-degradation", frozenset({"rdma-retransmits"}), frozenset({"n1"}), False)
RETX = "hw_rdma_tx_retx_pkts_total"


def off(metric: str, host: str | None, score: float = 9.0, before: float = 0.0, after: float = 50.0) -> Deviation:
    return Deviation(SLOW, meaning_of(metric), "rose", score, host, before=before, after=after, since=1000.0, of=16)


def lead(*deviations: Deviation, others: tuple[Claim, ...] = ()) -> float | None:
    return margin_of(NIC, others, deviations, graph(), {}).lead


def said(cause: str, tier: int, role: Role = "primary") -> Finding:
    return Finding(cause, cause, role, tier, 0, "n1", 7, "job.log", "words", 1, (0,))


def by_log(*findings: Finding, deviations: tuple[Deviation, ...] = ()) -> float | None:
    test = Question(id="log-says", role="require", signature=["oom-gpu"])
    book = Playbook(id="oom-gpu", title="t", symptoms=["failed"], summary="s", tests=[test])
    told = told_by_log(Examination(book, [Result(test, True, ["e1"])]), findings)
    claim = Claim("oom-gpu", frozenset(), frozenset({"n1"}), True)
    return margin_of(claim, (), deviations, graph(), {}, told).lead


def test_a_cause_of_the_log_has_the_logs_next_best_word_as_its_rival() -> None:
    assert by_log(said("oom-gpu", 2)) == 1.0
    assert by_log(said("oom-gpu", 2), said("nccl-error", 3, "consequence")) == 1.0  # it follows from it
    assert by_log(said("oom-gpu", 2), said("storage-error", 2, "contributing")) == 0.0
    assert by_log(said("oom-gpu", 2), said("storage-error", 3, "contributing")) == 0.5


def test_what_deviates_elsewhere_contradicts_a_cause_of_the_log_and_on_its_host_does_not() -> None:
    assert by_log(said("oom-gpu", 2), deviations=(off("hw_gpu_pcie_correctable_total", "n7", 9.0),)) == 0.25
    assert by_log(said("oom-gpu", 2), deviations=(off("hw_gpu_pcie_correctable_total", "n1", 9.0),)) == 1.0


def test_where_nothing_deviates_there_is_no_margin() -> None:
    assert lead() is None


def test_a_cause_that_covers_all_that_deviates_leads_by_how_clear_it_is() -> None:
    assert lead(off(RETX, "n1", 12.0)) == 1.0
    assert lead(off(RETX, "n1", 6.0)) == 0.5


def test_what_no_root_covers_is_the_next_best_explanation() -> None:
    assert lead(off(RETX, "n1", 12.0), off("hw_gpu_pcie_correctable_total", "n7", 9.0)) == 0.25
    assert lead(off(RETX, "n1", 6.0), off("hw_gpu_pcie_correctable_total", "n7", 12.0)) == -0.5


def test_what_another_root_covers_is_no_rival() -> None:
    pcie = Claim("gpu-hardware-fault", frozenset({"pcie-errors"}), frozenset({"n7"}), False)
    assert lead(off(RETX, "n1", 12.0), off("hw_gpu_pcie_correctable_total", "n7", 9.0), others=(pcie,)) == 1.0


def test_a_narrow_margin_and_lost_time_left_open_make_less_sure() -> None:
    def sure(margin: float | None, explains: float | None = None) -> float:
        return certainty(calibration().weights, shown(4.0, "rdma-degradation", 0, 1, margin, explains))

    assert sure(None) == sure(1.0) == sure(0.6)
    assert sure(0.0) < sure(0.3) < sure(0.6)
    assert sure(1.0, 0.5) <= sure(1.0, 1.0) == sure(1.0)  # never surer: how much less is for the sets to say


def accused_by(metric: str, *hosts: str) -> Examination:
    test = Question(
        id="t", role="require", accuses=True, query="q", detector="outliers", says="s", window="slow", metrics=[metric]
    )
    book = Playbook(id="rdma-degradation", title="t", symptoms=["slow"], summary="s", tests=[test])
    return Examination(book, [Result(test, True, ["e1"], set(hosts), spans={0})])


def test_of_hosts_that_an_error_names_those_stay_whom_the_comparison_confirms() -> None:
    assert confirmed(accused_by(RETX, "n1", "n5"), [off(RETX, "n1")]) == {"n1"}
    assert confirmed(accused_by("hw_gpu_clock_mhz", "n1"), []) is None  # not told by errors


def test_an_error_that_nothing_confirms_is_chance_only_where_the_phase_was_compared() -> None:
    nic = accused_by(RETX, "n1")
    elsewhere = [off("hw_gpu_pcie_correctable_total", "n7")]
    assert chance_hits([nic], elsewhere, [SLOW]) == {"rdma-degradation"}
    assert chance_hits([nic], [off(RETX, "n1")], [SLOW]) == frozenset()
    assert chance_hits([nic], [], [SLOW]) == frozenset()
    # Of a large fleet only the longest of the phases that causes speak for is compared: this was another one.
    assert chance_hits([nic], elsewhere, [replace(SLOW, name="slow-2")]) == frozenset()


def test_a_second_cause_of_which_nothing_stands_out_is_no_root_beside_one_that_does() -> None:
    cpu, nic = accused_by("hw_procs_running", "n5"), accused_by(RETX, "n1")
    cpu.playbook = cpu.playbook.model_copy(update={"id": "cpu-contention"})
    assert chance_hits([cpu, nic], [off(RETX, "n1")], [SLOW]) == {"cpu-contention"}
    assert chance_hits([cpu], [off(RETX, "n1")], [SLOW]) == frozenset()
    assert chance_hits([cpu, nic], [off(RETX, "n1"), off("hw_procs_running", "n5")], [SLOW]) == frozenset()


def test_the_only_candidate_is_whom_all_wait_for_and_one_of_two_is_not() -> None:
    faint = off("process_open_fds", "n7", 5.8, before=2e4, after=6e4)
    assert suspect([faint], graph()) is None
    told = suspect([faint], graph(), waits=True)
    assert told is not None
    assert told.hosts == ("n7",)
    other = off("hw_mem_rss_bytes", "n3", 4.5, before=2e10, after=3e10)
    assert suspect([faint, other], graph(), waits=True) is None


def test_the_only_candidate_must_be_beyond_chance_and_no_everyday_error() -> None:
    assert suspect([off("process_open_fds", "n7", 4.4, before=2e4, after=6e4)], graph(), waits=True) is None
    assert suspect([off("hw_tcp_listen_drops_total", "n7", 4.5, before=2.0, after=6.0)], graph(), waits=True) is None


@pytest.mark.parametrize(("share", "late"), [(0.9, True), (0.75, True), (0.7, None), (0.05, False)])
def test_idle_devices_are_late_data_where_nearly_all_of_the_loss_passed_idle(share: float, late: bool | None) -> None:
    wait = next(w for w in all_waits() if w.id == "idle")
    booked = Booking(wait, None, share, ("n1",), "n1", Rates("q", {"n1": share}), Rates("q", {"n1": 0.0}))
    account = Account("slow-1", (100, 199), 1000.0, 100.0, frozenset({0}), 10.0, (booked,))
    symptoms = replace(Symptoms(frozenset({"slow"})), accounts=(account,))
    case = SimpleNamespace(timeline=None, log=SimpleNamespace(path=SimpleNamespace(name="job.log")))
    assert lost_to("idle", case, symptoms, EvidenceBook()).fired is late  # type: ignore[arg-type]


def name_of(*deviations: Deviation, state: bool | None = False) -> str | None:
    """What a story is called, where each cause file's tests were asked and came out so."""
    examined = [
        Examination(book, [Result(test, state) for test in book.tests if test.role == "require"])
        for book in load_playbooks()
        if "slow" in book.symptoms
    ]
    story = suspect(deviations, graph())
    assert story is not None, "nobody stands out"
    book = called(story, deviations, examined, graph())
    return None if book is None else book.id


def test_who_stands_out_in_the_quantity_of_one_cause_has_it_though_its_own_tests_ask_for_more() -> None:
    blocked = off("hw_procs_blocked", "n3", before=1.0)
    assert name_of(off("hw_net_rx_drop_total", "n3")) == "network-degradation"
    assert name_of(blocked, off("hw_io_pressure_full_pct", "n3", before=1.0)) == "storage-degradation"
    assert name_of(blocked, state=None) == "storage-degradation"  # its tests could not be asked


def test_what_nobody_knows_keeps_what_is_known_beside_it_from_being_the_name() -> None:
    assert name_of(off("hw_procs_blocked", "n3", before=1.0), off("myraid_rebuild_errors_total", "n3")) is None
    assert name_of(off("myraid_rebuild_errors_total", "n3")) is None
    assert name_of(off("hw_gpu_pcie_correctable_total", "n3")) is None  # no cause file says that it stands out there
