"""What an agent reads of a verdict: the strongest first, how much is shown, what speaks against it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import HEADER, make_job, step_line

from trackwalker.agent.answers import plain_size
from trackwalker.agent.verdicts import BRIEF, by_deviation, cited, verdict_answer
from trackwalker.cli.answers.diagnose import diagnose as diagnose_command
from trackwalker.diagnose.causes.examine import Examination, TestResult
from trackwalker.diagnose.causes.playbook import Playbook, Test
from trackwalker.diagnose.verdict import Cause, Cost, DataQuality, Evidence, JobRef, RuledOut, Verdict, Window
from trackwalker.diagnose.views.asked import Asked
from trackwalker.errors import UsageError
from trackwalker.report.markdown import markdown

HOSTS = [f"n{i:02d}" for i in range(24)]


def verdict(**parts: object) -> Verdict:
    held = {"summary": "x", "status": "completed", "outcome": "incident", **parts}
    cost = Cost(seconds=0, queries=0, bytes_read=0)
    return Verdict(job=JobRef(id="1", dir=""), window=Window(), cost=cost, **held)  # type: ignore[arg-type]


def question(name: str, role: str, detector: str | None = "outliers", fact: str | None = None) -> Test:
    metric = {"query": f"sum by (host) ({name})", "metrics": [name], "says": "x", "detector": detector}
    return Test(id=name, role=role, **({"fact": fact} if fact else metric))  # type: ignore[arg-type]


def test_values_that_differ_most_come_first_whatever_their_names() -> None:
    values = dict.fromkeys(HOSTS, 1.0) | {"n23": 9.0, "n11": -4.0}
    assert [name for name, _ in by_deviation(values)][:3] == ["n23", "n11", "n00"]
    shown = cited(Evidence(id="e1", kind="metric", source="q", says="s", values=values))
    assert list(shown.values or {})[:2] == ["n23", "n11"]
    assert shown.values_shown == "16 of 24"


def test_between_two_windows_the_change_counts_and_the_partner_follows() -> None:
    values = {"n1": 100.0, "n1/fast": 100.0, "n2": 9.0, "n2/fast": 1.0, "n3": 5.0, "n3/fast": 5.0}
    assert [name for name, _ in by_deviation(values)][:2] == ["n2", "n2/fast"]  # n1 is the largest and did not change


def test_failed_support_speaks_against_a_cause_and_uncovered_hosts_are_named() -> None:
    book = Playbook(id="hot", title="t", symptoms=["slow"], tests=[question("a", "require")], summary="s")
    required = TestResult(question("a", "require"), True, ["e1"], covered=set(HOSTS[:20]))
    support = TestResult(question("b", "support", "all-at-least"), False, ["e2"], covered=set(HOSTS))
    nobody = TestResult(question("d", "support", "outliers"), False, ["e2"])  # who finds no culprit says nothing
    unknown = TestResult(question("c", "support"), None)
    asked = Asked(
        [Examination(book, [required, support, nobody, unknown])], [], frozenset({"slow"}), HOSTS, {"whole": 60.0}
    )
    other = Examination(book.model_copy(update={"id": "cold"}), [TestResult(question("a", "require"), False, ["e1"])])
    other.results[0].covered = set(HOSTS[:22])
    asked = Asked([*asked.examinations, other], [], asked.symptoms, HOSTS, asked.windows, {"metrics": "2026-01-01"})
    found = verdict(
        causes=[Cause(cause="hot", role="root", confidence=0.9, evidence=["e1"])],
        ruled_out=[RuledOut(cause="cold", evidence=["e1"])],
        evidence=[
            Evidence(id="e1", kind="metric", source="q", says="warm"),
            Evidence(id="e2", kind="metric", source="q2", says="the fans are slow"),
        ],
    )
    shown = verdict_answer(found, asked, detail="brief")
    assert shown.causes[0].contradicts == ["b: the fans are slow"]
    assert shown.not_covered == {"cold": "n22, n23"}
    assert shown.evidence_ends == {"metrics": "2026-01-01"}
    rows = {r["test"]: r for r in asked.to_dict("1")["asked"][0]["tests"]}
    assert (rows["a"]["asked_of"], rows["a"]["not_covered"]) == ("20 of 24 hosts", HOSTS[20:])
    assert rows["c"]["answer"] == "unknown"
    assert rows["a"]["fires_when"] == "outliers"


def test_what_a_question_asked_of_a_fact_covers_is_not_called_uncovered() -> None:
    book = Playbook(id="x", title="t", symptoms=["slow"], tests=[question("a", "require", fact="stalled")], summary="")
    asked = Asked([Examination(book, [TestResult(book.tests[0], False)])], [], frozenset(), HOSTS)
    assert asked.not_covered("x") == []


def test_a_ticket_says_whether_the_evidence_is_to_be_trusted() -> None:
    bad = DataQuality(check="ghost-data", hosts=["n1"], ok=False, says="repeats old values")
    assert "ghost-data (n1): repeats old values" in markdown(verdict(data_quality=[bad]))
    well = DataQuality(check="ghost-data", ok=True)
    assert "All 1 checks of the evidence itself passed" in markdown(verdict(data_quality=[well]))


def test_the_command_prints_the_brief_verdict_and_the_questions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, log = make_job(tmp_path, "8308-JAX-a")
    log.write_text(
        "\n".join([*HEADER.splitlines(), *(f"0: {step_line(s)}" for s in range(60)), "0: ValueError: bad", ""])
    )
    assert diagnose_command(str(log), brief=True, as_json=True) == 0
    text = capsys.readouterr().out
    assert len(text.encode()) < 3_000
    assert json.loads(text)["job"] == "8308"
    assert diagnose_command(str(log), brief=True) == 0
    assert "outcome:" in capsys.readouterr().out
    assert diagnose_command(str(log), tests=True, as_json=True) == 0
    asked = json.loads(capsys.readouterr().out)
    assert asked["asked"]
    assert asked["not_asked"]["heartbeat-false-positive"].startswith("asked where there is heartbeat")
    with pytest.raises(UsageError, match="one of --brief"):
        diagnose_command(str(log), brief=True, tests=True)


def test_the_bound_of_the_brief_verdict_is_below_three_kilobytes() -> None:
    assert (
        plain_size(verdict_answer(verdict(summary="word " * 2000), Asked(), ["d" * 400] * 9, "brief")) <= BRIEF < 3000
    )
