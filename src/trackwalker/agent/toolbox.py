"""Where every call of a tool passes: secrets go, the audit log is written, errors become one line."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from trackwalker.agent.actions import Office, cancel_job, exclude_nodes, stack_dump, submit_job
from trackwalker.agent.answers import Answer, as_text
from trackwalker.agent.audit import Audit, Caller
from trackwalker.agent.job_files import files, rank_tails
from trackwalker.agent.looking import metrics, tests, what_changed
from trackwalker.agent.metrics import query_metrics
from trackwalker.agent.texts import logs, stacks
from trackwalker.agent.tools import compare, diagnose, evidence, list_jobs, perf_summary, playbook, triage
from trackwalker.agent.workspace import Workspace
from trackwalker.errors import RefusedError, TrackwalkerError
from trackwalker.job.scrub import Scrubber

Tool = Callable[..., Answer]

READ_TOOLS: tuple[Tool, ...] = (
    *(list_jobs, triage, diagnose, what_changed, tests, compare, evidence, metrics, query_metrics),
    *(logs, rank_tails, files, playbook, perf_summary, stacks),
)
ACTION_TOOLS: tuple[Tool, ...] = (submit_job, cancel_job, exclude_nodes, stack_dump)


class Toolbox:
    """The tools over one workspace for one caller; without an office there are no actions."""

    def __init__(self, ws: Workspace, audit: Audit, caller: Caller, office: Office | None = None) -> None:
        self.ws, self.audit, self.caller, self.office = ws, audit, caller, office

    def tools(self) -> list[Tool]:
        """What this caller can call."""
        return [*READ_TOOLS, *(ACTION_TOOLS if self.office is not None else ())]

    def call(self, tool: Tool, **args: Any) -> str:
        """Call a tool; returns compact JSON, raises TrackwalkerError with one line."""
        begin, acts = time.monotonic(), tool in ACTION_TOOLS
        first: Workspace | Office = self.ws
        if acts:
            if self.office is None:
                raise RefusedError("actions are switched off: start the server with --actions and --policy")
            first = self.office
            self._note(tool, args, "begin", "", 0, begin)  # no action without a line that it began
        try:
            answer = tool(first, **args)
        except RefusedError as e:
            self._note(tool, args, "refused", str(e), 0, begin)
            raise
        except Exception as e:
            self._note(tool, args, "error", str(e), 0, begin)
            raise
        text = as_text(answer, self._scrubber(args))
        self._note(tool, args, "ok", getattr(answer, "state", ""), len(text.encode("utf-8", "replace")), begin)
        return text

    def bound(self, tool: Tool, complaint: Callable[[str], Exception]) -> Callable[..., str]:
        """The tool as a caller sees it: its name, words and parameters without the workspace; errors as one line."""
        signature = inspect.signature(tool, eval_str=True)
        own = list(signature.parameters.values())[1:]

        @wraps(tool)
        def call(**args: Any) -> str:
            try:
                return self.call(tool, **args)
            except (TrackwalkerError, OSError) as e:  # OSError: the audit log, or evidence that vanished
                raise complaint(self.line(e)) from e

        call.__signature__ = signature.replace(parameters=own, return_annotation=str)  # type: ignore[attr-defined]
        call.__annotations__ = {**{p.name: p.annotation for p in own}, "return": str}
        call.__doc__ = inspect.getdoc(tool)  # without the indentation: a model reads it
        del call.__wrapped__
        return call

    def line(self, error: Exception) -> str:
        """An error as a model may read it: one line, no secrets."""
        return " ".join(self.ws.scrubber().clean(str(error)).split())[:1000]

    def _scrubber(self, args: dict[str, Any]) -> Scrubber:
        name = args.get("job")
        try:
            return self.ws.scrubber(self.ws.job(name) if isinstance(name, str) else None)
        except TrackwalkerError:
            return self.ws.scrubber()

    def _note(self, tool: Tool, args: dict[str, Any], outcome: Any, says: str, size: int, begin: float) -> None:
        given = {name: value for name, value in args.items() if value not in (None, "")}
        seconds = time.monotonic() - begin
        self.audit.note(self.caller, tool.__name__, given, outcome, says=says, size=size, seconds=seconds)
