"""Any agent as a diagnoser: it sees a workspace and the tools, its answer is graded, its calls are counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers import HEADER, make_job, step_line

from trackwalker.errors import UsageError
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.agents import AGENT, RECORD, as_verdict, check_agent, last_object, play
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.scoring.results import CaseResult, Results, agent_lines
from trackwalker.lab.scoring.tools import ask, check_tool

ANSWER = {
    "status": "failed",
    "outcome": "incident",
    "causes": [{"cause": "python-exception", "hosts": [], "evidence": ["log line 40: ValueError"]}],
    "usage": {"tokens": 1234},
}
TRUTH = Truth(outcome="incident", roots=[{"cause": "python-exception"}])  # type: ignore[list-item]
SCRIPT = """import json, os, pathlib, subprocess, sys
task = sys.stdin.read()
job = task.split("training job ")[1].split()[0]
assert pathlib.Path("AGENTS.md").is_file() and pathlib.Path("skills/tsdb-diagnosis/SKILL.md").is_file()
assert sorted(p.name for p in pathlib.Path(".").iterdir()) == ["AGENTS.md", "bin", "outputs", "skills"]
for words in (["triage", job, "--json"], ["rank-tails", job]):
    subprocess.run(["trackwalker", *words], check=True, stdout=subprocess.DEVNULL)
print("I think that {this} is it:")
print(json.dumps(%r))
"""


def test_the_last_object_counts_whatever_is_said_before() -> None:
    text = f'Here {{"outcome": "no"}} and then\n```json\n{json.dumps(ANSWER, indent=1)}\n```\n'
    assert last_object(text) == ANSWER
    for nothing in ("", "no braces", '{"causes": []}', '{"outcome": "x"} and words after it'):
        with pytest.raises(UsageError, match="no JSON object"):
            last_object(nothing)


def test_evidence_in_words_is_evidence_and_a_cause_without_any_is_ungrounded() -> None:
    assert grade(as_verdict(dict(ANSWER)), TRUTH).passed
    bare = {**ANSWER, "causes": [{"cause": "python-exception"}]}
    assert grade(as_verdict(bare), TRUTH).ungrounded == ["python-exception has no evidence"]


def test_an_agent_that_cannot_be_run_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no program"):
        check_tool(f"{AGENT}no-such-agent-here --x")
    with pytest.raises(UsageError, match="no such folder"):
        check_agent(f"{AGENT}replay:{tmp_path / 'none'}")


def test_a_recording_is_graded_without_the_agent(tmp_path: Path) -> None:
    kept = tmp_path / "fam-1"
    kept.mkdir()
    (kept / "verdict.json").write_text(json.dumps(as_verdict(dict(ANSWER))))
    (kept / "conversation.json").write_text(json.dumps({"calls": 4, "tokens": 1234, "seconds": 12.5}))
    answer = ask(f"{AGENT}replay:{tmp_path}", tmp_path / "job", 10, "fam-1")
    assert (answer.calls, answer.tokens, answer.seconds, answer.error) == (4, 1234, 12.5, "")
    missing = ask(f"{AGENT}replay:{tmp_path}", tmp_path / "job", 10, "fam-2")
    assert missing.verdict is None
    assert "no recorded conversation" in missing.error


def test_the_line_about_an_agent_tells_its_cost_and_where_it_was_worse() -> None:
    def row(tool: str, family: str, right: bool, calls: int | None) -> CaseResult:
        found = grade(as_verdict(dict(ANSWER)) if right else None, TRUTH)
        return CaseResult(
            tool=tool, family=family, split="tune", group="g", seed=1, truth=TRUTH, grade=found, passed=found.passed,
            seconds=3.0, calls=calls, tokens=None,
        )  # fmt: skip

    rows = [row("trackwalker", f, True, None) for f in ("a", "b")]
    rows += [row("agent:x", "a", True, 3), row("agent:x", "b", False, 9)]
    [line] = agent_lines(Results(version="0", suite=["s"], cases=rows))
    assert line.startswith("agent:x: 1 of 2 right; calls a case: median 6, most 9; tokens: not told")
    assert line.endswith("wrong where another tool was right: 1")


@pytest.mark.starts_processes
def test_an_agent_sees_only_its_folder_and_every_call_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "case"
    directory, log = make_job(home / "outputs", "8308-JAX-a")
    log.write_text("\n".join([*HEADER.splitlines(), f"0: {step_line(1)}", "0: ValueError: x", ""]))
    script = tmp_path / "agent.py"
    script.write_text(SCRIPT % ANSWER)
    monkeypatch.setenv(RECORD, str(tmp_path / "kept"))
    played = play(f"{AGENT}{sys.executable} {script}", directory, "fam-1", 120)
    assert (played.calls, played.tokens) == (2, 1234)
    assert grade(played.verdict, TRUTH).passed
    kept = tmp_path / "kept" / "fam-1"
    assert [json.loads(line)["argv"][0] for line in (kept / "calls.jsonl").read_text().splitlines()] == [
        "triage",
        "rank-tails",
    ]
    assert json.loads((kept / "conversation.json").read_text())["calls"] == 2
    again = ask(f"{AGENT}replay:{tmp_path / 'kept'}", directory, 10, "fam-1")
    assert again.verdict == played.verdict
    broken = ask(f"{AGENT}{sys.executable} -c 1", directory, 60)
    assert "no JSON object" in broken.error
    slow = ask(f"{AGENT}{sys.executable} -c 'import time; time.sleep(60)'", directory, 0.5)
    assert "no answer within" in slow.error
