"""Every read-only tool on every incident of the smoke suite by the official client: sizes, and what was left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp_talk import Talk, over_stdio, run

from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.scoring.cases import SMOKE
from trackwalker.lab.simulate import simulate

BRIEF = 3_000
LONG = "the smoke suite is simulated and asked some twenty questions a job: minutes"


def size(answer: dict[str, Any]) -> int:
    return len(json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode())


async def ask_everything(talk: Talk, job: str, other: str, recorded: bool) -> None:
    """`Talk.call` holds every answer to 8 kB, to its schema, and `next` to `left`."""
    brief = await talk.call("diagnose", job=job)
    assert size(brief) < BRIEF, (job, size(brief))
    for part, words in brief.get("shown", {}).items():
        shown, _, total = words.partition(" of ")
        assert int(shown) < int(total.split()[0]), (job, part, words)
    full = await talk.call("diagnose", job=job, detail="full")
    assert full["outcome"] == brief["outcome"]
    for tool in ("triage", "tests", "evidence", "logs", "rank_tails", "files", "perf_summary", "stacks"):
        await talk.call(tool, job=job)
    await talk.call("compare", job=job, baseline=other)
    await talk.call("logs", job=job, contains="step", newest_first=True)
    if full.get("causes"):  # an answer has no empty lists
        await talk.call("playbook", id=full["causes"][0]["cause"])
    if full.get("progress", {}).get("last_step") is None and not recorded:  # there is nothing to compare
        assert "neither metrics nor steps" in await talk.refused("what_changed", job=job)
    else:
        await talk.call("what_changed", job=job)
    if not recorded:
        assert "not recorded" in await talk.refused("metrics", job=job)
        return
    await talk.call("metrics", job=job)
    await talk.call("metrics", job=job, pattern="hw_.*")
    short = await talk.call("query_metrics", job=job, promql="rate(hw_rdma_tx_bytes_total[5s])")
    assert "use at least [" in short["hint"]


@pytest.mark.long(reason=LONG)
def test_every_answer_about_the_smoke_suite_is_small_and_says_what_it_left_out(
    tmp_path: Path, prometheus: Path
) -> None:
    workspace = tmp_path / "outputs"
    workspace.mkdir()
    jobs = []
    for family in SMOKE:
        made = simulate(load_scenario(family), tmp_path / family, 1)
        if made.job.name.partition("-")[0] in jobs:  # ids are drawn, and two families may draw the same
            made = simulate(load_scenario(family), tmp_path / f"{family}-2", 2)
        for path in (made.job, made.workspace / f"{made.job.name}.log"):
            path.rename(workspace / path.name)
        jobs.append(made.job.name.partition("-")[0])

    async def talk_about_all() -> None:
        async with over_stdio(workspace, tmp_path / "state") as talk:
            listed = await talk.call("list_jobs")
            recorded = {row["id"]: row["recorded"] for row in listed["jobs"]}
            assert set(recorded) == set(jobs)
            for number, job in enumerate(jobs):
                await ask_everything(talk, job, jobs[number - 1], recorded[job])

    run(talk_about_all, 1200)
