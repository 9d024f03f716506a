"""The model's part of `trackwalker ask`: it investigates with the read-only tools, under a budget.

It cannot do harm by what it says: no tool acts, the verdict is ours, and its text is checked against what it was shown.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

from trackwalker.agent.answers import NOTICE
from trackwalker.agent.ask.grounding import STRIKE, Corpus, Grounded, check
from trackwalker.agent.toolbox import READ_TOOLS, Tool, Toolbox
from trackwalker.errors import MissingToolError, TrackwalkerError, UsageError
from trackwalker.job.scrub import Scrubber
from trackwalker.report.text import clean, clip, one_line

_SAME_CALL = 3  # the same question for the third time: it goes in circles
_CALLS_A_TURN = 4


class OutOfBudget(Exception):
    """The model may not go on; the message says what ran out."""


@dataclass(frozen=True)
class Budget:
    """The most turns (requests to the model), tokens and seconds of one question."""

    turns: int = 12
    tokens: int = 200_000
    seconds: float = 120.0

    @property
    def calls(self) -> int:
        """Calls of tools: several may be in one turn."""
        return _CALLS_A_TURN * self.turns


@dataclass
class Spending:
    """What was spent so far; every call of a tool passes here."""

    budget: Budget
    began: float = field(default_factory=time.monotonic)
    calls: int = 0
    _seen: Counter[str] = field(default_factory=Counter)

    def call(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Allow one more call; returns whether the same one was made before. Raises OutOfBudget."""
        if self.left_s <= 0:
            raise OutOfBudget(f"{self.budget.seconds:g} seconds are over")
        self.calls += 1
        if self.calls > self.budget.calls:
            raise OutOfBudget(f"it called tools {self.budget.calls} times")
        key = f"{tool} {json.dumps({k: v for k, v in args.items() if v is not None}, sort_keys=True, default=str)}"
        self._seen[key] += 1
        if self._seen[key] >= _SAME_CALL:
            raise OutOfBudget(f"it went in circles: {tool} with the same arguments for the {_SAME_CALL}rd time")
        return self._seen[key] > 1

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.began + self.budget.seconds - time.monotonic()


if TYPE_CHECKING:
    from pydantic_ai.models import Model

Ended = Literal["answered", "budget", "provider"]
Say = Callable[[str], None]
INSTRUCTIONS = (
    "You explain to an engineer what happened to a training run. The engine's verdict is in the first message and was "
    "already shown to them. It is a hypothesis: look with the tools, which only read, whether what changed most "
    "(what_changed) fits it, whether every host was asked (tests), and what it leaves open. Where they speak against "
    "it, say so, with the evidence. Then answer the question in at most eight plain sentences. Every number, host and "
    "id in your answer has to be in what the tools showed you, as it stands there: a sentence with any other is struck "
    "out before it is shown. Cite evidence ids such as e3. Do not work out figures of your own, do not blame a host "
    "without a number that tells it from the others, and say what is not known. " + NOTICE
)
_LAST_TURN = "\n(No further question fits into the budget: answer now.)"
_AGAIN = "(You asked this before; the answer is the same.)\n"


@dataclass
class Investigation:
    """What the model did and said."""

    ended: Ended = "answered"
    note: str = ""  # why there is no answer of the model
    grounded: Grounded | None = None
    turns: int = 0
    tokens: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)

    @property
    def says(self) -> str:
        """Its text, with what is not grounded struck out."""
        return self.grounded.text if self.grounded else ""


def investigate(
    toolbox: Toolbox, question: str, shown: list[str], model: Model, budget: Budget, say: Say, scrubber: Scrubber
) -> Investigation:
    """Let the model look into a question; `shown` is what the engine found. Never raises for what the provider does."""
    corpus = Corpus()
    corpus.add_names(question)
    for text in shown:
        corpus.add(text)
    out = Investigation()
    spending = Spending(budget)
    prompt = "\n\n".join([f"Question: {scrubber.clean(question)}", "What the engine found:", *shown])
    text = asyncio.run(_run(toolbox, prompt, model, spending, corpus, say, out))
    said = clean(scrubber.clean(text)).replace(STRIKE, "").strip()  # what is struck out is ours to say
    if said:
        out.grounded = check(said, corpus)
    elif out.ended == "answered":
        out.ended, out.note = "provider", "the model gave no answer: it said nothing"
    return out


async def _run(
    toolbox: Toolbox, prompt: str, model: Model, spending: Spending, corpus: Corpus, say: Say, out: Investigation
) -> str:
    """The model's last words; none where it was stopped or failed, and then `out` says why."""
    from pydantic_ai import Agent, capture_run_messages
    from pydantic_ai import Tool as AgentTool
    from pydantic_ai.exceptions import AgentRunError, UsageLimitExceeded, UserError
    from pydantic_ai.usage import RunUsage, UsageLimits

    budget, usage = spending.budget, RunUsage()

    def turns() -> int:
        return usage.requests

    tools = [
        AgentTool(_offered(toolbox, tool, spending, corpus, say, out, turns), takes_ctx=False) for tool in READ_TOOLS
    ]
    agent: Agent[None, str] = Agent(model, instructions=INSTRUCTIONS, tools=tools, retries=2, deps_type=type(None))
    limits = UsageLimits(request_limit=budget.turns, total_tokens_limit=budget.tokens)
    answer = ""
    with capture_run_messages() as messages:
        try:
            async with asyncio.timeout(budget.seconds):
                answer = (await agent.run(prompt, usage_limits=limits, usage=usage)).output
        except (OutOfBudget, UsageLimitExceeded, TimeoutError) as e:
            out.ended, out.note = "budget", f"the model was stopped: {_why(e, spending)}"
        except (AgentRunError, UserError) as e:
            out.ended, out.note = "provider", f"the model gave no answer: {_line(e, toolbox)}"
        except Exception as e:  # a provider's own library may raise anything; the verdict stands without it
            out.ended, out.note = "provider", f"the model gave no answer: {type(e).__name__}: {_line(e, toolbox)}"
    out.turns, out.tokens = usage.requests, usage.total_tokens
    out.messages = list(messages)
    return answer


def _offered(
    toolbox: Toolbox,
    tool: Tool,
    spending: Spending,
    corpus: Corpus,
    say: Say,
    out: Investigation,
    turns: Callable[[], int],
) -> Callable[..., str]:
    """A tool as the model gets it: told to the person, counted, remembered; its errors are answers."""
    inner = toolbox.bound(tool, UsageError)
    usual = {p.name: p.default for p in inspect.signature(inner).parameters.values()}
    lock = threading.Lock()  # a model may call several at once, each on a thread

    @wraps(inner)
    def call(**args: Any) -> str:
        given = {k: v for k, v in args.items() if v != usual[k]}
        with lock:
            again = spending.call(tool.__name__, given)
        say(f"looks: {tool.__name__}({', '.join(f'{k}={clip(one_line(str(v)), 80)}' for k, v in given.items())})")
        try:
            text, error = inner(**args), ""
        except TrackwalkerError as e:
            text = error = f"error: {e}"
        with lock:
            if not error:
                corpus.add(text)
            out.calls.append({"tool": tool.__name__, "args": given, "bytes": len(text), "error": error})
        last = _LAST_TURN if turns() >= spending.budget.turns - 1 else ""
        return f"{_AGAIN if again else ''}{text}{last}"

    call.__signature__ = inspect.signature(inner)  # type: ignore[attr-defined]
    del call.__wrapped__
    return call


def _why(error: Exception, spending: Spending) -> str:
    if isinstance(error, OutOfBudget):
        return str(error)
    budget = spending.budget
    if isinstance(error, TimeoutError):
        return f"{budget.seconds:g} seconds are over"
    kind = "tokens" if "token" in str(error) else "turns"
    return f"its {budget.tokens if kind == 'tokens' else budget.turns} {kind} are used up"


def _line(error: Exception, toolbox: Toolbox) -> str:
    return clip(toolbox.line(error), 300)


def open_model(name: str | None, endpoint: str | None, key: str) -> Model:
    """The model by `provider:name`, or one behind an OpenAI-compatible endpoint; raises one line where it cannot be."""
    try:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model
    except ImportError as e:
        raise MissingToolError(
            "a model needs pydantic-ai: pip install 'trackwalker[agent]', or ask with --no-model"
        ) from e
    try:
        if endpoint is not None:
            from pydantic_ai.models.openai import OpenAIChatModel
            from pydantic_ai.providers.openai import OpenAIProvider

            return OpenAIChatModel(
                name or _served(endpoint, key), provider=OpenAIProvider(base_url=endpoint, api_key=key)
            )
        return infer_model(name or "")
    except (UserError, ImportError, ValueError, TypeError) as e:
        raise MissingToolError(f"model {name or endpoint}: {clip(one_line(str(e)), 240)}") from e


def _served(endpoint: str, key: str) -> str:
    """The first model that the endpoint has."""
    import httpx

    try:
        answer = httpx.get(f"{endpoint.rstrip('/')}/models", headers={"Authorization": f"Bearer {key}"}, timeout=10)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, LookupError, TypeError, ValueError) as e:
        raise MissingToolError(f"the endpoint {endpoint} names no model: {clip(one_line(str(e)), 200)}") from e
