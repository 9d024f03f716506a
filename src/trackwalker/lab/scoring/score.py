"""Score diagnosers: make each case in a place of its own, ask every tool, grade, forget the place."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from trackwalker import __version__
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.cases import Case, build
from trackwalker.lab.scoring.grade import Grade, grade
from trackwalker.lab.scoring.groups import group_of
from trackwalker.lab.scoring.results import CaseResult, Results
from trackwalker.lab.scoring.tools import Answer, ask, check_tool

ASK_TWICE_EVERY = 6  # determinism is checked on a sample of the cases
Progress = Callable[[int, int, CaseResult], None]


def score(
    cases: list[Case], tools: list[str], suite: list[str], jobs: int, limit_s: float, progress: Progress
) -> Results:
    """Every tool on every case; the order of the results is that of the cases, however many run at once."""
    for tool in tools:
        check_tool(tool)
    found: dict[int, list[CaseResult]] = {}
    done = 0
    # Not forked: numpy's and grpc's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(score_case, c, tools, i % ASK_TWICE_EVERY == 0, limit_s): i for i, c in enumerate(cases)}
        try:
            for future in as_completed(waiting):
                found[waiting[future]] = future.result()
                for result in future.result():
                    done += 1
                    progress(done, len(cases) * len(tools), result)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    ordered = [result for i in sorted(found) for result in found[i]]
    return Results(version=__version__, suite=suite, cases=ordered)


def score_case(case: Case, tools: list[str], twice: bool, limit_s: float) -> list[CaseResult]:
    """One case, made and removed again; nothing in its place tells the family or the truth."""
    place = Path(tempfile.mkdtemp(prefix="trackwalker-lab-"))
    try:
        job, truth = build(case, place / "case")
        return [graded(case, tool, job, truth, twice, limit_s) for tool in tools]
    finally:
        shutil.rmtree(place, ignore_errors=True)


def graded(case: Case, tool: str, job: Path, truth: Truth, twice: bool, limit_s: float) -> CaseResult:
    """One tool on one job; `twice`: whether it says the same again is looked at too."""
    condition = f"-{case.variant}" if case.variant else ""
    answer = ask(tool, job, limit_s, f"{Path(case.family).stem}-{case.seed}{condition}")
    result, error = grade_answer(answer, truth)
    # An agent is not asked twice: it costs money, and nobody expects the same words from it.
    again = ask(tool, job, limit_s) if twice and answer.verdict is not None and answer.calls is None else None
    return CaseResult(
        tool=tool,
        family=Path(case.family).stem,
        split=case.split,
        group=group_of(truth),
        seed=case.seed,
        variant=case.variant,
        nodes=case.nodes,
        truth=truth,
        grade=result,
        passed=result.passed,
        seconds=round(answer.seconds, 2),
        same_again=_same(answer, again) if again is not None else None,
        error=error,
        calls=answer.calls,
        tokens=answer.tokens,
    )


def grade_answer(answer: Answer, truth: Truth) -> tuple[Grade, str]:
    """The grade, and what was wrong with the answer itself."""
    try:
        return grade(answer.verdict, truth), answer.error
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        return grade(None, truth), f"not a verdict: {type(e).__name__}: {e}"


def _same(one: Answer, other: Answer) -> bool:
    return _bytes(one.verdict) == _bytes(other.verdict)


def _bytes(verdict: dict[str, Any] | None) -> str:
    return json.dumps({k: v for k, v in (verdict or {}).items() if k != "cost"}, sort_keys=False)
