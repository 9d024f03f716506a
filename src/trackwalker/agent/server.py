"""The MCP server: the toolbox over stdio, or over loopback HTTP behind a token; playbooks and reports as resources."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trackwalker import __version__
from trackwalker.agent.answers import NOTICE
from trackwalker.agent.skills.skill_pages import all_books
from trackwalker.agent.toolbox import ACTION_TOOLS, Tool, Toolbox
from trackwalker.errors import MissingToolError, TrackwalkerError, UsageError
from trackwalker.report.markdown import markdown

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_VARIABLE = "TRACKWALKER_MCP_TOKEN"  # noqa: S105 - the name of a variable
PATH = "/mcp"
_SHORTEST_TOKEN = 20
_INSTRUCTIONS = (
    "Trackwalker diagnoses LLM training runs. Order of work: list_jobs (when no id was given), diagnose (brief), then "
    "what_changed, which ranks everything that deviates: the verdict is a hypothesis, and before 'healthy' or 'no "
    "known cause' this sweep is a must. tests says what was asked and of which hosts; evidence, metrics, "
    "query_metrics, logs, rank_tails, files and playbook give detail; compare is for 'why is B slower than A'. If you "
    "disagree with the verdict, say so with the evidence. Numbers come from these tools: repeat them with their "
    "evidence ids, never work out your own. 'untestable' and missing metrics are not proof of health. Times are UTC, "
    "durations seconds unless a name says otherwise. Answers hold at most 8 kB: 'next' is the cursor for more, 'left' "
    "and 'shown' say how much is missing. " + NOTICE
)
_TELL_EVERY_S = 2.0


# Prompts of the MCP server: the common questions, each with the method that answers it.
_END = (
    " Report: one sentence with cause, culprits, onset and size; three lines of evidence with their ids or queries; "
    "what was ruled out and on which hosts it was not looked at; what could not be tested; what to do and who must "
    "agree. If you disagree with the verdict, say both and why."
)
_WHY = (
    "Find out why job {job} {trouble}. 1. diagnose (brief). 2. what_changed: does what deviates most fit the verdict, "
    "on the same hosts, from the same moment? 3. tests for the named cause: was it asked of every host? Look at the "
    "raw series of one culprit and one healthy host with query_metrics. {more}" + _END
)
PROMPTS = {
    "why_slow": ("Why is a job slow?", _WHY, {"trouble": "is slow or became slow", "more": ""}),
    "why_stopped": (
        "Why did a job hang, fail or end?",
        _WHY,
        {
            "trouble": "hangs, failed or ended",
            "more": "4. triage for who failed first, rank_tails for who stands elsewhere than the others.",
        },
    ),
    "is_it_healthy": (
        "Is a job well?",
        "Say whether job {job} is well. 1. diagnose (brief): its outcome, its data_quality, where its evidence ends. "
        "2. what_changed, over the whole run and for its last quarter: healthy means that nothing deviates there that "
        "matters, on no host. 3. tests: what could not be asked? Name it; it is not proof of health." + _END,
        {},
    ),
}
_COMPARE = (
    "Find out why job {job} differs from job {baseline}. 1. compare. 2. settings and hosts that differ. 3. If the "
    "interval holds zero, say how small a difference would have been seen." + _END
)


def add_prompts(server: MCPServer[Any]) -> None:
    """Register them."""

    def add(name: str, title: str, text: str, words: dict[str, str]) -> None:
        @server.prompt(name=name, title=title, description=f"{title} The method, for one job id.")
        def prompt(job: str) -> str:
            return text.format(job=job, **words)

    for name, (title, text, words) in PROMPTS.items():
        add(name, title, text, words)

    @server.prompt(name="compare_jobs", title="Why is B slower than A?", description="The method, for two job ids.")
    def compare_jobs(baseline: str, job: str) -> str:
        return _COMPARE.format(baseline=baseline, job=job)


def make_server(toolbox: Toolbox) -> MCPServer[Any]:
    """The server with the toolbox's tools; anything a tool complains about is one line for the model."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.server.mcpserver.tools import Tool as ServedTool
        from mcp_types import ToolAnnotations
    except ImportError as e:
        raise MissingToolError(
            "the MCP server needs the package mcp 2 or later: pip install 'trackwalker[agent]'"
        ) from e

    class Server(MCPServer[Any]):
        """Writes down also those calls that never reach a tool."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            """Call a tool by name."""
            telling = asyncio.create_task(_tell(context, name)) if context is not None else None
            try:
                given = {key: value for key, value in arguments.items() if value is not None}  # null is absent
                done: Any = await super().call_tool(name, given, context)
                if not done.is_error:  # the same object for programs; a model reads one of the two
                    done.structured_content = json.loads(done.content[0].text)
                return done
            except ToolError as e:
                if e.__cause__ is None or isinstance(e.__cause__, ValidationError):  # others are in the log already
                    why = "no such tool, or not its arguments"
                    toolbox.audit.note(toolbox.caller, name[:80], arguments, "refused", says=why)
                raise
            finally:
                if telling is not None:
                    telling.cancel()

        async def list_tools(self) -> Any:
            """The tools with what each answers."""
            listed = await super().list_tools()
            return [tool.model_copy(update={"output_schema": schemas[tool.name]}) for tool in listed]

    schemas = {tool.__name__: _answers(tool) for tool in toolbox.tools()}
    tools = []
    for tool in toolbox.tools():
        acts = tool in ACTION_TOOLS
        hints = ToolAnnotations(read_only_hint=not acts, destructive_hint=acts, open_world_hint=False)
        # The text is one JSON object of the type that the tool declares; structured content is the same object.
        made = ServedTool.from_function(toolbox.bound(tool, ToolError), annotations=hints, structured_output=False)
        made.parameters = _briefly(made.parameters)
        tools.append(made)
    server = Server(
        "trackwalker",
        title="Trackwalker",
        version=__version__,
        instructions=_INSTRUCTIONS,
        log_level="WARNING",
        subscriptions=False,
        tools=tools,
    )
    _add_resources(server, toolbox)
    add_prompts(server)
    return server


async def _tell(context: Any, name: str) -> None:
    """Tell a waiting client that the call is at work; nothing where it did not ask for that."""
    begin = time.monotonic()
    with contextlib.suppress(Exception):  # a client that went away is noticed elsewhere
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            seconds = round(time.monotonic() - begin)
            await context.report_progress(float(seconds), None, f"{name}: at work for {seconds} s")


def _answers(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's answers."""
    kind = inspect.signature(tool, eval_str=True).return_annotation
    schema: dict[str, Any] = kind.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        part.pop("title", None)
        for held in part.get("properties", {}).values():
            held.pop("title", None)
    return schema


def _briefly(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of parameters in fewer words, as every client loads all of them: no titles, what is optional may go."""
    out = {name: value for name, value in schema.items() if name != "title"}
    if "properties" in out:
        out["properties"] = {name: _briefly(value) for name, value in out["properties"].items()}
    kinds = [kind for kind in out.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        del out["anyOf"]
        out |= kinds[0]
        if out.get("default", "") is None:
            del out["default"]
    return out


def _add_resources(server: MCPServer[Any], toolbox: Toolbox) -> None:
    """Playbooks as they are written; a job's report and verdict, computed when they are read."""
    from mcp.server.mcpserver.exceptions import ResourceError

    def add_playbook(name: str, title: str, body: str) -> None:
        @server.resource(f"trackwalker://playbooks/{name}", name=name, title=title, mime_type="text/markdown")
        def text() -> str:
            return body

    for book in all_books().values():
        add_playbook(book.id, book.title, book.body)

    def reading(what: str, job: str, show: Callable[[Any], str]) -> str:
        args = {"job": job}
        try:
            found = toolbox.ws.job(job)
            verdict = toolbox.ws.verdict(found).verdict
            text = toolbox.ws.scrubber(found).clean(show(verdict))
        except TrackwalkerError as e:
            toolbox.audit.note(toolbox.caller, what, args, "error", says=str(e))
            raise ResourceError(toolbox.line(e)) from e
        toolbox.audit.note(toolbox.caller, what, args, "ok", size=len(text.encode()))
        return text

    @server.resource("trackwalker://jobs/{job}/report", mime_type="text/markdown", description="The verdict to read.")
    def report(job: str) -> str:
        return reading("resource report", job, markdown)

    @server.resource("trackwalker://jobs/{job}/verdict", mime_type="application/json", description="The whole verdict.")
    def verdict(job: str) -> str:
        return reading("resource verdict", job, lambda found: found.to_json())


def serve_stdio(toolbox: Toolbox) -> None:
    """Serve the process that started us, until it closes our input."""
    try:
        make_server(toolbox).run("stdio")
    finally:
        toolbox.ws.close()


def serve_http(toolbox: Toolbox, port: int, token: str) -> None:
    """Serve loopback until Ctrl-C; every request needs the token and a loopback Host."""
    server = make_server(toolbox)
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as e:
            raise UsageError(f"port {port} of 127.0.0.1 cannot be used: {e}") from None
        chosen = door.getsockname()[1]
        # A page in a browser can make a name of its own point at 127.0.0.1: its Host and Origin give it away.
        here = [f"127.0.0.1:{chosen}", f"localhost:{chosen}"]
        security = TransportSecuritySettings(allowed_hosts=here, allowed_origins=[f"http://{name}" for name in here])
        app = _Guard(server.streamable_http_app(streamable_http_path=PATH, transport_security=security), token)
        print(f"trackwalker mcp: http://127.0.0.1:{chosen}{PATH}", file=sys.stderr, flush=True)
        try:
            uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on")).run(sockets=[door])
        finally:
            toolbox.ws.close()


class _Guard:
    """Lets nothing through that does not carry the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope.get("headers", []) if name.lower() == b"authorization"]
        if scope["type"] == "http" and len(given) == 1 and hmac.compare_digest(given[0], self._expected):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"a token is needed: Authorization: Bearer ...\n"})


def read_token(path: Path | None) -> str:
    """The token from a file that only its owner can read, else from the environment."""
    if path is None:
        token = os.environ.pop(TOKEN_VARIABLE, "")  # not for the programs that we start
        where = TOKEN_VARIABLE
        if not token:
            raise UsageError(f"HTTP needs a token: give --token-file, or set {TOKEN_VARIABLE}")
    else:
        where = str(path)
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UsageError(f"others can read the token file {path}: chmod 600 {path}")
            token = path.read_text().strip()
        except OSError as e:
            raise UsageError(f"cannot read the token file {path}: {e.strerror}") from e
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"the token of {where} is too easy: {_SHORTEST_TOKEN} letters or more, as 'openssl rand -hex 24'"
        )
    return token
