"""Every detector: when it speaks, when it holds its tongue."""

from __future__ import annotations

import pytest

from trackwalker.stats.detectors import (
    Finding,
    all_at_least,
    all_at_most,
    all_fell_to,
    alone_rose,
    any_above,
    equivalent,
    hot,
    lows,
    minority,
    missing,
    outliers,
    several_rose,
    silent,
)


def hosts(*values: float) -> dict[str, float]:
    return {f"h{i}": float(v) for i, v in enumerate(values)}


def accused(finding: Finding) -> list[str] | None:
    """The named hosts, None when the detector did not fire; a silent detector names nobody."""
    assert finding.fired or finding.hosts == ()
    return list(finding.hosts) if finding.fired else None


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (hosts(1, 1, 10, 1), ["h2"]),
        (hosts(1, 10), ["h1"]),
        (hosts(1, 1, 10), ["h2"]),
        (hosts(1, 1, 1, 1, 9, 10), ["h4", "h5"]),
        (hosts(100, 30, 1, 1, 1, 1), ["h0", "h1"]),
        (hosts(0, 0, 0, 5), ["h3"]),  # nothing anywhere else
        (hosts(10, 10, 10, 10), None),  # all high: common, not theirs
        (hosts(10, 10, 10, 1), None),  # more than half stand out
        (hosts(10, 10, 1, 1), ["h0", "h1"]),  # exactly half may
        (hosts(10, 10, 1), None),  # of three, one may stand out
        (hosts(10, 10), None),  # a tie
        (hosts(1, 1, 1, 1.9), None),  # below the factor
        (hosts(0, 0, 0, 0.9), None),  # below the floor
        (hosts(0, 0, 0, 0), None),
        (hosts(10), None),  # nobody to compare with
        ({}, None),
        (hosts(1, 2, 3, 4, 5, 6, 13), None),  # twice the next, but within the others' own spread
    ],
)
def test_outliers(values: dict[str, float], named: list[str] | None) -> None:
    assert accused(outliers(values, factor=2, floor=1)) == named


def test_outliers_give_their_numbers() -> None:
    finding = outliers(hosts(1, 2, 8, 10, 1, 1), factor=3, floor=1)
    assert finding.numbers == {"hosts": 6, "max": 10, "value": 10, "lowest": 8, "others_max": 2}
    assert outliers(hosts(1, 3), factor=10, floor=1).numbers == {"hosts": 2, "max": 3, "others_max": 1}


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        (None, ["h3"]),
        (hosts(1, 1, 1, 2), ["h3"]),  # it rose
        (hosts(1, 1, 1, 9), None),  # it was always so
        (hosts(0, 0, 0, 0), ["h3"]),
        (hosts(1, 1, 1), None),  # it was not measured before: nobody can say that it rose
        ({}, ["h3"]),  # nothing was measured before: the question was not asked
    ],
)
def test_outliers_against_a_reference(reference: dict[str, float] | None, named: list[str] | None) -> None:
    assert accused(outliers(hosts(1, 1, 1, 10), factor=2, floor=1, reference=reference)) == named


def test_only_those_that_rose_are_accused() -> None:
    finding = outliers(hosts(1, 1, 1, 1, 10, 12), factor=2, floor=1, reference=hosts(1, 1, 1, 1, 10, 1))
    assert accused(finding) == ["h5"]
    assert finding.numbers["others_max"] == 10


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (hosts(0, 9, 9), ["h0"]),
        (hosts(0, 9), ["h0"]),
        (hosts(0, 0, 9), None),  # most are silent: not a silent host but a quiet job
        (hosts(0, 9, 4), None),  # another hardly lives either
        (hosts(9, 9), None),
        (hosts(0, 0), None),
        ({}, None),
    ],
)
def test_silent(values: dict[str, float], named: list[str] | None) -> None:
    assert accused(silent(values, alive=5)) == named


def test_silent_with_a_threshold() -> None:
    assert accused(silent(hosts(0.5, 9, 9), alive=5, quiet=1.0)) == ["h0"]
    assert accused(silent(hosts(0.5, 9, 9), alive=5)) is None


@pytest.mark.parametrize(
    ("values", "at_least", "at_most"),
    [
        (hosts(5, 5), True, True),  # a tie with the limit is at the limit
        (hosts(5, 9), True, False),
        (hosts(5, 1), False, True),
        (hosts(*[9] * 19, 1), True, False),  # 95 % is nearly every host
        (hosts(*[9] * 18, 1, 1), False, False),
        ({}, False, False),
    ],
)
def test_all_at_a_limit(values: dict[str, float], at_least: bool, at_most: bool) -> None:
    assert all_at_least(values, limit=5).fired == at_least
    assert all_at_most(values, limit=5).fired == at_most
    assert all_at_least(values, limit=5).hosts == ()
    assert all_at_least(hosts(*[9] * 19, 1), limit=5, share=1.0).fired is False


@pytest.mark.parametrize(
    ("values", "reference", "fired"),
    [
        (hosts(3, 3), hosts(9, 9), True),
        (hosts(4.5, 4.5), hosts(9, 9), True),  # exactly the ratio
        (hosts(3, 9), hosts(9, 9), False),
        (hosts(3, 3), {}, False),  # nothing to have fallen from
        (hosts(0, 0), hosts(0, 0), False),  # zero before cannot fall
        (hosts(3, 3, 0), hosts(9, 9, 0), True),
        ({}, hosts(9, 9), False),
    ],
)
def test_all_fell_to(values: dict[str, float], reference: dict[str, float], fired: bool) -> None:
    assert all_fell_to(values, reference=reference, ratio=0.5).fired == fired


def test_all_fell_to_gives_before_and_after() -> None:
    assert all_fell_to(hosts(3, 4), reference=hosts(9, 10), ratio=0.5).numbers == {
        "min": 3,
        "max": 4,
        "before_min": 9,
        "before_max": 10,
    }


def test_any_above() -> None:
    assert accused(any_above(hosts(1, 7, 5), limit=5)) == ["h1"]
    assert accused(any_above(hosts(5, 5), limit=5)) is None
    assert any_above({}, limit=5).numbers == {"max": 0.0, "min": 0.0}


@pytest.mark.parametrize(
    ("seen", "expected", "named"),
    [
        (hosts(1, 1), ["h0", "h1", "h2"], ["h2"]),
        (hosts(1, 1), ["h0", "h1"], None),
        ({}, ["h0", "h1"], None),  # all gone: the telemetry ended, not a host
        (hosts(1), ["h0", "h1", "h2"], None),  # most gone: the one left has a clock of its own
        (hosts(1), ["h0", "h1"], ["h1"]),
        (hosts(1), [], None),
    ],
)
def test_missing(seen: dict[str, float], expected: list[str], named: list[str] | None) -> None:
    assert accused(missing(seen, expected=expected)) == named


@pytest.mark.parametrize(
    ("values", "group", "fired"),
    [
        (hosts(100, 100, 103), ["h2"], True),
        (hosts(100, 100, 105), ["h2"], True),  # on the margin
        (hosts(100, 100, 120), ["h2"], False),
        (hosts(100, 100, 80), ["h2"], False),
        (hosts(100, 100), ["h2"], False),  # the accused was not measured
        (hosts(100, 100), ["h0", "h1"], False),  # no one to compare with
        (hosts(100, 100), [], False),
        (hosts(0, 0, 0), ["h2"], False),  # all zero: no signal to agree in
        (hosts(-100, -100, -103), ["h2"], True),
    ],
)
def test_equivalent(values: dict[str, float], group: list[str], fired: bool) -> None:
    assert equivalent(values, group=group, margin=0.05).fired == fired


@pytest.mark.parametrize(
    ("values", "low"),
    [
        ({"a": 2100.0, "b": 2100.0, "c": 1700.0, "d": 2095.0}, ("c",)),
        ({"a": 2100.0, "b": 2100.0, "c": 2060.0, "d": 2095.0}, ()),  # within the ratio
        ({"a": 1000.0, "b": 1010.0, "c": 2000.0, "d": 2010.0}, ("a", "b")),
        ({"a": 1000.0, "b": 1010.0, "c": 1005.0, "d": 2010.0}, ()),  # most are low: then low is normal
        ({"a": 5.0}, ()),
        ({}, ()),
    ],
)
def test_lows(values: dict[str, float], low: tuple[str, ...]) -> None:
    assert lows(values, ratio=0.9).hosts == low


def test_lows_must_have_fallen_themselves() -> None:
    values = {"a": 1500.0, "b": 2100.0, "c": 2100.0, "d": 2110.0}
    assert lows(values, ratio=0.9, reference={"a": 2100.0, "b": 2100.0}).hosts == ("a",)
    assert lows(values, ratio=0.9, reference={"a": 1500.0, "b": 2100.0}).hosts == ()


def test_hot_is_above_a_limit_and_above_the_room() -> None:
    assert hot({"a": 99.0, "b": 80.0, "c": 79.0}, limit=90, margin=8).hosts == ("a",)
    assert not hot({"a": 99.0, "b": 96.0, "c": 97.0}, limit=90, margin=8).fired  # the room is hot
    assert not hot({"a": 88.0, "b": 70.0, "c": 70.0}, limit=90, margin=8).fired
    assert not hot({}, limit=90, margin=8).fired


def test_all_rose_needs_most_and_their_own_rise() -> None:
    before = {"a": 10.0, "b": 12.0, "c": 9.0, "d": 11.0}
    assert several_rose(dict.fromkeys(before, 900.0), reference=before, factor=4, floor=200).fired
    assert not several_rose({**before, "a": 9000.0}, reference=before, factor=4, floor=200).fired
    assert not several_rose(dict.fromkeys(before, 900.0), reference=None, factor=4, floor=200).fired


def test_several_rose_can_ask_for_a_part_of_many_but_never_for_one() -> None:
    before = {f"h{i}": 10.0 for i in range(12)}
    three = {**before, "h1": 900.0, "h5": 900.0, "h9": 900.0}
    part = {"factor": 4, "floor": 200, "share": 0.25}
    assert several_rose(three, reference=before, **part).fired  # type: ignore[arg-type]
    assert not several_rose({**three, "h9": 10.0}, reference=before, **part).fired  # type: ignore[arg-type]
    few = {"a": 10.0, "b": 10.0, "c": 10.0, "d": 10.0}
    assert not several_rose({**few, "a": 900.0}, reference=few, **part).fired  # type: ignore[arg-type]


def test_the_only_host_is_judged_by_its_own_past() -> None:
    assert alone_rose({"a": 80.0}, reference={"a": 17.0}, factor=2.5, floor=16).hosts == ("a",)
    assert not alone_rose({"a": 20.0}, reference={"a": 17.0}, factor=2.5, floor=16).fired
    assert not alone_rose({"a": 80.0, "b": 80.0}, reference={"a": 17.0, "b": 17.0}, factor=2.5, floor=16).fired
    assert not alone_rose({"a": 80.0}, reference=None, factor=2.5, floor=16).fired


def test_minority() -> None:
    assert minority({"a": 2.0, "b": 0.0, "c": 0.0}, limit=0.4).hosts == ("a",)
    assert not minority({"a": 2.0, "b": 2.0, "c": 0.0}, limit=0.4).fired
    assert not minority({"a": 0.0, "b": 0.0}, limit=0.4).fired


def test_who_is_warm_all_day_is_not_hot() -> None:
    before = {"a/0": 66.0, "b/0": 89.0, "c/0": 67.0, "d/0": 65.0}
    while_slow = {"a/0": 88.0, "b/0": 90.0, "c/0": 66.0, "d/0": 66.0}
    assert hot(while_slow, reference=before, limit=85, margin=10, rise=5).hosts == ("a/0",)
    assert hot(while_slow, limit=85, margin=10).hosts == ("a/0", "b/0")


def test_who_rose_less_than_another_does_not_stand_out() -> None:
    # Four ranks of a starved run: a few segments sent again here and there, by one also before.
    before = {"r0": 0.6, "r1": 0.0, "r2": 0.0, "r3": 0.0}
    assert not outliers({"r0": 2.15, "r1": 1.05, "r2": 0.0, "r3": 0.0}, reference=before, factor=4, floor=1).fired
    # What one had all along does not shield another whose own rise is plain.
    old = {"r0": 1000.0, "r1": 0.0, "r2": 0.0, "r3": 0.0}
    assert outliers({"r0": 1010.0, "r1": 900.0, "r2": 0.0, "r3": 0.0}, reference=old, factor=4, floor=1).hosts == (
        "r1",
    )


def test_among_rates_that_differ_widely_one_that_is_nearly_nothing_is_low() -> None:
    spread = {f"h{i}": v for i, v in enumerate((14.1, 14.6, 15.4, 16.2, 18.1, 19.7, 22.0, 22.5, 23.0))}
    assert lows({**spread, "still": 5.9}, ratio=0.5).hosts == ("still",)
    assert lows({**spread, "calm": 8.0}, ratio=0.5).hosts == ()
    assert lows({**spread, "dead": 0.0}, ratio=0.03).hosts == ("dead",)


def test_a_fall_is_measured_by_the_others_changes_not_by_what_cards_differ_by() -> None:
    # Cards that differ by eight per cent all the time; one is held back by seven while the others stay as they were.
    before = {"a": 640.0, "b": 655.0, "c": 672.0, "d": 690.0, "e": 648.0}
    now = {**before, "e": 598.0}
    assert lows(now, ratio=0.94, reference=before).hosts == ("e",)
    assert lows(now, ratio=0.94).hosts == ()  # without a past it is one of five that differ
