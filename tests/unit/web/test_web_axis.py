"""What the time axis of a job page is made of: windows, ranges, onsets in order, hosts in few words, line times."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fleet_workspace import make_run

from trackwalker.diagnose.case import open_case
from trackwalker.diagnose.verdict import Cause, Cost, JobRef, Onset, Verdict, Window
from trackwalker.diagnose.views.story import StepPoint, Story
from trackwalker.job.layout import Job
from trackwalker.logs.scanning.window import OpenLog
from trackwalker.perf.analysis.fixes import fixes_for
from trackwalker.perf.analysis.result import Bucket, JobPart, OpRow, PerfReport, TracePart
from trackwalker.report.charts.plots import course_range
from trackwalker.report.ranges import collapse, places, shortened
from trackwalker.report.view import in_order
from trackwalker.web.data.course import first_of, tracks
from trackwalker.web.data.heat import name_of, selector
from trackwalker.web.data.pace import Pace, duration_text
from trackwalker.web.data.query import unpinned
from trackwalker.web.logs.log_search import Needle, count
from trackwalker.web.logs.log_times import _levels, times_of
from trackwalker.web.pages.render import timed

pytestmark = pytest.mark.unit


def test_a_window_follows_the_zoom_and_holds_the_samples_it_needs() -> None:
    close, far = Pace(step=1.0, every=15.0), Pace(step=120.0, every=15.0)
    assert close.window(counter=False) == pytest.approx(22.5)
    assert close.window(counter=True) == pytest.approx(33.0)
    assert far.window(counter=True) == 120.0
    assert (duration_text(33.0), duration_text(0.75)) == ("33s", "750ms")


def test_a_query_over_time_asks_with_windows_that_follow_the_zoom_and_once() -> None:
    pinned = "sum by (host) (rate(x_total[895s] @ 17.5))"
    assert unpinned(pinned) == "sum by (host) (rate(x_total[$__rate_interval]))"
    twice = f'{pinned} or label_replace({pinned.replace("17.5", "12")}, "window", "fast", "", "")'
    assert unpinned(twice) == unpinned(pinned)
    assert unpinned("max_over_time(rate(x[1m])[1h:5m])").endswith("[1h:5m])")  # a subquery is its own


def test_a_metric_may_be_narrowed_down_by_plain_matchers_only() -> None:
    assert name_of('hw_gpu_clock_mhz{type="sclk"}') == "hw_gpu_clock_mhz"
    assert selector('hw_gpu_clock_mhz{type="sclk"}', host="a") == 'hw_gpu_clock_mhz{type="sclk",host="a"}'
    evil = 'up{a="b"} or vector(1){c="d"}'
    assert name_of(evil) == evil  # no metric has that name, so it is refused


def test_a_chart_ranges_over_all_but_strays_and_from_zero_where_that_is_near() -> None:
    low, high = course_range([3300.0 + i % 7 for i in range(200)] + [80_000.0])
    assert low > 2000
    assert high < 5000
    assert course_range([1.0, 2.0, 3.0] * 30)[0] == 0.0
    assert course_range([0.003] * 90 + [0.0003], from_zero=True)[0] == 0.0
    assert course_range([]) == (0.0, 1.0)


def test_tracks_say_what_their_axis_does_not_show_and_break_where_nothing_moved() -> None:
    steps = [StepPoint(i, 100.0 * i + 100, 10.0 if i != 7 else 90.0, 3000.0 + i) for i in range(20)]
    silent = [(710.0, 790.0)]
    made = {track.key: track for track in tracks(steps, [], silent, None)}
    assert "not at zero" in made["tgs"].note
    assert None in made["tgs"].lines[0][1]
    assert "One step lies above it" in made["seconds"].note
    assert all(t2 > t1 for t1, t2 in zip(made["tgs"].times, made["tgs"].times[1:], strict=False))


def verdict(*causes: Cause) -> Verdict:
    return Verdict(
        job=JobRef(id="1", dir="."), window=Window(), status="completed", outcome="incident", summary="s",
        causes=list(causes), cost=Cost(seconds=0.0, queries=0, bytes_read=0),
    )  # fmt: skip


def cause(name: str, role: Any, time: str, **more: Any) -> Cause:
    return Cause(cause=name, role=role, confidence=0.9, onset=Onset(time=time, step=more.get("step")), evidence=[])


def test_the_verdict_chooses_what_is_shown_first() -> None:
    found = verdict(cause("loss-divergence", "root", "2026-06-01T08:00:00Z"))
    assert first_of(found, ["tgs", "seconds", "loss"])[0] == "loss"
    assert first_of(found, ["tgs", "seconds"])[0] == "tgs"  # no loss was told
    assert first_of(None, ["tgs"]) == ("tgs", "")


def test_a_root_begins_no_later_than_its_consequence() -> None:
    root = cause("rdma-degradation", "root", "2026-06-01T08:05:00Z", step=40)
    effect = cause("peer-died", "consequence", "2026-06-01T08:03:00Z", step=30)
    moved = in_order(verdict(root, effect)).roots[0].onset
    assert moved is not None
    assert (moved.time, moved.step, moved.uncertainty_s) == ("2026-06-01T08:03:00Z", 30, 120.0)
    first = cause("gpu-power-cap", "root", "2026-06-01T08:00:00Z")
    assert in_order(verdict(first, root, effect)).causes[1].onset == root.onset  # the other root came before it


def test_many_hosts_are_counted_and_in_ranges() -> None:
    assert collapse(["n003", "n001", "n002", "x9"]) == ["n[001-003]", "x9"]
    devices = [f"gpu-{n}/ionic_{d}" for n in (1, 2) for d in range(8)]
    assert places(devices) == "16 devices on 2 hosts (gpu-[1-2]/ionic_[0-7])"
    assert places(["a1", "b2"]) == "a1, b2"
    assert shortened("n1, n2, n3, n4, n5 are slow") == "5 hosts (n[1-5]) are slow"
    assert shortened("steps 1, 2, 3, 4, 5 are slow") == "steps 1, 2, 3, 4, 5 are slow"


def test_utc_moments_of_a_sentence_become_times_and_all_else_stays_text() -> None:
    made = str(timed("<b> since 2026-06-01 08:00:00 UTC, step 4"))
    assert '<time datetime="2026-06-01T08:00:00Z">' in made
    assert made.startswith("&lt;b&gt;")
    assert str(timed("CANCELLED AT 2026-06-01T08:00:00")) == "CANCELLED AT 2026-06-01T08:00:00"  # nobody's zone


def test_a_moment_leads_to_the_line_of_its_step() -> None:
    index = SimpleNamespace(steps=SimpleNamespace(step=np.array([0, 1, 2]), line=np.array([10, 20, 30])))
    record = SimpleNamespace(timeline=None, index=index, clock=SimpleNamespace(start=0.0))
    story = Story(steps=tuple(StepPoint(i, 100.0 * (i + 1), 100.0) for i in range(3)), start=0.0, end=400.0)
    found = times_of(SimpleNamespace(record=record), story)  # type: ignore[arg-type]
    assert found.line_at(200.0) == 20
    assert found.line_at(250.0) == 25
    assert found.time_of(np.array([30.0]))[0] == pytest.approx(300.0)
    assert math.isclose(found.line_at(1e9), 30)


def test_each_line_of_a_log_counts_once_as_what_it_calls_itself() -> None:
    said = (
        b"all fine",
        b"E0224 19:10:20.1 7 a.cc:1] ERROR: Error: lost",
        b"3: WARNING: slow",
        b"SIGNAL",
        b"ValueError: no",
    )
    raw = b"".join(line + b"\n" for line in said)
    ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == 10)
    errors, warnings = _levels(raw + b"ERROR: a line without an end", ends)
    assert (errors.tolist(), warnings.tolist()) == ([1, 4], [2])


def test_hits_are_counted_across_blocks(tmp_path: Any) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * ((1 << 20) - 2) + b"needle\n" + b"no\nNeedle\n")
    with OpenLog(path) as log:
        assert count(log, Needle("needle"), (1 << 20) - 2, 5.0).number == 1
        found = count(log, Needle("needle"), log.size, 5.0)
    assert (found.number, found.total, found.whole) == (2, 2, True)


def test_copies_within_the_device_blame_no_host() -> None:
    def fixes(kind: str) -> set[str]:
        buckets = [Bucket(name="copy", seconds=0.1, share=0.1)]
        part = TracePart(steps=3, step_s=1.0, buckets=buckets, kinds=[OpRow(name=kind, share=0.1)])
        return {fix.rule for fix in fixes_for(PerfReport(job=JobPart(id="1", name="x", dir=""), trace=part))}

    assert fixes("copy-d2d") & {"device-copies", "exposed-copies"} == {"device-copies"}
    assert fixes("copy-h2d") & {"device-copies", "exposed-copies"} == {"exposed-copies"}


def test_a_run_does_not_end_before_its_last_step_whatever_its_summary_says(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "outputs", "1", ["n1"], last=90)
    log = next((tmp_path / "outputs").glob("1-*.log"))
    log.write_text(re.sub(r"Wall: .*", "Wall:   0h 5m 0s", log.read_text()))
    with open_case(Job("1", log, folder)) as case:
        assert case.timeline is not None
        assert case.end == case.timeline.last_end
