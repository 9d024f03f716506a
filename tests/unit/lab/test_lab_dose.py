"""Doses: which strengths are taken, how a verdict is graded, what the plot shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from trackwalker.cli.lab.dose import spread
from trackwalker.diagnose.verdict import Cause, Cost, JobRef, Verdict, Window
from trackwalker.job.processes import short_hostname
from trackwalker.lab.real.dose import FAULTS, DoseResults, DoseRun, grade
from trackwalker.lab.real.dose_plot import plot

R1 = f"{short_hostname()}-r1"


def said(**roots: list[str]) -> Verdict:
    causes = [Cause(cause=c.replace("_", "-"), role="root", confidence=0.9, hosts=h) for c, h in roots.items()]
    return Verdict(
        job=JobRef(id="1", dir="x"),
        window=Window(),
        status="cancelled",
        outcome="incident" if causes else "healthy",
        summary="",
        causes=causes,
        cost=Cost(seconds=0, queries=0, bytes_read=0),
    )


@pytest.mark.parametrize(
    ("fault", "verdict", "expected"),
    [
        ("slow-data-one", said(input_stall=[R1]), "named"),
        ("slow-data-one", said(input_stall=[]), "unplaced"),
        ("slow-data-one", said(unclassified=[R1]), "located"),
        ("slow-data-one", said(user_cancel=[]), "not seen"),
        ("slow-data-one", said(), "not seen"),
        ("slow-data-one", said(cpu_contention=[]), "other load"),
        ("slow-data-one", said(cpu_contention=[R1]), "wrong"),
        ("slow-data-all", said(input_stall=[]), "named"),
        ("slow-data-all", said(input_stall=[R1]), "wrong"),
        ("slow-data-all", said(input_stall=[], cpu_contention=[]), "named"),
        ("cpu-taken", said(cpu_contention=[]), "named"),
        ("cpu-taken", said(input_stall=[]), "wrong"),
    ],
)
def test_grades(fault: str, verdict: Verdict, expected: str) -> None:
    assert grade(FAULTS[fault], verdict) == expected


def test_every_fault_has_eight_strengths_and_fewer_keep_both_ends() -> None:
    for fault in FAULTS.values():
        assert len(set(fault.strengths)) == 8
        for count in range(2, 9):
            some = spread(fault.strengths, count)
            assert len(some) == count
            assert (some[0], some[-1]) == (fault.strengths[0], fault.strengths[-1])
    assert spread((1.0, 2.0), 1) == [2.0]


def test_the_plot_has_a_dot_for_each_run_and_says_what_it_is() -> None:
    runs = [
        DoseRun(
            fault="cpu-taken", strength=n, unit="loops", lost=0.1 * n, before_s=1, after_s=2, outcome="incident",
            roots={}, accounts=[], grade="named", load=1.0, seconds=60, job="j", from_step=120,
        )
        for n in (1, 4)
    ]  # fmt: skip
    results = DoseResults(command="trackwalker lab dose", cpus=2, runs=runs)
    picture = ET.fromstring(plot(results))  # noqa: S314 - our own text
    titles = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["1 loops: named", "4 loops: named"]
    assert results.has("cpu-taken", 4)
    assert not results.has("cpu-taken", 2)
