"""The verdict is the smallest set of causes that covers what was lost: a further root carries something of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trackwalker.diagnose.accounts.accounts import Account, Booking, in_order
from trackwalker.diagnose.accounts.waits import Rates, all_waits
from trackwalker.diagnose.causes.claims import covered, downstream
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.causes.examine import TestResult as Result
from trackwalker.diagnose.causes.playbook import Playbook, load_playbooks
from trackwalker.diagnose.causes.playbook import Test as Question
from trackwalker.diagnose.causes.roles import assign_roles
from trackwalker.diagnose.causes.states import graph
from trackwalker.diagnose.deviations.sweep import Deviation
from trackwalker.diagnose.episodes.episodes import Episode
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.views.story import Phase
from trackwalker.telemetry.meaning import meaning_of

SHIPPED = {b.id: b for b in load_playbooks()}
WAITS = {w.cause: w for w in all_waits() if w.cause}
# Full speed, then three slow phases of ten minutes that lose as much each.
PHASES = tuple(Phase(60 * i, 60 * i + 59, 600.0 * i, 600.0 * i + 600.0, 10.0 + bool(i), bool(i)) for i in range(4))
SLOW = Symptoms(frozenset({"slow"}), phases=PHASES)
ALL = frozenset({0, 1, 2})


def cause(
    name: str, hosts: str = "", spans: set[int] | None = None, metric: str = "m", onset: float | None = None
) -> Examination:
    test = Question(id="t", role="require", accuses=True, query="q", detector="hot", metrics=[metric], says="s")
    fields: dict[str, Any] = {"title": name, "symptoms": ["slow", "failed"], "summary": "s", "tests": [test]}
    book = Playbook(id=name, state=SHIPPED[name].state, acts_on=SHIPPED[name].acts_on, **fields)
    return Examination(book, [Result(test, True, ["e1"], set(hosts.split()), spans=spans, time=onset)])


def account(name: str, share: float, hosts: str = "", slow: frozenset[int] = ALL) -> Account:
    during = Rates("q", {"h1": 0.3, "h2": 0.3, "h3": 0.3})
    booking = Booking(WAITS[name], name, share, tuple(hosts.split()), "h1", during, None)
    return Account("slow-1", (60, 239), 600.0, 160.0, slow, 10.0, (booking,))


def roles(*causes: Examination, accounts: tuple[Account, ...] = ()) -> dict[str, str]:
    return dict(assign_roles(list(causes), replace(SLOW, accounts=accounts)))


def off(metric: str, host: str) -> Deviation:
    window = Episode("slow-1", "slow", (Span(600.0, 2400.0),), (Span(0.0, 600.0),), 600.0)
    return Deviation(window, meaning_of(metric), "rose", 11.0, host, before=0.01, after=0.9, of=12)


def test_nothing_comes_of_what_began_later() -> None:
    late = cause("input-stall", spans={0, 1, 2})
    assert roles(late, cause("network-degradation", "h1", {0, 1, 2}))["input-stall"] == "consequence"
    assert roles(late, cause("network-degradation", "h1", {2}))["input-stall"] == "root"


def test_what_everybody_waited_for_by_himself_is_no_single_hosts_doing() -> None:
    late, path = cause("input-stall", spans={0, 1, 2}), cause("network-degradation", "h1", {0, 1, 2})
    assert roles(late, path, accounts=(account("input-stall", 0.95),))["input-stall"] == "root"
    his = account("input-stall", 0.95, "h1")
    assert roles(late, path, accounts=(his,))["input-stall"] == "consequence", "whose path is bad gets his data late"
    others = account("input-stall", 0.95, "h2")
    assert roles(late, path, accounts=(others,))["input-stall"] == "root", "who has no data owes it to no other's path"
    everywhere = cause("network-degradation", "", {0, 1, 2})
    assert roles(late, everywhere, accounts=(account("input-stall", 0.95),))["input-stall"] == "consequence"


def test_senders_repeat_towards_a_host_that_is_gone_but_not_before_it_went() -> None:
    gone = cause("node-death", "h1", onset=2390.0)
    assert roles(gone, cause("network-degradation", "h2 h3", onset=2395.0))["network-degradation"] == "consequence"
    assert roles(gone, cause("network-degradation", "h2 h3", {0}))["network-degradation"] == "root"


def test_a_root_whose_loss_the_accounts_book_on_another_carries_nothing() -> None:
    late, path = cause("input-stall", spans={0, 1, 2}), cause("network-degradation", "h1", {1, 2})
    booked = replace(SLOW, accounts=(account("input-stall", 0.95),))
    assert covered([late, path], booked, graph()) == {"network-degradation"}
    assert covered([path], booked, graph()) == frozenset(), "only what is a root itself takes loss from another"
    half = replace(SLOW, accounts=(account("input-stall", 0.6),))
    assert covered([late, path], half, graph()) == frozenset(), "two fifths of the loss are left for it"
    apart = account("input-stall", 0.95, slow=frozenset({0})), account("input-stall", 0.0, slow=frozenset({1, 2}))
    assert covered([late, path], replace(SLOW, accounts=apart), graph()) == frozenset(), "it has phases of its own"


def test_threads_that_wait_for_a_cpu_carry_a_loss_only_where_they_tell_a_rank_from_the_others() -> None:
    starved = cause("cpu-contention", "h1", {0, 1, 2})
    path = cause("network-degradation", "h2", {0, 1, 2}, "hw_rank_tcp_retransmits_total")
    for hosts, spare in (("h1", {"network-degradation"}), ("", set())):
        booked = replace(SLOW, accounts=(account("cpu-contention", 1.0, hosts),))
        assert covered([starved, path], booked, graph()) == spare


def test_an_upper_bound_covers_only_what_can_come_of_it() -> None:
    starved = cause("cpu-contention", "h1", {0, 1, 2})
    booked = replace(SLOW, accounts=(account("cpu-contention", 1.0, "h1"),))
    for name, metric, spare in (
        ("rdma-degradation", "hw_rdma_tx_retx_pkts_total", False),  # no CPU loses a packet on a port
        ("gpu-thermal-throttle", "hw_gpu_temperature_celsius", False),  # who waits cools
        ("gpu-clock-degraded", "hw_gpu_clock_mhz", True),
    ):
        assert covered([starved, cause(name, "h1", {0, 1, 2}, metric)], booked, graph()) == ({name} if spare else set())


def test_heat_comes_of_no_idle_device() -> None:
    starved = cause("cpu-contention", "h1", {0}, "hw_cpu_wait_seconds_total")
    seen = [off("hw_cpu_wait_seconds_total", "h1"), off("hw_gpu_temperature_celsius", "h1")]
    hot = cause("gpu-thermal-throttle", "h1", {0}, "hw_gpu_temperature_celsius")
    assert downstream([starved, hot], [starved, hot], seen, graph(), SLOW) == {}


def test_who_sends_to_a_rank_without_a_cpu_repeats() -> None:
    starved = cause("cpu-contention", "h1", {0}, "hw_cpu_wait_seconds_total")
    path = cause("network-degradation", "h2", {0}, "hw_rank_tcp_retransmits_total")
    waits, repeats = off("hw_cpu_wait_seconds_total", "h1"), off("hw_rank_tcp_retransmits_total", "h2")
    behind = downstream([starved, path], [starved, path], [waits, repeats], graph(), SLOW)
    assert behind == {"network-degradation": "cpu-contention"}
    assert downstream([path], [starved, path], [repeats], graph(), SLOW) == {}, "nobody is seen to wait for a CPU"
    later = cause("network-degradation", "h2", {2}, "hw_rank_tcp_retransmits_total")
    assert downstream([later], [starved, later], [waits, repeats], graph(), SLOW) == {}, "the rank had its CPU by then"
    damaged = cause("network-degradation", "h2", {0}, "hw_net_rx_errors_total")
    both = [waits, off("hw_net_rx_errors_total", "h2")]
    assert downstream([damaged], [starved, damaged], both, graph(), SLOW) == {}, "no rank damages another's frames"


def test_who_waits_for_a_rank_without_data_has_its_acknowledgements_late() -> None:
    late = cause("input-stall", "h1", {0}, "train_data_wait_seconds")
    path = cause("network-degradation", "h2", {0}, "hw_rank_tcp_rtt_seconds")
    seen = [off("train_data_wait_seconds", "h1"), off("hw_rank_tcp_rtt_seconds", "h2")]
    assert downstream([late, path], [late, path], seen, graph(), SLOW) == {"network-degradation": "input-stall"}
    assert downstream([path], [late, path], seen[1:], graph(), SLOW) == {}, "nobody is seen to wait for data"
    damaged = cause("network-degradation", "h2", {0}, "hw_net_rx_errors_total")
    both = [seen[0], off("hw_net_rx_errors_total", "h2")]
    assert downstream([damaged], [late, damaged], both, graph(), SLOW) == {}, "who is late damages no frames"


def test_a_card_that_overheats_lowers_no_limit_on_another_host() -> None:
    hot = cause("gpu-thermal-throttle", "h1", {0}, "hw_gpu_temperature_celsius")
    for hosts, role in (("h1", "consequence"), ("h2", "root")):
        assert roles(hot, cause("gpu-power-cap", hosts, {0}, "hw_gpu_power_watts"))["gpu-power-cap"] == role


def test_congestion_yields_to_a_port_only_where_the_port_speaks() -> None:
    port, fabric = cause("rdma-degradation", "h1", {0}), cause("fabric-congestion", spans={1, 2})
    assert roles(port, fabric)["fabric-congestion"] == "root"
    assert roles(cause("rdma-degradation", "h1", {0, 1}), fabric)["fabric-congestion"] == "contributing"


def test_what_clears_one_host_leaves_the_others_accused() -> None:
    capped = cause("gpu-power-cap", "h1 h2", {0})
    hot = Question(id="hot", role="refute", query="q", detector="hot", metrics=["m"], says="s")
    capped.results.append(Result(hot, True, ["e2"], {"h1"}, spans={0}))
    assert (capped.state, capped.hosts, capped.spans) == ("found", ["h2"], {0})
    capped.results[-1].hosts = {"h1", "h2"}
    assert capped.state == "refuted"


def test_what_clears_one_card_leaves_its_siblings_and_so_their_host_accused() -> None:
    capped = cause("gpu-power-cap", "h1 h2", {0})
    capped.fired[0].gpus = {"h1/0", "h1/1", "h2/0"}
    room = Question(id="room", role="refute", query="q", label="gpu", detector="hot", metrics=["m"], says="s")
    capped.results.append(Result(room, True, ["e2"], {"h1", "h2"}, spans={0}, gpus={"h1/1", "h2/0"}))
    assert (capped.state, capped.hosts) == ("found", ["h1"])
    capped.results[-1].gpus |= {"h1/0"}
    assert capped.state == "refuted"


def test_a_measured_wait_is_booked_before_an_upper_bound_that_cannot_bring_it_about() -> None:
    def shares(data: str, cpu: str) -> list[tuple[str, float]]:
        late, starved = (account(n, 0.7, h).bookings[0] for n, h in (("input-stall", data), ("cpu-contention", cpu)))
        return [(b.wait.id, round(b.share, 1)) for b in in_order([starved, late])]

    assert shares("h1", "h2") == [("data", 0.7), ("cpu", 0.3)]
    assert shares("h1", "h1") == [("cpu", 0.7), ("data", 0.3)], "with no CPU the loader is late"
    assert shares("", "h1") == [("cpu", 0.7), ("data", 0.3)]


def test_what_has_a_source_of_its_own_on_its_host_comes_of_no_slow_store() -> None:
    def rose(metric: str, host: str | None) -> Deviation:
        episode = Episode("slow-1", "slow", (Span(600.0, 1200.0),), (Span(0.0, 600.0),), 600.0)
        return Deviation(episode, meaning_of(metric), "rose", 9.0, host, before=0.1, after=5.0, since=600.0, of=8)

    store = cause("storage-degradation", "", ALL, "hw_io_pressure_full_pct")
    starved = cause("cpu-contention", "h1", ALL, "hw_cpu_wait_seconds_total")
    seen = [rose("hw_io_pressure_full_pct", "h1"), rose("hw_cpu_wait_seconds_total", "h1")]
    assert downstream([store, starved], [store, starved], seen, graph(), SLOW) == {
        "cpu-contention": "storage-degradation"
    }
    seen.append(rose("hw_foreign_cpu_seconds_total", "h1"))
    assert downstream([store, starved], [store, starved], seen, graph(), SLOW) == {}


def test_a_measured_sign_that_is_definite_counts_as_a_line_that_names_the_cause() -> None:
    driver = cause("gpu-driver-fault", "h1", None)
    driver.playbook.only_if_told = True
    assert "never-joined" not in driver.explains
    xid = Question(id="xid", role="require", definite=True, query="q", detector="any-above", metrics=["m"], says="s")
    driver.results.append(Result(xid, True, ["e2"], {"h1"}))
    assert driver.explains
