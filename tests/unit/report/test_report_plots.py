"""Plot geometry: ticks, thinning, labels, and the layout of timeline and lanes."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_report_samples import T0, hang, rdma
from test_report_samples_more import healthy, killed

from trackwalker.diagnose.views.story import Lane, Mark, Phase, StepPoint, Story
from trackwalker.report.charts import host_lanes as lanes
from trackwalker.report.charts import throughput_timeline as timeline
from trackwalker.report.charts.axis import time_scale
from trackwalker.report.charts.plots import (
    Label,
    Scale,
    area_path,
    line_path,
    nice_step,
    place_labels,
    px,
    short,
    thin,
    time_ticks,
    value_ticks,
)


def test_scale_and_paths() -> None:
    scale = Scale(10, 20, 100, 0)
    assert (scale(10), scale(15), scale(99)) == (100, 50, 0)
    assert Scale(5, 5, 0, 100)(5) == 0
    assert (px(1.0), px(1.26), px(-0.01)) == ("1", "1.3", "0")
    assert line_path([(0, 1), (2, 3)]) == "M0 1L2 3"
    assert area_path([(0, 1), (2, 3)], 9) == "M0 1L2 3L2 9L0 9Z"
    assert area_path([], 9) == ""


def test_value_ticks_are_round() -> None:
    assert [tick.label for tick in value_ticks(0, 50)] == ["0", "10", "20", "30", "40", "50"]
    assert [tick.label for tick in value_ticks(1.93, 2.41)] == ["2.0", "2.1", "2.2", "2.3", "2.4"]
    assert [tick.label for tick in value_ticks(0, 41233)] == ["0", "10k", "20k", "30k", "40k"]
    assert value_ticks(5, 5) == []
    assert value_ticks(0, math.inf) == []
    assert nice_step(1, 5) == pytest.approx(0.2)
    assert (short(0.05), short(1234), short(2.5e6)) == ("0.05", "1,234", "2.5M")


@pytest.mark.parametrize(
    ("span", "first", "sub"),
    [
        (8, "18:00:00", "Feb 24"),
        (1800, "18:00", "Feb 24"),
        (4 * 3600, "18:00", "Feb 24"),
        (40 * 86400, "Feb 26", "2026"),
    ],
)
def test_time_ticks_are_round_in_utc(span: float, first: str, sub: str) -> None:
    ticks = time_ticks(T0, T0 + span)
    assert (ticks[0].label, ticks[0].sub) == (first, sub)
    assert 3 <= len(ticks) <= 11


def test_date_stands_where_it_changes() -> None:
    ticks = time_ticks(T0, T0 + 12 * 3600)
    assert [tick.sub for tick in ticks if tick.sub] == ["Feb 24", "Feb 25"]
    assert time_ticks(T0, T0) == []
    assert time_ticks(0, 253402300799)


def test_thin_keeps_the_extremes() -> None:
    values = [math.sin(i / 50) for i in range(50_000)]
    values[31_337], values[4_242] = 99.0, -99.0
    kept = thin(values, 2000)
    assert len(kept) <= 2000
    assert {0, 4_242, 31_337, 49_999} <= set(kept)
    assert kept == sorted(kept)
    assert thin([1.0, 2.0], 10) == [0, 1]


@given(st.lists(st.tuples(st.floats(0, 900), st.floats(20, 300)), max_size=14))
@settings(max_examples=60, deadline=None)
def test_placed_labels_never_overlap(wanted: list[tuple[float, float]]) -> None:
    labels = [Label(x, width) for x, width in wanted]
    boxes = []
    for label, place in zip(labels, place_labels(labels, 0, 900, 4), strict=True):
        if place is not None:
            start = label.x - 6 - label.width if place.left else label.x + 6
            assert 0 <= start <= start + label.width <= 900
            boxes.append((place.row, start, start + label.width, label.x))
    for (row, a, b, x), (other, c, d, y) in combinations(boxes, 2):
        assert row != other or b < c or d < a
        assert not (other > row and a < y < b)  # no stem through a text
        assert not (row > other and c < x < d)


def test_close_flags_find_rows_and_one_alone_stays_low() -> None:
    assert [p and p.row for p in place_labels([Label(40, 80), Label(50, 80)], 0, 900, 4)] == [1, 0]
    assert [p and p.left for p in place_labels([Label(890, 80)], 0, 900, 4)] == [True]
    assert place_labels([Label(100, 2000)], 0, 900, 4) == [None]


def test_hang_shows_the_silence() -> None:
    _, story = hang()
    drawn = timeline.build(story)
    assert drawn.silences[-1].label == "no step completed for 10 min 10 s"
    assert any("no step completed" in note for note in drawn.caption)
    assert [flag.text for flag in drawn.flags] == ["onset: dataloader-hang on box-r2"]


def test_a_long_step_is_not_a_silence_and_a_hole_is() -> None:
    slow = [StepPoint(i, T0 + 10 * i + (300 if i >= 50 else 0), 310.0 if i == 50 else 10.0) for i in range(100)]
    assert timeline.build(Story(tuple(slow), start=T0, end=T0 + 1290)).silences == ()
    hole = [StepPoint(i, T0 + 10 * i + (300 if i >= 50 else 0), 10.0) for i in range(100)]
    drawn = timeline.build(Story(tuple(hole), start=T0, end=T0 + 1290))
    assert len(drawn.silences) == 1
    assert drawn.path.count("M") == 2  # no line across it


def test_spikes_do_not_flatten_a_slowdown() -> None:
    _, story = rdma()
    lo, hi = timeline.value_range(list(story.steps), [39.0, 49.0], True)
    assert 25 < lo < 39 < 49 < hi < 60
    _, calm = healthy()
    drawn = timeline.build(calm)
    assert len(drawn.over) == 1  # the compilation; the saves are in the picture
    assert "142.8 s" in " ".join(drawn.caption)


def test_all_flags_of_a_killed_rank_are_named() -> None:
    _, story = killed()
    texts = {flag.text for flag in timeline.build(story).flags}
    assert "exit: rank 5 killed, signal 9" in texts
    assert "rank 0 exit 134 and 6 more" in texts
    assert "" not in texts


def test_lanes_order_gap_and_early_end() -> None:
    _, story = rdma()
    drawn = lanes.build(story)
    assert [row.host for row in drawn.rows[:3]] == ["chi2822", "chi2827", "chi2810"]
    assert [row.host for row in drawn.rows if row.gaps] == ["chi2815"]
    _, story = killed()
    rows = lanes.build(story).rows
    assert rows[0].label == "gpu-node-05"  # the shared domain is left out
    assert rows[0].ends.startswith("data ends 18:25")
    assert float(rows[0].width) < float(rows[1].width)


def test_a_patchy_lane_is_hatched_as_one_stretch() -> None:
    runs = [[(float(2 * i), 1.0)] for i in range(100)]
    assert lanes.join_patches(runs[:5], 8) == (runs[:5], [(0, 2), (2, 4), (4, 6), (6, 8)])
    joined, gaps = lanes.join_patches(runs, 8)
    assert gaps == [(0, 198)]
    assert [len(run) for run in joined] == [1, 98, 1]  # every sample is still drawn
    long = [*runs[:50], [(99.0 + i, 1.0) for i in range(20)], *([(t + 30, 1.0) for t, _ in run] for run in runs[50:])]
    joined, gaps = lanes.join_patches(long, 8)
    assert gaps == [(0, 99), (118, 228)]
    assert sum(len(run) for run in joined) == 120


def test_many_lanes_are_cut_and_counted() -> None:
    times = tuple(T0 + 30 * i for i in range(40))
    made = [Lane(f"n{i:03d}", i == 70, times, tuple(float(i % 3) for _ in times)) for i in range(200)]
    made[5] = Lane("n005", False, times, tuple(50.0 for _ in times))
    made[9] = Lane("n009", False, times[:10], tuple(1.0 for _ in times[:10]))
    drawn = lanes.build(Story(lanes=tuple(made), start=T0, end=T0 + 1200))
    assert len(drawn.rows) == 17
    assert drawn.rows[0].host == "n070"
    assert {"n005", "n009"} <= {row.host for row in drawn.rows}
    assert "17 of 200 hosts are shown" in drawn.caption[-1]
    assert "183 are hidden" in drawn.caption[-1]


def test_hosts_by_address_keep_their_numbers() -> None:
    assert lanes.common_domain(["10.0.1.7", "10.0.2.7"]) == ""
    assert lanes.common_domain(["a.x.org", "b.x.org"]) == ".x.org"
    assert lanes.common_domain(["a.x.org"]) == ""


ODD = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(T0, T0 + 4000), st.just(0.0), st.just(1e308))


@given(
    st.lists(st.tuples(ODD, ODD), max_size=6),
    st.lists(st.tuples(ODD, st.one_of(st.none(), ODD)), max_size=8),
    st.one_of(st.none(), ODD),
    st.one_of(st.none(), ODD),
)
@settings(max_examples=80, deadline=None)
def test_odd_numbers_never_reach_the_drawing(
    steps: list[tuple[float, float]], lane: list[tuple[float, float | None]], start: float | None, end: float | None
) -> None:
    story = Story(
        steps=tuple(StepPoint(i, t, s) for i, (t, s) in enumerate(steps)),
        phases=tuple(Phase(0, 1, t, s, s, True) for t, s in steps),
        marks=tuple(Mark(t, "onset", "") for t, _ in steps),
        lanes=(Lane("h", True, tuple(t for t, _ in lane), tuple(v for _, v in lane)), Lane("empty", False)),
        start=start,
        end=end,
    )
    text = repr((timeline.build(story), lanes.build(story))).split("shown=")[0]
    assert "nan" not in text.replace("nanosecond", "")
    assert "inf" not in text
    assert time_scale(story) is None or time_scale(story).hi - time_scale(story).lo >= 1


@pytest.mark.parametrize(
    ("story", "says"),
    [
        (Story(), "No step with a known time"),
        (
            Story(steps=(StepPoint(0, T0, 2.0),), start=T0 - 10, end=T0 + 730),
            "No step completed in the 12 min 10 s after it",
        ),
        (Story(steps=(StepPoint(0, T0, 0.1), StepPoint(1, T0, 0.1))), "less than a second"),
        (Story(steps=(StepPoint(0, math.nan, 1), StepPoint(1, T0, math.inf))), "No step with a known time"),
    ],
)
def test_nothing_to_draw_is_a_sentence(story: Story, says: str) -> None:
    assert says in timeline.build(story).sentence
    assert "no host lanes" in lanes.build(story).sentence
