"""Which cause is the diagnosis: roles by what explains what, who yields, who only delivered the blow."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from trackwalker.diagnose.causes.claims import claim_of
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.causes.examine import TestResult as Result
from trackwalker.diagnose.causes.playbook import Playbook, load_playbooks
from trackwalker.diagnose.causes.playbook import Test as Question
from trackwalker.diagnose.causes.roles import assign_roles, undisputed
from trackwalker.diagnose.engine import _began
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.views.story import Phase

STATES = {b.id: b.state for b in load_playbooks()}


def found(cause: str, log_role: str = "", **fields: Any) -> Examination:
    test = Question(id="t", role="require", fact="stalled")
    book = Playbook.model_validate(
        {
            "id": cause,
            "title": cause,
            "state": STATES.get(cause, ""),
            "symptoms": ["slow"],
            "summary": "s",
            "tests": [test],
            **fields,
        }
    )
    return Examination(book, [Result(test, True, ["e1"], log_role=log_role)])


def measured(cause: str, hosts: str = "", spans: set[int] | None = None, **fields: Any) -> Examination:
    test = Question(id="t", role="require", accuses=True, query="q", detector="hot", metrics=["m"], says="s")
    book = Playbook.model_validate(
        {
            "id": cause,
            "title": cause,
            "state": STATES.get(cause, ""),
            "symptoms": ["slow"],
            "summary": "s",
            "tests": [test],
            **fields,
        }
    )
    return Examination(book, [Result(test, True, ["e1"], set(hosts.split()), spans=spans)])


def in_silence(cause: str, hosts: str = "") -> Examination:
    """Measured while nothing moved."""
    seen = measured(cause, hosts)
    seen.results[0].test = seen.results[0].test.model_copy(update={"window": "during"})
    return seen


PHASES = tuple(Phase(30 * i, 30 * i + 29, 300.0 * i, 300.0 * i + 300.0, 10.0 + bool(i), bool(i)) for i in range(4))


def roles(*examinations: Examination, symptoms: str = "slow") -> dict[str, str]:
    return dict(assign_roles(list(examinations), Symptoms(frozenset(symptoms.split()), phases=PHASES)))


def test_what_is_explained_is_a_consequence() -> None:
    got = roles(found("oom-host"), found("node-death"), symptoms="failed")
    assert got == {"oom-host": "root", "node-death": "consequence"}


def test_two_causes_that_do_not_explain_each_other_are_both_roots() -> None:
    assert roles(found("gpu-thermal-throttle"), found("rdma-degradation")) == {
        "gpu-thermal-throttle": "root",
        "rdma-degradation": "root",
    }


def test_a_cause_yields_to_a_stronger_one_and_stands_alone_without_it() -> None:
    congestion = found("fabric-congestion")
    assert roles(congestion, measured("rdma-degradation", "h1"))["fabric-congestion"] == "contributing"
    assert roles(congestion) == {"fabric-congestion": "root"}


@pytest.mark.parametrize(("level", "role"), [(15.0, "root"), (12.1, "contributing")])
def test_a_cause_that_slows_further_does_not_yield(level: float, role: str) -> None:
    slow = Phase(30, 59, 300.0, 660.0, 12.0, True)
    phases = (Phase(0, 29, 0.0, 300.0, 10.0, False), slow, Phase(60, 89, 660.0, 1000.0, level, True))
    symptoms = Symptoms(frozenset({"slow"}), phases=phases)
    stall = measured("input-stall", spans={1}, state="routing-shifted")
    held_back = measured("gpu-clock-degraded", "h1", spans={0, 1})
    assert assign_roles([stall, held_back], symptoms)["input-stall"] == role
    # Where they speak for the same phases there is nothing more to explain.
    same = measured("gpu-clock-degraded", "h1", spans={1})
    assert assign_roles([stall, same], symptoms)["input-stall"] == "contributing"


def test_of_two_that_explain_each_other_the_one_with_fewer_hosts_is_the_root() -> None:
    port = measured("rdma-link-failure", "h1")
    senders = measured("rdma-degradation", "h2 h3 h4")
    assert roles(port, senders) == {"rdma-link-failure": "root", "rdma-degradation": "consequence"}


@pytest.mark.parametrize(
    ("symptoms", "root"),
    [
        ("cancelled", True),
        ("cancelled blip", True),
        ("cancelled unfinished-start", True),  # ended while it was starting, in good time
        ("cancelled unfinished-start overdue", False),
        ("cancelled slow", False),
        ("stall", False),
    ],
)
def test_a_cancel_is_the_root_only_when_nothing_else_was_wrong(symptoms: str, root: bool) -> None:
    cancel = found("user-cancel", mechanism=True, outcome="expected")
    assert roles(cancel, symptoms=symptoms)["user-cancel"] == ("root" if root else "mechanism")
    assert roles(cancel, found("collective-hang"), symptoms=symptoms)["user-cancel"] == "mechanism"


def test_the_logs_own_order_makes_a_consequence() -> None:
    got = roles(found("storage-full"), found("peer-died", "consequence"), symptoms="failed")
    assert got == {"storage-full": "root", "peer-died": "consequence"}
    # With nothing before it, the first of the aftermath is all there is.
    assert roles(found("peer-died", "consequence"), symptoms="failed") == {"peer-died": "root"}


def test_benign_readings_count_only_without_trouble_of_another_kind() -> None:
    blip = found("transient-blip", outcome="expected", symptoms=["blip"])
    assert roles(blip, symptoms="blip") == {"transient-blip": "root"}
    assert roles(blip, symptoms="blip slow") == {}
    assert roles(blip, found("rdma-degradation"), symptoms="blip slow") == {"rdma-degradation": "root"}


def test_work_that_was_done_makes_a_failure_a_teardown() -> None:
    done = found("teardown-crash", outcome="expected", symptoms=["failed"], overrides=True)
    got = roles(done, found("python-exception"), symptoms="failed")
    assert got == {"teardown-crash": "root", "python-exception": "consequence"}


def test_with_as_many_hosts_the_one_that_speaks_for_more_phases_is_the_root() -> None:
    down = measured("rdma-link-failure", "n1", {0, 1, 2})
    resent = measured("rdma-degradation", "n1", {0, 2})
    assert roles(resent, down) == {"rdma-link-failure": "root", "rdma-degradation": "consequence"}


def test_whichever_two_or_three_of_the_shipped_causes_are_found_one_of_them_is_the_root() -> None:
    incidents = [b for b in load_playbooks() if b.outcome == "incident" and not b.mechanism]
    several = [*combinations(incidents, 2), *combinations(incidents, 3)]
    rootless = [
        [b.id for b in some]
        for some in several
        if "root" not in roles(*(measured(b.id, "n1", {0}) for b in some)).values()
    ]
    assert len(several) > 1000
    assert rootless == []


def test_a_hang_is_the_consequence_of_what_is_wrong_with_the_host_it_waits_for() -> None:
    hang = measured("collective-hang", "n7")
    untold = {"only_if_told": True}
    assert roles(hang, measured("gpu-driver-fault", "n7 n8", **untold)) == {
        "collective-hang": "consequence",
        "gpu-driver-fault": "root",
    }
    assert roles(hang, measured("gpu-driver-fault", "n2", **untold))["collective-hang"] == "root"
    assert roles(measured("collective-hang"), measured("gpu-driver-fault", "n2", **untold))["collective-hang"] == "root"


def test_retransmits_that_name_nobody_yield_to_the_congestion_they_otherwise_explain() -> None:
    congestion = measured("fabric-congestion")
    assert roles(congestion, measured("rdma-degradation")) == {
        "fabric-congestion": "root",
        "rdma-degradation": "contributing",
    }
    assert roles(congestion, measured("rdma-degradation", "h1")) == {
        "fabric-congestion": "contributing",
        "rdma-degradation": "root",
    }


def test_what_speaks_for_none_of_the_trouble_stands_beside_it() -> None:
    full = found("storage-full", symptoms=["failed"])
    stall = measured("input-stall", symptoms=["slow", "uneven"])
    assert roles(full, stall, symptoms="failed uneven") == {"storage-full": "root", "input-stall": "contributing"}
    assert roles(full, stall, symptoms="failed slow") == {"storage-full": "root", "input-stall": "root"}
    assert roles(stall, symptoms="uneven") == {"input-stall": "root"}


@pytest.mark.parametrize(("log_role", "hang"), [("", "consequence"), ("consequence", "root")])
def test_a_cause_explains_more_where_the_log_names_it_first(log_role: str, hang: str) -> None:
    test = Question(id="log-says", role="require", signature=["gpu-driver-fault"])
    fields = {"title": "t", "symptoms": ["stall"], "summary": "s", "tests": [test]}
    book = Playbook.model_validate({"id": "gpu-driver-fault", "state": "driver-broken", "only_if_told": True, **fields})
    driver = Examination(book, [Result(test, True, ["e1"], {"h1"}, log_role=log_role)])
    assert roles(driver, measured("collective-hang", symptoms=["stall"]), symptoms="stall")["collective-hang"] == hang


def test_a_cause_that_began_behind_the_stronger_ones_phases_has_its_own() -> None:
    phases = (Phase(0, 29, 0.0, 300.0, 10.0, False), Phase(30, 59, 300.0, 660.0, 12.0, True))
    phases += (Phase(60, 89, 660.0, 960.0, 10.0, False), Phase(90, 140, 960.0, 1500.0, 11.5, True))
    symptoms = Symptoms(frozenset({"slow"}), phases=phases)
    shift = found("moe-routing-shift")
    nic = measured("rdma-degradation", "h1", spans={0})
    for onset, role in ((970.0, "root"), (310.0, "contributing")):
        shift.results[0].time = onset
        assert assign_roles([shift, nic], symptoms)["moe-routing-shift"] == role


def test_what_is_half_proven_disputes_what_it_says() -> None:
    clock = Question(id="clock", role="require", query="q", detector="lows", metrics=["m"], says="s")
    heat = Question(id="heat", role="require", query="h", detector="hot", metrics=["t"], says="s")
    fields = {"id": "gpu-thermal-throttle", "title": "t", "symptoms": ["slow"], "summary": "s", "tests": [clock, heat]}
    low, capped = measured("gpu-clock-degraded", "h1"), measured("gpu-power-cap", "h1")

    def left(state: str) -> list[str]:
        book = Playbook.model_validate({**fields, "state": state})
        half = Examination(book, [Result(clock, True, ["e1"]), Result(heat, None)])
        return [e.playbook.id for e in undisputed([low, capped], [half, low, capped])]

    assert left("card-shared") == []
    assert left("heat") == ["gpu-power-cap"]


def test_a_test_that_narrows_leaves_out_who_only_looks_guilty() -> None:
    hot = Question(
        id="hot", role="require", accuses=True, label="gpu", query="q", detector="hot", metrics=["m"], says="s"
    )
    fell = Question(
        id="fell", role="require", narrows=True, label="gpu", query="p", detector="lows", metrics=["m"], says="s"
    )
    book = Playbook.model_validate(
        {"id": "gpu-thermal-throttle", "title": "t", "symptoms": ["slow"], "summary": "s", "tests": [hot, fell]}
    )
    warm = Result(hot, True, ["e1"], {"h1", "h2"}, gpus={"h1/2", "h2/4"}, hosts_by_span={0: {"h1", "h2"}})
    slow = Result(fell, True, ["e2"], {"h1"}, gpus={"h1/2"})
    both = Examination(book, [warm, slow])
    assert (both.hosts, both.gpus, both.hosts_by_span) == (["h1"], ["h1/2"], {0: ["h1"]})
    assert Examination(book, [warm, Result(fell, False)]).hosts == ["h1", "h2"]


@pytest.mark.parametrize(
    ("words", "role"),
    [
        ("KeyError: 'tokens'", "root"),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "root"),
        ("RuntimeError: NCCL communicator was aborted", "consequence"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "consequence"),
    ],
)
def test_a_network_explains_no_error_that_only_the_program_makes(words: str, role: str) -> None:
    raised = found("python-exception", symptoms=["failed"])
    raised.results[0].words = words
    nic = measured("rdma-degradation", "h1", {0})
    assert roles(nic, raised, symptoms="slow failed") == {"rdma-degradation": "root", "python-exception": role}
    broken = measured("gpu-hardware-fault", "h1")
    assert roles(broken, raised, symptoms="slow failed")["python-exception"] == "consequence"


@pytest.mark.parametrize(
    ("words", "host", "role"),
    [
        (
            "AssertionError: Rank 9: found NaN in local forward loss calculation. Device: 1, node: h2",
            "h2",
            "consequence",
        ),
        ("AssertionError: Rank 9: found NaN in local forward loss calculation. Device: 1, node: h3", "h3", "root"),
        ("step 40: loss nan", "h2", "root"),  # after the exchange every rank has it
    ],
)
def test_a_nan_computed_where_a_gpu_reports_errors_is_its_doing(words: str, host: str, role: str) -> None:
    bad = found("loss-divergence", symptoms=["failed"])
    bad.results[0].words, bad.results[0].hosts = words, {host}
    broken = measured("gpu-hardware-fault", "h2", symptoms=["failed"])
    assert roles(broken, bad, symptoms="failed") == {"gpu-hardware-fault": "root", "loss-divergence": role}


def test_of_two_benign_readings_the_one_behind_the_other_stands_beside_it() -> None:
    noise = found("storage-tcp-noise", outcome="expected", symptoms=["none"])
    saves = found("expected-checkpoint", outcome="expected", symptoms=["none"])
    assert roles(noise, saves, symptoms="none") == {"storage-tcp-noise": "contributing", "expected-checkpoint": "root"}
    assert roles(noise, symptoms="none") == {"storage-tcp-noise": "root"}


def test_lower_power_on_all_hosts_is_what_waiting_for_a_named_one_looks_like() -> None:
    power = Question(
        id="p",
        role="require",
        query="q",
        detector="all-fell-to",
        metrics=["hw_gpu_power_watts"],
        says="s",
        window="slow",
    )
    book = Playbook(id="gpu-power-cap", title="t", symptoms=["slow"], state="power-limit", summary="s", tests=[power])
    lost = Question(
        id="r", role="require", accuses=True, query="q", detector="outliers", says="s", window="slow",
        metrics=["hw_rdma_tx_retx_pkts_total"],
    )  # fmt: skip
    port = Playbook(id="rdma-degradation", title="t", symptoms=["slow"], state="rdma-loss", summary="s", tests=[lost])
    nic = Examination(port, [Result(lost, True, ["e1"], {"h1"}, spans={0, 1})])
    symptoms = Symptoms(frozenset({"slow"}))
    for spans, role in (({0}, "contributing"), ({0, 2}, "root")):
        cap = Examination(book, [Result(power, True, ["e2"], spans=spans)])
        assert assign_roles([nic, cap], symptoms)["gpu-power-cap"] == role


def test_the_only_root_did_not_begin_after_what_came_of_it() -> None:
    death, hang = found("node-death"), found("collective-hang")
    death.results[0].time, hang.results[0].time = 900.0, 700.0  # the scheduler tells of the node when all is over
    assert hang.explained_by(death)
    assert _began(death, [death], [death, hang]) == 700.0
    assert _began(hang, [death], [death, hang]) == 700.0
    assert _began(death, [death, hang], [death, hang]) == 900.0  # of two roots nobody knows whose effect it is


def test_who_says_that_somebody_never_joined_knows_less_than_who_saw_what_became_of_him() -> None:
    told = found("collective-mismatch", state="never-joined", acts_as="never-joined")
    hang = found("collective-hang")
    for knows in ("node-death", "gpu-hardware-fault"):
        got = roles(measured(knows, "h1"), told, hang, symptoms="failed")
        assert got == {knows: "root", "collective-mismatch": "consequence", "collective-hang": "consequence"}
    assert roles(told, hang, symptoms="failed") == {"collective-mismatch": "root", "collective-hang": "consequence"}


def test_a_host_that_is_gone_is_no_change_of_the_metric_that_misses_it() -> None:
    gone = Question(
        id="t", role="require", accuses=True, query="q", detector="gone", metrics=["hw_gpu_power_watts"], says="s"
    )
    book = Playbook(id="node-death", title="t", symptoms=["stall"], summary="s", tests=[gone])
    assert claim_of(Examination(book, [Result(gone, True, ["e1"], {"h1"})])).quantities == frozenset()


@pytest.mark.parametrize(
    ("wrote", "seen", "root"),
    [
        (("h1", "h2"), False, "peer-died"),  # who was killed answers nothing: its peers' transfers fail
        (("h1", "h3"), False, "rdma-link-failure"),  # its own had failed before somebody killed it
        (("h1", "h2"), True, "rdma-link-failure"),  # a port was seen to fail
    ],
)
def test_what_peers_say_of_the_path_to_a_killed_process_comes_of_its_death(
    wrote: tuple[str, ...], seen: bool, root: str
) -> None:
    lines = found("rdma-link-failure")
    lines.results[0].test = Question(id="t", role="require", signature=["rdma-link-failure"])
    lines.results[0].wrote = set(wrote)
    port = measured("rdma-link-failure", "h3") if seen else lines
    got = roles(port, measured("peer-died", "h3"), symptoms="failed")
    assert [name for name, role in got.items() if role == "root"] == [root]


@pytest.mark.parametrize(("card", "role"), [("h1/3", "consequence"), ("h1/7", "root")])
def test_a_low_clock_comes_of_the_heat_of_the_very_same_card_in_another_phase(card: str, role: str) -> None:
    heat, clock = measured("gpu-thermal-throttle", "h1", {1}), measured("gpu-clock-degraded", "h1", {0})
    heat.results[0].gpus, clock.results[0].gpus = {"h1/3"}, {card}
    assert roles(heat, clock) == {"gpu-thermal-throttle": "root", "gpu-clock-degraded": role}


def test_a_wait_that_names_nobody_comes_of_what_was_measured_in_the_silence() -> None:
    hang = in_silence("collective-hang")
    assert roles(hang, in_silence("storage-degradation"))["collective-hang"] == "consequence"
    before = measured("storage-degradation", spans={0})
    assert roles(hang, before)["collective-hang"] == "root", "saves that grew an hour ago hold nobody up"
    who = in_silence("collective-hang", "h4")
    assert roles(who, in_silence("storage-degradation", "h4"))["collective-hang"] == "consequence"
    assert roles(who, in_silence("storage-degradation", "h5"))["collective-hang"] == "root"


def test_whoever_did_not_come_tells_more_than_a_log_that_somebody_did_not() -> None:
    said = found("collective-mismatch", state="never-joined")
    said.results[0].test = Question(id="t", role="require", signature=["collective-mismatch"])
    said.results[0].words = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=90211)"
    hang = in_silence("collective-hang", "h4")
    hang.results[0].test = hang.results[0].test.model_copy(update={"accuses": True})
    told = roles(said, hang)
    assert (told["collective-mismatch"], told["collective-hang"]) == ("consequence", "root")
