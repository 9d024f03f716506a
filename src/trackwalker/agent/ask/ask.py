"""`trackwalker ask`: the engine answers first; a model, where one is wanted, adds to it."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackwalker.agent.ask.answer_parts import Reply as Reply
from trackwalker.agent.ask.answering import answer
from trackwalker.agent.ask.grounding import Corpus, check
from trackwalker.agent.ask.loop import Budget as Budget
from trackwalker.agent.ask.loop import Investigation, Say, investigate, open_model
from trackwalker.agent.ask.questions import understand
from trackwalker.agent.audit import Audit, Caller
from trackwalker.agent.policy import state_folder, this_person
from trackwalker.agent.toolbox import Toolbox
from trackwalker.agent.tools import compare, diagnose, list_jobs, perf_summary, triage
from trackwalker.agent.workspace import Workspace
from trackwalker.diagnose.causes.playbook import load_playbooks
from trackwalker.errors import MissingToolError, NotAJobError, TrackwalkerError, UsageError
from trackwalker.job.resolve import resolve
from trackwalker.job.scrub import Scrubber
from trackwalker.launch.job_state import standings
from trackwalker.report import words

if TYPE_CHECKING:
    from pydantic_ai.models import Model

SCHEMA = "trackwalker.ask/1"
TRANSCRIPT = "trackwalker.transcript/1"
KEY_VARIABLE = "TRACKWALKER_ENDPOINT_KEY"
_PATH = re.compile(r"(?<!\S)[\"'(]?((?:~|\.{1,2})?/?(?:[\w.+=@~-]+/)+[\w.+=@~-]*[\w/]|/[\w.+=@~-]+)")


@dataclass(frozen=True)
class Answered:
    """The engine's answer, and the model's where there is one; `note` says why there is not."""

    reply: Reply
    model: str | None = None
    investigation: Investigation | None = None
    note: str = ""


def place(question: str, workspace: Path) -> tuple[str, Path]:
    """A job named by its path: the question with its id instead, and the folder where it lies."""
    for match in _PATH.finditer(question):
        try:
            job = resolve(match[1], workspace)
        except NotAJobError:
            raise
        except TrackwalkerError:
            continue  # and/or, tokens/s: not every slash is a path
        home = (job.dir or job.log or workspace).absolute().parent
        return question[: match.start(1)] + job.id + question[match.end(1) :], home
    return question, workspace


def ask(question: str, ws: Workspace) -> Reply:
    """The engine's answer; raises one line when the question is not understood or names no job."""
    jobs, _ = ws.jobs()

    def running() -> list[str]:
        return [job.id for job, seen in zip(jobs, standings(jobs), strict=True) if seen.state == "running"]

    return answer(understand(question, jobs, running), ws)


def add_model(reply: Reply, toolbox: Toolbox, model: Model, budget: Budget, say: Say) -> Investigation:
    """Let a model look further into what was asked; what it says never touches the verdict."""
    ws = toolbox.ws
    scrubber = ws.scrubber(ws.job(reply.asked.jobs[-1]) if reply.asked.jobs else None)
    shown = [scrubber.clean(reply.text), *_found(reply, toolbox)]
    return investigate(toolbox, reply.asked.question, shown, model, budget, say, scrubber)


def with_model(
    reply: Reply, ws: Workspace, model: str | None, endpoint: str | None, budget: Budget, say: Say, way: str = "ask"
) -> Answered:
    """The same answer with what a model adds; where it cannot be reached, with a note."""
    name = Scrubber().clean(model or endpoint or "")  # an address may hold a password
    try:
        opened = open_model(model, endpoint, os.environ.get(KEY_VARIABLE, "none"))
    except MissingToolError as e:
        return Answered(reply, name, note=str(e))
    with closing(Audit(state_folder() / "audit.jsonl")) as audit:
        toolbox = Toolbox(ws, audit, Caller(this_person(), way))
        say(f"{name} looks further: at most {budget.turns} turns, {budget.tokens:,} tokens, {budget.seconds:g} s")
        return Answered(reply, name, add_model(reply, toolbox, opened, budget, say))


def unaccused(reply: Reply, says: str) -> list[str]:
    """Hosts and causes that a text names and the verdict does not: a reader has to know the difference."""
    if reply.verdict is None:
        return []
    kept = re.sub(r"~~.*?~~", "", says, flags=re.DOTALL)
    hosts = {name for e in reply.verdict.evidence for name in e.values if re.search(r"\d", name)}
    ours = {*words.culprits(reply.verdict), *(cause.cause for cause in reply.verdict.causes)}
    others = {*hosts, *(book.id for book in load_playbooks())} - ours
    return sorted(name for name in others if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", kept))


def document(answered: Answered, ws: Workspace) -> dict[str, Any]:
    """What `ask --json` prints: the verdict's fields where there is one, the answer, and how well it is grounded."""
    reply, found = answered.reply, answered.investigation
    asked = reply.asked
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "question": asked.question,
        "intent": asked.intent,
        "jobs": list(asked.jobs),
        "guesses": list(asked.guesses),
        "command": asked.command,
        "answer": reply.text,
        "cited": [{"id": q.id, "says": q.says, "source": q.source, "quoted": q.quoted} for q in reply.evidence],
        "next": reply.next,
        "damage": reply.damage,
        "model": _model_part(answered),
        "grounding": _grounding(reply, found),
    }
    if reply.verdict is not None:
        verdict = reply.verdict.model_dump(by_alias=True, mode="json")
        out |= {name: value for name, value in verdict.items() if name != "schema"}
    scrubber = ws.scrubber(ws.job(asked.jobs[-1]) if asked.jobs else None)
    cleaned: dict[str, Any] = scrubber.clean_document(out)
    return cleaned


def transcript(answered: Answered, ws: Workspace) -> Path:
    """Write what was asked, looked at and said into the job's directory; returns the file."""
    job = ws.job(answered.reply.asked.jobs[-1]) if answered.reply.asked.jobs else None
    if job is None or job.dir is None:
        raise UsageError("--transcript needs a job with a directory: this question is about none")
    record = {
        "schema": TRANSCRIPT,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "ask": document(answered, ws),
    }
    if answered.investigation is not None:
        record["messages"] = _messages(answered.investigation)
    folder = job.dir / "ask"
    target = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.time_ns() % 1_000_000:06d}.json"
    try:
        folder.mkdir(exist_ok=True)
        with target.open("x") as file:
            json.dump(ws.scrubber(job).clean_document(record), file, indent=1)
    except OSError as e:
        raise UsageError(f"cannot write {target}: {e.strerror}") from e
    return target


def _found(reply: Reply, toolbox: Toolbox) -> list[str]:
    """What the engine found, as the tools tell it: small, redacted, quotes labelled."""
    try:
        return _by_tools(reply, toolbox)
    except TrackwalkerError as e:  # a job that waits has a standing, but no log to triage
        return [f"error: {toolbox.line(e)}"]


def _by_tools(reply: Reply, toolbox: Toolbox) -> list[str]:
    asked = reply.asked
    if asked.intent == "compare":
        return [toolbox.call(compare, baseline=asked.jobs[0], job=asked.jobs[1])]
    if asked.intent == "jobs":
        return [toolbox.call(list_jobs)]
    if reply.verdict is not None:
        return [toolbox.call(diagnose, job=asked.jobs[0])]
    if asked.intent == "perf":
        return [toolbox.call(perf_summary, job=asked.jobs[0])]
    return [toolbox.call(triage, job=asked.jobs[0])]


def _grounding(reply: Reply, found: Investigation | None) -> dict[str, Any]:
    """Of the engine's own sentences, and of the model's."""
    corpus = Corpus()
    corpus.add_names(reply.asked.question)
    for text in (*reply.facts, *reply.asked.jobs):
        corpus.add(text)
    own = check("\n".join(reply.sentences), corpus).to_dict()
    return {"engine": own, "model": found.grounded.to_dict() if found and found.grounded else None}


def _model_part(answered: Answered) -> dict[str, Any] | None:
    found = answered.investigation
    if answered.model is None:
        return None
    part: dict[str, Any] = {"name": answered.model, "note": answered.note or (found.note if found else "")}
    if found is not None:
        part |= {"ended": found.ended, "says": found.says, "turns": found.turns, "spent_tokens": found.tokens}
        part |= {"calls": found.calls, "not_in_verdict": unaccused(answered.reply, found.says)}
    return part


def _messages(found: Investigation) -> Any:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return json.loads(ModelMessagesTypeAdapter.dump_json(found.messages))
