"""Detectors where nobody stands beside a member: its own past is the control, or a limit with a physical reason."""

from __future__ import annotations

from trackwalker.stats.detectors import any_rose, hot, minority


def test_who_rose_against_its_own_past_is_named_whatever_the_others_do() -> None:
    finding = any_rose({"a/0": 60.0, "b/0": 40.0}, reference={"a/0": 1.0, "b/0": 39.0}, by=3)
    assert finding.hosts == ("a/0",)
    assert finding.numbers["value"] == 60
    assert not any_rose({"a/0": 60.0}, reference={}, by=3).fired  # nobody knows what it was before
    assert not any_rose({"a/0": 6.0}, reference={"a/0": 6.0}).fired


def test_one_above_a_limit_with_nobody_beside_it() -> None:
    assert minority({"a": 2.0}, limit=1).hosts == ("a",)
    assert not minority({"a": 2.0}, limit=1, alone=False).fired
    assert not minority({"a": 2.0, "b": 2.0}, limit=1).fired  # both: a condition they share


def test_a_hot_gpu_alone_is_compared_with_its_own_past() -> None:
    assert hot({"a": 90.0}, limit=85, margin=10, rise=5, reference={"a": 70.0}).hosts == ("a",)
    assert not hot({"a": 90.0}, limit=85, margin=10, rise=5, reference={"a": 88.0}).fired
    assert not hot({"a": 90.0}, limit=85, margin=10).fired
