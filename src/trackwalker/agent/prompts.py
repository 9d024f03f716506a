"""Prompts of the MCP server: the common questions, each with the method that answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

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
