"""Most hosts below their own past, with those who kept theirs as the control."""

from __future__ import annotations

from trackwalker.stats.detectors import most_lower

PAST = {f"n{i}": 700.0 + i for i in range(8)}


def lowered(fell: int, to: float, others: float = 1.0) -> dict[str, float]:
    return {h: v * (to if i < fell else others) for i, (h, v) in enumerate(PAST.items())}


def test_most_that_fell_below_those_who_kept_what_they_had() -> None:
    found = most_lower(lowered(5, 0.8), reference=PAST, ratio=0.96)
    assert (found.fired, found.hosts) == (True, ("n0", "n1", "n2", "n3", "n4"))


def test_a_minority_all_and_two_of_two_are_not_asked_here() -> None:
    for fell in (3, 8):
        assert not most_lower(lowered(fell, 0.8), reference=PAST, ratio=0.96).fired
    assert not most_lower({"n0": 560.0, "n1": 701.0}, reference=PAST, ratio=0.96).fired


def test_those_who_wait_fell_as_well_but_less() -> None:
    waiting = lowered(5, 0.7, others=0.88)
    assert most_lower(waiting, reference=PAST, ratio=0.94, wait=True).hosts == ("n0", "n1", "n2", "n3", "n4")
    # One works on and all others wait for it: they are no culprits.
    assert not most_lower(lowered(7, 0.7), reference=PAST, ratio=0.94, wait=True).fired
