"""Scoreboards: tune and test apart, tools beside each other, text that cannot break the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.scoring.recorded import below_recorded
from trackwalker.lab.scoring.results import CaseResult, Results, read_results
from trackwalker.lab.scoring.scoreboard import tables, to_html, to_markdown

HEALTHY = Truth(outcome="healthy")


def case(family: str = "f", split: str = "tune", right: bool = True, **more: object) -> CaseResult:
    said = {"status": "completed", "outcome": "healthy" if right else "incident"}
    g = grade(said, HEALTHY)
    about = {"tool": "ours", "group": "healthy", "seed": 1, "seconds": 1.0, **more}
    return CaseResult.model_validate(
        {"family": family, "split": split, "truth": HEALTHY, "grade": g, "passed": g.passed, **about}
    )


def results(*cases: CaseResult, suite: str = "full") -> Results:
    return Results(version="1", suite=[suite], cases=list(cases))


def test_a_results_file_comes_back(tmp_path: Path) -> None:
    held = results(case(), case(right=False))
    (tmp_path / "r.json").write_text(held.to_json())
    assert read_results(tmp_path / "r.json") == held
    assert '"schema": "trackwalker.lab.results/1"' in held.to_json()


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "trackwalker.lab.results/9"}', "[1]"])
def test_another_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match="not a results file"):
        read_results(tmp_path / "r.json")


def test_tuning_and_test_families_are_counted_apart() -> None:
    held = results(case("a"), case("b", "test", right=False), case("c", "test"))
    found = {t.title: {row[0]: row[1] for row in t.rows} for t in tables([held])}
    assert found["Totals: tune families"]["right in everything"].startswith("1/1 ")
    assert found["Totals: test families"]["right in everything"].startswith("1/2 ")
    assert found["Totals: test families"]["families right in every case"].startswith("1/2 ")


def test_tools_stand_beside_each_other_also_from_several_files() -> None:
    page = to_markdown([results(case()), results(case(tool="grep", right=False))])
    assert "|  | ours | grep |" in page
    assert "| right in everything | 1/1 (21-100 %) | 0/1 (0-79 %) |" in page


def test_derived_conditions_do_not_count_as_cases_of_their_own() -> None:
    held = results(case(), case(variant="clock-shift", right=False))
    found = {t.title: t for t in tables([held])}
    assert found["Totals: tune families"].rows[0][1].startswith("1/1 ")
    assert found["Other conditions: tune families"].rows == [["clock-shift", "tune", "0/1 (0-79 %)"]]


def test_what_a_tool_says_cannot_break_the_page() -> None:
    broken = case(right=False, error="<script>x</script> | a\n# b")
    markdown, page = to_markdown([results(broken)]), to_html([results(broken)])
    assert "<script>" not in markdown
    assert "\\| a # b" in markdown
    assert "<script>" not in page


def test_the_smoke_suite_must_not_fall_below_its_record() -> None:
    twelve = [case(f"f{i}") for i in range(12)]
    assert below_recorded(results(*twelve, suite="smoke")) is None
    worse = [*twelve[:-1], case(right=False)]
    assert "became worse" in str(below_recorded(results(*worse, suite="smoke")))
    assert below_recorded(results(*worse, suite="full")) is None
    assert below_recorded(results(*worse[:3], suite="smoke")) is None
