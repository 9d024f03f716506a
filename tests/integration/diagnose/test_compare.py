"""Pairs of simulated jobs with a known difference, through real databases."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command_here import call_here
from pairs import PAIRS, Written, write_pair

from trackwalker.diagnose.case import open_case
from trackwalker.diagnose.compare.compare import Comparison, compare
from trackwalker.errors import UsageError
from trackwalker.job.resolve import resolve
from trackwalker.lab.scoring.grade import grade
from trackwalker.report.compare import comparison_markdown
from trackwalker.telemetry.store import open_database

# Every pair with one seed on each run; more seeds are a matter of patience: TRACKWALKER_PAIR_SEEDS=1,2,3,4,5
SEEDS = [int(s) for s in os.environ.get("TRACKWALKER_PAIR_SEEDS", "11").split(",")]


def judge(pair: Written) -> Comparison:
    return compare(resolve(pair.a, pair.workspace), resolve(pair.b, pair.workspace))


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Callable[[str, int], Written]:
    """A pair of simulated jobs, made once for all questions about it."""
    return functools.cache(lambda name, seed: write_pair(name, tmp_path_factory.mktemp(name), seed))


# A landing asks for each answer once: nothing, a leak, a setting, a host, a death, no comparison, no metrics.
KEPT = ("identical", "restore-leak", "remat", "nic", "died", "swapped", "logs-only")
MORE = pytest.mark.long(reason="two worlds each, with answers of the same kinds")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [n if n in KEPT else pytest.param(n, marks=MORE) for n in PAIRS])
def test_the_difference_is_explained(name: str, seed: int, pair_of: Callable[[str, int], Written]) -> None:
    pair = pair_of(name, seed)
    found = judge(pair)
    verdict = json.loads(found.verdict.to_json())
    graded = grade(verdict, pair.truth)
    assert graded.passed, f"{graded.said} {graded.forbidden} {graded.ungrounded}: {verdict['summary']}"
    assert verdict["job"]["id"] == pair.b
    assert verdict["baseline"]["id"] == pair.a
    assert verdict["schema"] == "trackwalker.verdict/1"
    if verdict["outcome"] == "healthy":
        assert "or more would have been seen" in verdict["summary"]
        assert verdict["causes"] == []
        assert verdict["actions"] == []
    if name in ("restore-leak", "other-nodes", "remat"):
        assert "different nodes (2 of 4 in common)" in verdict["summary"], "a confounder is named"
    if pair.truth.onset_step is not None:
        assert graded.onset_error_steps is not None
        assert graded.onset_error_steps <= 3


def test_the_leak_has_the_numbers_of_the_case(tmp_path: Path, prometheus: Path) -> None:
    """F-4: 3,295 against 3,261 tokens/s/device, 18 against 35 runnable tasks, 3 against 5 waves."""
    found = judge(write_pair("restore-leak-same-nodes", tmp_path, seed=4, steps=160))
    (root,) = found.verdict.roots
    assert root.cause == "restore-thread-leak"
    assert root.hosts == []
    assert root.magnitude is not None
    assert root.magnitude.from_ == pytest.approx(3295, abs=8)
    assert root.magnitude.to == pytest.approx(3261, abs=8)
    assert root.magnitude.change == pytest.approx(-0.0103, abs=0.003)
    tasks = next(d for d in found.deltas if d.metric == "hw_procs_running")
    assert tasks.mean_a == pytest.approx(18, abs=0.7)
    assert tasks.mean_b == pytest.approx(35, abs=0.7)
    assert tasks.uniform
    assert tasks.low is not None
    assert tasks.low > 16
    said = [e.says for e in found.verdict.evidence if e.id in root.evidence]
    assert any("in 5 waves" in s for s in said)
    assert any("in 3 waves" in s for s in said)
    assert any(re.search(r"restoring from this run's directory step \d+", s) for s in said)
    assert {r.cause for r in found.verdict.ruled_out} >= {"rdma-degradation", "fabric-congestion"}


def test_the_order_of_the_two_does_not_matter(pair_of: Callable[[str, int], Written]) -> None:
    pair = pair_of("nic", SEEDS[0])
    turned = compare(resolve(pair.b, pair.workspace), resolve(pair.a, pair.workspace)).verdict
    assert [(c.cause, c.hosts) for c in turned.roots] == [(r.cause, r.hosts) for r in pair.truth.roots]
    assert "A is the slower one" in turned.summary


def test_same_bytes_twice_every_number_comes_back_and_nothing_is_touched(
    pair_of: Callable[[str, int], Written], unchanged: list[Path]
) -> None:
    pair = pair_of("restore-leak", SEEDS[0])
    unchanged.append(pair.workspace)
    first, second = judge(pair).verdict, judge(pair).verdict
    assert first.model_copy(update={"cost": None}) == second.model_copy(update={"cost": None})
    a, b = resolve(pair.a, pair.workspace), resolve(pair.b, pair.workspace)
    assert a.database is not None
    assert b.database is not None
    metric = [e for e in first.evidence if e.kind == "metric"]
    assert len(metric) > 20
    with open_database(a.database) as one, open_database(b.database) as two:
        for item in metric:
            theirs = item.source.endswith(f"# in the database of {pair.a}")
            again = (one if theirs else two).instant(item.source, 0.0)  # the query carries its own moment
            values = {s.labels.get("host") or s.labels.get("instance", "").split(":")[0]: s.value for s in again}
            assert {h: round(v, 3) for h, v in values.items()} == item.values
            for shown in re.findall(r"(\d+\.\d+) (?:on average|runnable tasks a host)", item.says):
                assert float(shown) == pytest.approx(sum(values.values()) / len(values), abs=0.06)


def test_the_command(pair_of: Callable[[str, int], Written]) -> None:
    pair = pair_of("remat", SEEDS[0])
    text = call_here(os.environ, "compare", pair.a, pair.b, "-w", str(pair.workspace))
    assert "remat_policy" in text.stdout
    assert "SETTINGS THAT DIFFER" in text.stdout
    assert text.stderr == ""
    ticket = comparison_markdown(judge(pair))
    assert "\n| remat_policy | minimal_flash | full | explains speed |\n" in ticket


def test_one_job_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "41-JAX-x.log").write_text("JOB_ID=41\n")
    job = resolve("41", tmp_path)
    with pytest.raises(UsageError, match="given twice"):
        compare(job, job)


def test_waves_are_counted_on_many_ranks(tmp_path: Path) -> None:
    """Repeats of one line are not taken for a flood and dropped."""
    text = []
    for wave, second in enumerate((5, 13, 16, 50, 59)):
        for rank in range(40):
            warned = "NCCL WARN MSCCL++: Feature not enabled."
            text += [f"{rank:>2}: [2026-02-01 10:00:{second:02d}] n{rank}:1:2 [0] init.cc:2095 {warned}"] * (
                1 + wave % 2
            )
    text.append(" 0: restoring from this run's directory step 199")
    (tmp_path / "77-JAX-x.log").write_text("\n".join(["JOB_ID=77", *text]) + "\n")
    with open_case(resolve("77", tmp_path)) as case:
        name, start = case.triage.record.start
    assert start.waves == 5
    assert start.restored is not None
    assert (name, start.restored.line) == ("77-JAX-x.log", len(text) + 1)
