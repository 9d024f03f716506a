"""What the suites hold, and what the command says when part of one cannot be run here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trackwalker.cli.app import main
from trackwalker.errors import UsageError
from trackwalker.lab.real import score as suite_real
from trackwalker.lab.real.cases import CASES
from trackwalker.lab.real.undo import NotHereError
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.cases import SCALE_NODES, make_suite, only


def test_scale_is_a_few_families_on_a_thousand_nodes() -> None:
    cases = make_suite(["scale"], None)
    assert 3 <= len({case.family for case in cases}) <= 6
    assert {case.nodes for case in cases} == {SCALE_NODES} == {1000}


def test_some_families_of_a_suite_on_fewer_nodes() -> None:
    cases = only(make_suite(["scale"], 2), ["node-death"], nodes=12)
    assert [(c.family, c.seed, c.nodes) for c in cases] == [("node-death", 1, 12), ("node-death", 2, 12)]
    assert only(make_suite(["smoke"], None), []) == make_suite(["smoke"], None)
    with pytest.raises(UsageError, match="no family 'nobody' in this suite"):
        only(make_suite(["smoke"], None), ["nobody"])


def test_what_this_machine_cannot_break_is_said_and_not_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(workspace: Path) -> Path:
        raise NotHereError("it needs root")

    healthy = Truth(outcome="healthy")
    monkeypatch.setattr(suite_real, "real_cases", lambda: [("oom", cannot, healthy), ("leak", cannot, healthy)])
    monkeypatch.setattr(suite_real, "ensure_prometheus", lambda say: None)
    said: list[str] = []
    with pytest.raises(UsageError, match="nothing could be scored"):
        suite_real.score_real(["baseline:always-healthy"], [], 1, 5.0, said.append, lambda *results: None)
    assert "real-oom: left out, it needs root" in said
    assert "2 of 2 families were left out: oom, leak" in said


def test_wrong_requests_of_the_real_suite_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, answer in (
        (["--family", "gremlins"], "no real fault 'gremlins'; there are: none, stop, "),
        (["--nodes", "3"], "the suite 'real' is as it is"),
    ):
        monkeypatch.setattr(sys, "argv", ["trackwalker", "lab", "score", "--suite", "real", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        err = capsys.readouterr().err
        assert answer in err
        assert len(err.strip().splitlines()) == 1


def test_a_divergent_program_and_a_failing_pipeline_are_among_the_real_faults() -> None:
    divergent, failing = CASES["divergent-program"], CASES["failing-data"]
    assert [root.cause for root in divergent.truth.roots] == ["collective-mismatch"]
    assert [root.cause for root in failing.truth.roots] == ["python-exception"]
    assert failing.config["data_fails_rank"] == str(failing.rank)
