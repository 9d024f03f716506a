"""The report file: the whole story of a job in one small page, whatever its size and whatever its logs hold."""

from __future__ import annotations

import base64
import html
import json
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from test_report_html import Page
from test_report_samples import T0, hang, rdma, verdict_of

from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.story import Lane, Mark, StepPoint, Story
from trackwalker.job.layout import Job
from trackwalker.job.scrub import Scrubber
from trackwalker.record.goodput import Goodput, Part
from trackwalker.report.charts import axis
from trackwalker.report.html import content_policy, render_html
from trackwalker.report.story import heat as story_heat
from trackwalker.report.story import overlay as story_overlay
from trackwalker.report.story.background import Background, Excerpt, background, excerpts, restarts_of
from trackwalker.report.story.cost import cost_of
from trackwalker.report.story.heat import COLUMNS, cells


def many(hosts: int, accused: int = 1, points: int = 240, steps: int = 10_000) -> Story:
    """A long run of many hosts; the last ones are twice as high from the middle on."""
    rng = np.random.default_rng(5)
    times = tuple(T0 + 60.0 * i for i in range(points))
    lanes = []
    for n in range(hosts):
        bad = n >= hosts - accused
        level = np.where(np.arange(points) > points // 2, 2.0, 1.0) if bad else np.ones(points)
        values = 100 * level + rng.normal(0, 1, points)
        lanes.append(Lane(f"node{n:04d}.cluster.example", bad, times, tuple(values.tolist())))
    end = times[-1]
    points_of = tuple(StepPoint(i, T0 + i * (end - T0) / steps, 1.0 + 0.01 * (i % 7), 900.0) for i in range(steps))
    marks = (Mark(T0 + 60.0 * points / 2, "onset", "rdma-degradation", None),)
    return Story(points_of, (), marks, tuple(lanes), "retransmits, 1/s", T0, end)


def pixels(uri: str) -> np.ndarray:
    """The palette index of every pixel of a picture."""
    data = base64.b64decode(uri.partition(",")[2])
    width, height = struct.unpack(">II", data[16:24])
    at = data.index(b"IDAT")
    size = struct.unpack(">I", data[at - 4 : at])[0]
    rows = np.frombuffer(zlib.decompress(data[at + 4 : at + 4 + size]), np.uint8).reshape(height, width + 1)
    return rows[:, 1:]


def test_two_thousand_hosts_and_ten_thousand_steps_stay_below_three_megabytes() -> None:
    lines = tuple((n, "<&" * 120, n == 3) for n in range(7))
    verdict = verdict_of(
        evidence=[
            {"id": f"e{n}", "kind": "log", "source": f"x.log:{n}", "says": "<" * 4000, "values": {}} for n in range(300)
        ],
        causes=[
            {
                "cause": "rdma-degradation",
                "role": "root",
                "confidence": 0.9,
                "hosts": [f"node{n:04d}" for n in range(900)],
            }
        ],
        data_quality=[
            {"check": f"c{n}", "ok": n % 2 == 0, "hosts": [f"node{i}" for i in range(2000)]} for n in range(40)
        ],
    )
    more = Background(excerpts={f"e{n}": Excerpt("x.log", lines) for n in range(40)})
    text = render_html(verdict, many(2000, accused=9, points=120), more)
    assert len(text.encode()) < 3_000_000
    page = Page(text)
    assert len(page.values("id")) == len(set(page.values("id")))
    assert "1,960 others, 25 to a row" in text


def test_the_policy_names_the_style_and_allows_nothing_else() -> None:
    text = render_html(*rdma())
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(style) == 1
    policy = html.unescape(re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[0])
    assert policy == content_policy()
    assert "unsafe" not in policy
    assert "script-src" not in policy  # the default is nothing
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


def test_an_outlier_stays_visible_however_many_hosts_share_the_rows() -> None:
    story = many(1500, accused=0)
    odd = story.lanes[700]
    high = tuple(v + 500 if v is not None and i > 200 else v for i, v in enumerate(odd.values))
    lanes = [*story.lanes[:700], Lane(odd.host, False, odd.times, high), *story.lanes[701:]]
    heat = story_heat.build(Story(story.steps, (), story.marks, tuple(lanes), "m", story.start, story.end))
    assert heat.names[0].host == odd.host  # not accused, but furthest from the rest
    first = pixels(heat.strips[0].image)[0]
    assert (first[195:] == 31).all()  # the fullest orange
    assert (first[:180] < 24).all()
    assert heat.shared is not None
    assert len(heat.names) == 40
    assert heat.table[0][0] == odd.host


def test_the_noise_of_healthy_hosts_has_no_colour() -> None:
    heat = story_heat.build(many(40, accused=0))
    assert (pixels(heat.strips[0].image) == 16).mean() > 0.999  # the clear one in the middle of the palette


def test_the_accused_come_first_and_a_gap_is_not_a_value() -> None:
    story = many(6, accused=1)
    lane = story.lanes[0]
    gap = Lane(lane.host, False, lane.times, tuple(None if 60 <= i < 120 else v for i, v in enumerate(lane.values)))
    heat = story_heat.build(Story(story.steps, (), story.marks, (gap, *story.lanes[1:]), "m", story.start, story.end))
    assert heat.names[0].accused
    assert heat.names[0].label == "node0005"
    assert [name.accused for name in heat.names].count(True) == 1
    row = pixels(heat.strips[0].image)[[name.label for name in heat.names].index("node0000")]
    assert (row[60:108] == 0).all()  # grey: not recorded
    assert (row[120:] != 0).all()


def test_a_few_samples_fill_the_columns_between_them_and_no_more() -> None:
    x = axis.time_scale(Story(start=T0, end=T0 + 1000.0))
    assert x is not None
    times = (*(T0 + 10.0 * i for i in range(20)), *(T0 + 10.0 * i for i in range(60, 100)))
    row = cells([Lane("a", False, times, tuple(float(i) for i in range(60)))], x)[0]
    there = np.isfinite(row)
    assert there[: 19 * COLUMNS // 100].all()
    assert not there[COLUMNS // 4 : COLUMNS // 2].any()
    assert there[61 * COLUMNS // 100 :].all()


@pytest.mark.parametrize(
    "story",
    [
        Story(),
        Story(lanes=(Lane("a", True, (T0,), (1.0,)),), start=T0, end=T0 + 60),
        Story(lanes=(Lane("a", True), Lane("b", False)), start=T0, end=T0 + 60),
        Story(
            lanes=(Lane("a", True, (T0, T0 + 9), (None, float("nan"))), Lane("b", False, (T0,), (float("inf"),))),
            start=T0,
            end=T0 + 60,
        ),
    ],
    ids=["nothing", "one-host", "no-samples", "no-values"],
)
def test_what_cannot_be_drawn_is_one_sentence(story: Story) -> None:
    assert story_heat.build(story).sentence
    assert story_overlay.build(story).sentence
    Page(render_html(hang()[0], story))


def test_the_accused_are_drawn_over_the_band_of_the_others() -> None:
    drawn = story_overlay.build(many(50, accused=8))
    assert len(drawn.lines) == 6
    assert "6 of 8 suspect hosts" in drawn.caption[1]
    assert "42 other hosts" in drawn.caption[0]
    assert drawn.band.startswith("M")
    late = drawn.table[-1]
    assert float(late[1]) > 1.8 * float(late[-2])  # the accused against the others' median


def test_a_hole_in_everybodys_recording_breaks_the_band() -> None:
    story = many(5)
    hole = tuple(
        Lane(
            lane.host, lane.accused, lane.times, tuple(None if 90 <= i < 130 else v for i, v in enumerate(lane.values))
        )
        for lane in story.lanes
    )
    drawn = story_overlay.build(Story(story.steps, (), story.marks, hole, "m", story.start, story.end))
    assert drawn.median.count("M") == 2
    assert drawn.band.count("Z") == 2


def job_with_log(root: Path) -> Job:
    folder = root / "7-JAX-toy"
    (folder / "ranks").mkdir(parents=True)
    log = root / "7-JAX-toy.log"
    log.write_text("".join(f"{n % 2}: line {n}\n" for n in range(1, 101)))
    (folder / "ranks" / "1.log").write_bytes(
        b"a\n<script>alert(1)</script> \x1b[31mred HF_TOKEN=hf_abcdefghijklmnopqrst\nc\n"
    )
    return Job("7", log, folder)


def test_excerpts_are_the_lines_around_the_cited_one_without_secrets(tmp_path: Path) -> None:
    job = job_with_log(tmp_path)
    sources = [
        "7-JAX-toy.log:50",
        "ranks/1.log:2",
        "../7-JAX-toy.log:3",
        "7-JAX-toy.log: all",
        "gone.log:1",
        "x:99999999",
    ]
    evidence = [{"id": f"e{n}", "kind": "log", "source": s, "says": "x"} for n, s in enumerate(sources)]
    found = excerpts(job, verdict_of(evidence=evidence), Scrubber())
    assert set(found) == {"e0", "e1"}
    assert [n for n, _, _ in found["e0"].rows] == list(range(47, 54))
    assert [(n, text) for n, text, cited in found["e0"].rows if cited] == [(50, "0: line 50")]
    assert found["e1"].rows[1][1] == "<script>alert(1)</script> red HF_TOKEN=***"


def test_a_report_without_its_job_directory_is_still_a_report(tmp_path: Path) -> None:
    gone = Job("7", tmp_path / "7-JAX-toy.log", tmp_path / "7-JAX-toy")
    more = background(gone, hang()[0], [gone])
    assert more.excerpts == {}
    assert more.cost is None
    assert "There is no" not in Page(render_html(*hang(), more)).values("title")


def test_secrets_of_a_quoted_line_do_not_reach_the_page(tmp_path: Path) -> None:
    job = job_with_log(tmp_path)
    assert job.log is not None
    job.log.write_text("0: WANDB_API_KEY=0123456789abcdefghij\n" + job.log.read_text())
    verdict = verdict_of(
        evidence=[
            {"id": "e1", "kind": "log", "source": "7-JAX-toy.log:1", "says": "login with 0123456789abcdefghij failed"}
        ],
        causes=[{"cause": "c", "role": "root", "confidence": 0.5, "evidence": ["e1"]}],
    )
    text = render_html(verdict, Story(), background(job, verdict))
    assert "0123456789abcdefghij" not in text
    assert "login with *** failed" in text
    assert "WANDB_API_KEY=***" in text


def test_cost_counts_what_was_lost_and_says_when_gpus_are_unknown() -> None:
    parts = [
        Part("train", 3600.0, 0.5, None),
        Part("slowdown", 1800.0, 0.25, None),
        Part("stalled", 1800.0, 0.25, None),
    ]
    verdict = verdict_of(job={"id": "7", "dir": "x", "nodes": 2, "gpus": 16})
    cost = cost_of(Goodput(7200.0, None, "", 0.5, parts), verdict)
    assert cost.says == (
        "Slowdown, stalls and lost work took 1 h, 16 GPU-hours of 16 GPUs. "
        "50.0 % of the wall time is training that was kept."
    )
    assert [row[0] for row in cost.rows if row[4]] == ["slowdown", "stalled"]
    unknown = cost_of(Goodput(7200.0, None, "", 0.5, parts), verdict_of(job={"id": "7", "dir": "x"}))
    assert "how many GPUs it held is not known" in unknown.says
    assert "not known" in cost_of(Goodput(), verdict).says


def test_restarts_stand_on_the_timeline(tmp_path: Path) -> None:
    job = job_with_log(tmp_path)
    assert job.dir is not None
    verdict, story = rdma()
    events = [{"v": 1, "t": t, "kind": "attempt-begin", "data": {}} for t in (T0, T0 + 3000.0)]
    (job.dir / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    marks = restarts_of(job)
    assert [(m.time, m.kind, m.label) for m in marks] == [(T0 + 3000.0, "restart", "attempt 2 begins")]
    text = render_html(verdict, story, Background(restarts=tuple(marks)))
    assert "restart: attempt 2 begins" in text
    assert 'class="flag restart"' in text


def test_settings_are_compared_with_the_run_before_of_the_same_name(tmp_path: Path) -> None:
    for job_id, batch in (("6", "8"), ("7", "12")):
        lines = ["0: Config param per_device_batch_size: " + batch, "0: completed step: 0, seconds: 1.0"]
        (tmp_path / f"{job_id}-JAX-toy.log").write_text("\n".join(lines) + "\n")
    jobs = [Job(i, tmp_path / f"{i}-JAX-toy.log", None) for i in ("7", "6")]
    verdict: Verdict = hang()[0]
    more = background(jobs[0], verdict, jobs)
    assert more.reference == "6-JAX-toy.log"
    assert [(c.name, c.a, c.b) for c in more.changes] == [("per_device_batch_size", "8", "12")]
    text = html.unescape(render_html(verdict, Story(), more))
    assert "Against job 6-JAX-toy.log" in text
    assert "explains speed" in text
