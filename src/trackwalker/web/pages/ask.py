"""The ask box: a question in plain words, answered from the evidence; a model looks further only when asked to."""

from __future__ import annotations

import logging
import re
from typing import Any
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.agent.ask.ask import Answered, Budget, Reply, ask, unaccused, with_model
from trackwalker.agent.ask.questions import phrasings
from trackwalker.agent.workspace import signature
from trackwalker.errors import UsageError
from trackwalker.fleet.rows import JobRow
from trackwalker.report import words
from trackwalker.report.text import clean, clip, one_line
from trackwalker.web.data.job_data import Link, evidence_links
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.pages.jobs import index_of
from trackwalker.web.pages.render import in_thread, page, settings_of, workspace_of
from trackwalker.web.settings import Settings

_SHOWN = ("slow", "culprit", "triage", "compare", "network", "progress", "next", "hang", "memory")  # examples
_MOST_ROWS = 300
_LONGEST = 500  # characters of a question
_LONGEST_BODY = 8 << 10
_log = logging.getLogger("trackwalker.web")
_STRUCK = re.compile(r"~~(.*?)~~", re.DOTALL)


def routes() -> list[BaseRoute]:
    """The page, and the answer alone."""
    methods = ["GET", "POST"]  # a model is asked by POST only: a link must not cost anything
    return [Route("/ask", asked, methods=methods), Route("/ask/answer", answer, methods=methods)]


async def asked(request: Request) -> Response:
    """The box, and where a question is given, its answer: fetched by a script, or waited for without one."""
    said = await _said(request)
    question, model = _question(said), _wants_model(request, said)
    found = None
    if question and said.get("wait") == "1":
        found = await in_thread(_answer, workspace_of(request), settings_of(request), question, model)
    return page(
        request,
        "ask.html.j2",
        question=question,
        fill="/ask/answer" if model else f"/ask/answer?{urlencode({'q': question})}",
        post=urlencode({"q": question, "model": "1"}) if model else "",
        found=found,
        wants_model=model,
        model=_model_name(settings_of(request)),
        examples=_examples((await in_thread(index_of(request).rows))[0]),
    )


async def answer(request: Request) -> Response:
    """The answer as a piece of the page."""
    said = await _said(request)
    model = _wants_model(request, said)
    found = await in_thread(_answer, workspace_of(request), settings_of(request), _question(said), model)
    return page(request, "ask_answer.html.j2", found=found)


async def _said(request: Request) -> dict[str, str]:
    """The fields of a form, by whichever method it came; of a body no more than a question needs is read."""
    if request.method != "POST":
        return dict(request.query_params)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_BODY:
            raise UsageError(f"a question has {_LONGEST} characters at most")
    return dict(parse_qsl(body.decode("utf-8", "replace")))


def _question(said: dict[str, str]) -> str:
    return clip(one_line(said.get("q", "")), _LONGEST)


def _wants_model(request: Request, said: dict[str, str]) -> bool:
    return request.method == "POST" and said.get("model") == "1" and settings_of(request).has_model


def _model_name(settings: Settings) -> str:
    return clip(one_line(settings.model or ("the model of your endpoint" if settings.endpoint else "")), 80)


def _answer(ws: WebWorkspace, settings: Settings, question: str, model: bool) -> dict[str, Any]:
    reply = ask(question, ws.agent)
    answered = Answered(reply)
    if model:

        def make() -> Answered:
            return with_model(reply, ws.agent, settings.model, settings.endpoint, Budget(), _log.info, "web")

        state = tuple(signature(ws.job(name)) for name in reply.asked.jobs)
        answered = ws.model_answers.get(question, state, make)
        if answered.investigation is None or answered.investigation.grounded is None:
            ws.model_answers.forget(question)  # it did not answer: the next visitor may be luckier
    return {
        "reply": reply,
        "jobs": list(reply.asked.jobs),
        "links": _links(ws, reply),
        "model": _model_part(answered) if model else None,
    }


def _links(ws: WebWorkspace, reply: Reply) -> dict[str, list[Link]]:
    """Where each cited piece of evidence can be looked at; of two jobs it is not known which one's it is."""
    if reply.verdict is None or len(reply.asked.jobs) != 1:
        return {}
    job = ws.job(reply.asked.jobs[0])
    found = {item.id: evidence_links(job, item) for item in reply.verdict.evidence}
    return {name: [link for link in links if link.url.startswith("/")] for name, links in found.items()}


def _model_part(answered: Answered) -> dict[str, Any]:
    found = answered.investigation
    if found is None or found.grounded is None:
        note = answered.note or (found.note if found else "it gave no answer")
        return {"name": answered.model, "note": note, "says": "", "others": "", "struck": 0}
    return {
        "name": answered.model,
        "note": "",
        "says": _with_strikes(clip(found.says, 8000)),
        "others": words.names(unaccused(answered.reply, found.says)),
        "struck": len(found.grounded.struck),
    }


def _with_strikes(says: str) -> Markup:
    """The model's text; sentences that no evidence supports are struck out, everything is escaped."""
    parts, at = [], 0
    for match in _STRUCK.finditer(says):
        parts += [escape(clean(says[at : match.start()])), Markup("<del>{}</del>").format(clean(match[1]))]
        at = match.end()
    return Markup("").join([*parts, escape(clean(says[at:]))])


def _examples(rows: list[JobRow]) -> list[str]:
    """One phrasing of each kind, about jobs that are really here; a job in trouble is what people ask about."""
    ids = [row.id for row in sorted(rows[:_MOST_ROWS], key=lambda row: row.group != "trouble")[:2]]
    first: dict[str, str] = {}
    for each in phrasings():
        if each["jobs"] and len(each["jobs"]) <= len(ids):
            said = each["ask"]
            for old, new in zip(each["jobs"], reversed(ids[: len(each["jobs"])]), strict=True):
                said = said.replace(old, new)
            first.setdefault(each["intent"], said)
    return [first[intent] for intent in _SHOWN if intent in first]
