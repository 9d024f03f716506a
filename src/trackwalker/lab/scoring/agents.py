"""Any agent as a diagnoser: it gets a folder with a workspace, AGENTS.md and the tools, and answers with a verdict.

The agent's command runs in that folder and reads its task from standard input; its answer is the last JSON object that
it prints. What it called is counted: commands through a wrapper on its PATH, MCP tools through the audit log. A run can
be recorded, and a recording graded again without the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.agent.skills.skills import shipped
from trackwalker.errors import UsageError
from trackwalker.job.journal import read

AGENT = "agent:"
RECORD = "TRACKWALKER_LAB_RECORD"  # folder for what agents did; set by `lab score --record`
REPLAY = "replay:"  # agent:replay:FOLDER grades a recording
_MOST_OUTPUT = 16 << 20
TASK = """Something may be wrong with the training job {job} in the workspace `outputs` (JOB_WORKSPACE is set). Find out
what is true, with nothing but the trackwalker command (or `trackwalker mcp`) and the methods of AGENTS.md and skills/.
Then print one JSON object and nothing after it:

{{"status": "completed|soft-success|completed-short|failed|cancelled|running|hanging|unknown-death|indeterminate",
 "outcome": "incident|expected|healthy|insufficient-evidence",
 "causes": [{{"cause": "id of a playbook", "role": "root", "hosts": ["culprits only"], "gpus": [], "devices": [],
             "evidence": ["what shows it, with its query or log line"]}}],
 "usage": {{"tokens": 0}}}}

Name as root only what the evidence shows. No root with healthy or insufficient-evidence.
"""
_WRAPPER = """#!{python}
import json, os, sys, time
with open({calls!r}, "a") as out:
    out.write(json.dumps({{"t": time.time(), "argv": sys.argv[1:]}}) + "\\n")
os.execv({python!r}, [{python!r}, "-m", "trackwalker", *sys.argv[1:]])
"""


@dataclass(frozen=True)
class Played:
    """What an agent answered, and what that cost."""

    verdict: dict[str, Any]
    calls: int | None
    tokens: int | None
    seconds: float | None = None  # of the recorded run, where it was one


def check_agent(tool: str) -> None:
    """Refuse an agent that cannot be run."""
    command = tool.removeprefix(AGENT)
    if command.startswith(REPLAY):
        if not Path(command.removeprefix(REPLAY)).is_dir():
            raise UsageError(f"--agent {command}: there is no such folder of recorded conversations")
        return
    try:
        program = shlex.split(command)[0]
    except (ValueError, IndexError) as e:
        raise UsageError(f"--agent {command}: {e}") from e
    if shutil.which(program) is None:
        raise UsageError(f"--agent {command}: there is no program '{program}'")


def play(tool: str, job: Path, name: str, limit_s: float) -> Played:
    """Let the agent answer about one job, or take its recorded answer; `name` is the case's."""
    command = tool.removeprefix(AGENT)
    if command.startswith(REPLAY):
        return _replay(Path(command.removeprefix(REPLAY)) / name)
    home = job.parent.parent
    _furnish(home)
    task = TASK.format(job=job.name.partition("-")[0])
    begin = time.monotonic()
    output = _run(shlex.split(command), home, job.parent, task, limit_s)
    seconds = time.monotonic() - begin
    verdict = as_verdict(last_object(output))
    usage = verdict.pop("usage", None)
    tokens = usage.get("tokens") if isinstance(usage, dict) and isinstance(usage.get("tokens"), int) else None
    calls = _calls(home)
    if target := os.environ.get(RECORD):
        _keep(
            Path(target) / name, home, {"task": task, "output": output, "seconds": seconds, "tokens": tokens}, verdict
        )
    return Played(verdict, len(calls), tokens)


def last_object(text: str) -> dict[str, Any]:
    """The last JSON object in what an agent printed; models like to talk before it."""
    decoder = json.JSONDecoder()
    at = len(text)
    while (at := text.rfind("{", 0, at)) >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except ValueError:
            continue
        before = text[:at].rstrip()
        # An object inside another one ends before its parent does: go on to the outermost.
        if isinstance(found, dict) and "outcome" in found and not text[end:].strip().strip("`").strip():
            return found
        if not before:
            break
    raise UsageError("the agent printed no JSON object with an outcome as its last words")


def as_verdict(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer in the form of a verdict: evidence that is told in words gets an id."""
    causes = [dict(c) for c in answer.get("causes", []) if isinstance(c, dict)]
    evidence = [e for e in answer.get("evidence", []) if isinstance(e, dict)]
    known = {str(e.get("id")) for e in evidence}
    for cause in causes:
        told = [str(e) for e in cause.get("evidence", [])]
        for words in told:
            if words not in known:
                evidence.append({"id": words, "kind": "log", "source": "agent", "says": words})
                known.add(words)
        cause["evidence"] = told
        cause.setdefault("role", "root")
    return {**answer, "causes": causes, "evidence": evidence}


def _furnish(home: Path) -> None:
    """Beside the workspace: what an agent may read, and the command, which notes its calls."""
    skills = shipped()
    page = skills.parent / "AGENTS.md"
    if page.is_file():
        shutil.copy(page, home / "AGENTS.md")
    shutil.copytree(skills, home / "skills", dirs_exist_ok=True)
    (home / "bin").mkdir(exist_ok=True)
    wrapper = home / "bin" / "trackwalker"
    wrapper.write_text(_WRAPPER.format(python=sys.executable, calls=str(home / "calls.jsonl")))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)


def _run(argv: list[str], home: Path, workspace: Path, task: str, limit_s: float) -> str:
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(home / "bin"), os.environ.get("PATH", "")]),
        "JOB_WORKSPACE": str(workspace),
        "XDG_STATE_HOME": str(home / "state"),
    }
    env.pop(RECORD, None)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, cwd=home, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(task, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise UsageError(f"no answer within {limit_s:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started ends with it
    if process.returncode:
        raise UsageError(f"the agent ended with exit code {process.returncode}")
    return output[-_MOST_OUTPUT:]


def _calls(home: Path) -> list[dict[str, Any]]:
    """Every command and every MCP tool that was called; the server's own start is none."""
    calls = home / "calls.jsonl"
    lines = [json.loads(line) for line in calls.read_text().splitlines()] if calls.is_file() else []
    asked: list[dict[str, Any]] = [line for line in lines if line["argv"][:1] != ["mcp"]]
    audit = home / "state" / "trackwalker" / "agent" / "audit.jsonl"
    if audit.is_file():
        asked += [{"tool": line.get("tool"), "args": line.get("args")} for line in read(audit).items]
    return asked


def _keep(target: Path, home: Path, run: dict[str, Any], verdict: dict[str, Any]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    calls = _calls(home)
    (target / "calls.jsonl").write_text("".join(json.dumps(call) + "\n" for call in calls))
    (target / "conversation.json").write_text(json.dumps({**run, "calls": len(calls)}, indent=1) + "\n")
    (target / "verdict.json").write_text(json.dumps(verdict, indent=1) + "\n")


def _replay(folder: Path) -> Played:
    try:
        verdict = json.loads((folder / "verdict.json").read_text())
        run = json.loads((folder / "conversation.json").read_text())
    except (OSError, ValueError) as e:
        raise UsageError(f"{folder.name}: no recorded conversation ({type(e).__name__})") from e
    return Played(verdict, run.get("calls"), run.get("tokens"), run.get("seconds"))
