"""A verdict on the job page: every claim links to what gives it back, every advice is a command safe to copy."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from triage_logs import ending, header, steps
from web_client import accusing

from trackwalker.diagnose.triage import triage
from trackwalker.diagnose.verdict import Action, Cause, Evidence, RuledOut, Verdict
from trackwalker.diagnose.views.story import Mark, Phase, StepPoint, Story
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.scrub import Scrubber
from trackwalker.telemetry.client import QueryError
from trackwalker.web.data import query, series
from trackwalker.web.data.job_data import (
    commands,
    cost_view,
    events_view,
    evidence_links,
    run_view,
    telling_metrics,
    triage_view,
    verdict_view,
)

JOB = Job("8308", None, None, metrics=Path(__file__).parent)
PINNED = "sum by (host) (rate(hw_rdma_tx_retx_pkts_total[600s] @ 1780300800.000))"


def evidence(kind: str, source: str) -> Evidence:
    return Evidence.model_validate({"id": "e1", "kind": kind, "source": source, "says": "x"})


def test_a_number_links_to_its_query_at_its_moment_and_over_time() -> None:
    at_once, over_time = evidence_links(JOB, evidence("metric", PINNED))
    asked = parse_qs(urlsplit(at_once.url).query)
    assert urlsplit(at_once.url).path == "/job/8308/query"
    assert asked == {"q": [PINNED], "mode": ["instant"]}
    assert parse_qs(urlsplit(over_time.url).query) == {
        "q": ["sum by (host) (rate(hw_rdma_tx_retx_pkts_total[$__rate_interval]))"]  # its window follows the zoom
    }


def test_a_query_without_a_moment_links_once() -> None:
    assert len(evidence_links(JOB, evidence("metric", "max(up)"))) == 1
    gone = replace(JOB, metrics=None)  # nobody can ask a recording that is not there any more
    assert evidence_links(gone, evidence("metric", "max(up)")) == []


@pytest.mark.parametrize(
    ("kind", "source", "path", "asked"),
    [
        ("log", "8308-JAX-x.log:1204", "/job/8308/log", {"file": ["8308-JAX-x.log"], "line": ["1204"]}),
        ("log", "8308-JAX-x.log: Memstats lines", "/job/8308/log", {"file": ["8308-JAX-x.log"]}),
        ("progress", "progress.jsonl: step 12", "", {}),
        ("event", "events.jsonl kind=first-failure rank=3", "", {}),
    ],
    ids=["line", "kind-of-line", "progress", "event"],
)
def test_other_evidence_links_to_its_place(kind: str, source: str, path: str, asked: dict[str, list[str]]) -> None:
    (link,) = evidence_links(JOB, evidence(kind, source))
    assert urlsplit(link.url).path == path
    assert parse_qs(urlsplit(link.url).query) == asked
    assert path or link.url.startswith("#")


def test_the_metrics_that_a_verdict_rests_on_are_drawn_first() -> None:
    verdict = accusing("8308", "x")
    verdict.evidence[0].source = f"quantile_over_time(0.3, ({PINNED})[5m:1m])"
    assert telling_metrics(verdict) == ["hw_rdma_tx_retx_pkts_total"]


def test_advice_is_a_command_and_a_hostile_host_stays_one_word() -> None:
    verdict = accusing("8308", "x", host="n1;rm -rf ~")
    (advice,) = commands(JOB, verdict, None)
    words = shlex.split(advice.command)
    assert words[:2] == ["trackwalker", "submit"]
    assert words[-1] == "--exclude=n1;rm -rf ~"
    assert advice.approval


def test_draining_says_why() -> None:
    verdict = accusing("8308", "x")
    verdict.actions = [Action(do="drain-node", hosts=["n1", "n2"], why="y", risk="capacity", needs_approval=True)]
    (advice,) = commands(JOB, verdict, None)
    assert advice.command == ("scontrol update nodename=n1,n2 state=drain reason=rdma-degradation")


def test_what_was_ruled_out_says_why() -> None:
    verdict = accusing("8308", "x")
    verdict.ruled_out = [RuledOut(cause="gpu-thermal-throttle", evidence=["e1"])]
    shown = verdict_view(JOB, verdict, None)
    assert shown["ruled_out"][0][0] == "GPU thermal throttling (gpu-thermal-throttle)"
    assert shown["ruled_out"][0][2] == "node002 812/s"
    assert shown["culprits"] == ["node002"]
    assert [item.id for item, _ in shown["reasons"]] == ["e1"]


def test_a_verdict_without_evidence_is_shown_as_well() -> None:
    verdict: Verdict = accusing("8308", "x")
    verdict.evidence, verdict.causes = [], [Cause(cause="c", role="root", confidence=0.5, evidence=["e9"])]
    assert verdict_view(JOB, verdict, None)["reasons"] == []


def test_what_an_incident_cost_is_unknown_without_gpus_and_priced_with_a_price(tmp_path: Path) -> None:
    log = tmp_path / "77-JAX-toy.log"
    log.write_text(header(2, steps=60) + steps(39, 2) + steps(59, 2, first=40, seconds=20.0) + ending(0))
    seen = triage(Job("77", log, None), sacct={})
    seen.goodput.gpus = None
    assert cost_view(seen, None, 2.0)["lost_gpu_h"] is None
    told = cost_view(seen, accusing("77", "x"), 2.0)
    assert told["lost_h"] > 0
    assert told["lost_gpu_h"] == pytest.approx(16 * told["lost_h"])
    assert told["lost_money"] == pytest.approx(2.0 * told["lost_gpu_h"])
    assert triage_view(Job("77", log, None), seen)["summary"]


def test_a_run_record_is_shown_without_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"model": "x", "env": {"HF_TOKEN": {"value": "hf_abcdefghijklmnopqrst"}}}')
    shown = run_view(Job("77", None, tmp_path), Scrubber())
    assert "hf_abc" not in shown["text"]
    assert ("model", "x") in shown["facts"]


@pytest.mark.parametrize("text", ["{", ""], ids=["cut", "empty"])
def test_a_damaged_run_record_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert "damaged" in run_view(Job("77", None, tmp_path), Scrubber())["why"]


def test_events_are_rows_of_plain_text(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        '{"v":1,"t":20.5,"kind":"rank-exit","host":"n1","rank":3,"data":{"exit":1,"cause":"<b>\\u001b[31m"}}\n'
        '{"v":1,"t":10,"kind":"run-begin"}\nnot json\n'
    )
    shown = events_view(Job("77", None, tmp_path))
    assert [row["kind"] for row in shown["rows"]] == ["run-begin", "rank-exit"]
    assert shown["rows"][1]["says"] == "exit 1, cause <b>"
    assert shown["damaged"] == 1


def test_the_timeline_keeps_onsets_when_there_are_too_many_checkpoints() -> None:
    saves = [Mark(1000.0 + i, "checkpoint", f"checkpoint {i}") for i in range(900)]
    story = Story(
        steps=(StepPoint(1, 1000.0, 2.0, 10.0), StepPoint(2, 1000.0, 2.0), StepPoint(3, float("nan"), 2.0)),
        phases=(Phase(1, 2, 1000.0, 1002.0, 2.0, True),),
        marks=(*saves, Mark(1800.0, "onset", "rdma-degradation", "n1")),
    )
    told = series.told(story)
    assert len(told["marks"]) == series.MOST_MARKS
    assert [m["kind"] for m in told["marks"]].count("onset") == 1
    assert told["times"] == [1000.0]
    assert told["tgs"] == [10.0]


class _Open:
    """An open database in which nothing was asked yet."""

    def range(self) -> tuple[float, float]:
        return 0.0, 100.0

    def metrics(self) -> frozenset[str]:
        return frozenset({"up"})


@pytest.mark.parametrize("text", ["", "   ", "x" * 5000], ids=["empty", "blank", "endless"])
def test_a_question_that_is_none_is_refused_before_prometheus_is_asked(text: str) -> None:
    with pytest.raises(UsageError):
        query.plan(_Open(), query.Question(text))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (b'{"status":"error","errorType":"bad_data","error":"parse error"}', QueryError, "parse error"),
        (b'{"status":"error","errorType":"timeout","error":"query timed out"}', UsageError, "stopped after"),
        (b'{"status":"error","errorType":"execution","error":"too many samples"}', UsageError, "too many samples"),
    ],
    ids=["syntax", "time", "samples"],
)
def test_what_prometheus_refuses_is_told_in_plain_words(body: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        query._data(body)
