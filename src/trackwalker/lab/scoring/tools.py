"""Any diagnoser as one question: a job in, a verdict out. A command, a baseline, or (the fast way) our own engine."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.diagnose.engine import diagnose
from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.job.resolve import resolve
from trackwalker.lab.baselines import BASELINES
from trackwalker.lab.scoring.agents import AGENT, check_agent, play

OWN = "trackwalker"
_PREFIX = "baseline:"
_MOST_OUTPUT = 64 << 20


@dataclass(frozen=True)
class Answer:
    """What a tool said about a job, or why it said nothing."""

    verdict: dict[str, Any] | None
    seconds: float
    error: str = ""
    calls: int | None = None  # of an agent
    tokens: int | None = None


def check_tool(tool: str) -> None:
    """Refuse a tool that cannot be run, before anything is simulated."""
    if tool == OWN:
        return
    if tool.startswith(AGENT):
        check_agent(tool)
        return
    if tool.startswith(_PREFIX):
        if tool.removeprefix(_PREFIX) not in BASELINES:
            raise UsageError(f"no baseline '{tool.removeprefix(_PREFIX)}'; known: {', '.join(BASELINES)}")
        return
    if "{job}" not in tool:
        raise UsageError(f"--tool {tool}: say where the job goes with {{job}}, as in 'my-tool {{job}} --json'")
    try:
        program = shlex.split(tool)[0]
    except ValueError as e:
        raise UsageError(f"--tool {tool}: {e}") from e
    if shutil.which(program) is None:
        raise UsageError(f"--tool {tool}: there is no program '{program}'")


def ask(tool: str, job: Path, limit_s: float, case: str = "") -> Answer:
    """Run the tool on a job, in the place where the job lies; `case` names what an agent's recording is kept under."""
    begin = time.perf_counter()
    try:
        if tool.startswith(AGENT):
            played = play(tool, job, case or job.name, limit_s)
            took = time.perf_counter() - begin if played.seconds is None else played.seconds
            return Answer(played.verdict, took, calls=played.calls, tokens=played.tokens)
        if tool == OWN:
            verdict = diagnose(resolve(str(job), job.parent)).verdict.model_dump(by_alias=True, mode="json")
        elif tool.startswith(_PREFIX):
            verdict = BASELINES[tool.removeprefix(_PREFIX)](job)
        else:
            verdict = _run(tool, job, limit_s)
    except TrackwalkerError as e:
        return Answer(None, time.perf_counter() - begin, str(e))
    except Exception as e:  # a tool that breaks has given no verdict; the other cases go on
        return Answer(None, time.perf_counter() - begin, f"{type(e).__name__}: {e}")
    return Answer(verdict, time.perf_counter() - begin)


def _run(tool: str, job: Path, limit_s: float) -> dict[str, Any]:
    argv = [word.replace("{job}", str(job)) for word in shlex.split(tool)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                argv, cwd=job.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as e:
            raise UsageError(f"cannot run {argv[0]}: {e.strerror}") from e
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise UsageError(f"no answer within {limit_s:.0f} s") from None
        finally:
            with contextlib.suppress(OSError):  # its own session: what it started ends with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        verdict = find_verdict(out.read(_MOST_OUTPUT).decode(errors="replace"))
        if verdict is None:
            said = err.read(_MOST_OUTPUT).decode(errors="replace").strip().splitlines()
            raise UsageError(f"no verdict on stdout, exit code {process.returncode}{': ' + said[-1] if said else ''}")
    return verdict


def find_verdict(text: str) -> dict[str, Any] | None:
    """The last JSON object with an outcome: an agent may talk before it answers."""
    decoder, found, at = json.JSONDecoder(), None, text.find("{")
    while at != -1:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            found = value if isinstance(value, dict) and "outcome" in value else found
        at = text.find("{", end)
    return found
