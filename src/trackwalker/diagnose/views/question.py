"""A question in plain words: the verdict stays the same, its summary begins with what was asked."""

from __future__ import annotations

import re

from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.causes import Topic, about_topic

# A topic's words, and what to say when none of its causes was found.
TOPICS: dict[Topic, tuple[str, str]] = {
    "speed": (r"slow|tgs|mfu|throughput|tokens|speed|step time|perf", "no cause for a slowdown was found"),
    "stop": (r"hang|hung|stuck|stall|freeze|frozen|stop|progress", "the run is not known to have hung"),
    "memory": (r"memory|oom|leak", "no trouble with memory was found"),
    "network": (r"network|nic|rdma|nccl|rccl|fabric|link|congest", "no trouble with the network was found"),
    "loss": (r"loss|nan|diverg|gradient", "the loss shows nothing unusual"),
}


def answer(question: str, verdict: Verdict) -> Verdict:
    """The verdict with a summary that answers the question first; it says so when the answer lies elsewhere."""
    roots = {c.cause for c in verdict.causes if c.role == "root"}
    for topic, (words, nothing) in TOPICS.items():
        if re.search(words, question, re.IGNORECASE):
            if about_topic(roots, topic):
                return verdict
            found = verdict.outcome == "incident"
            link = " What was found instead: " if found else " "
            return verdict.model_copy(
                update={"summary": f"Asked \u201c{_quoted(question)}\u201d: {nothing}.{link}{verdict.summary}"}
            )
    return verdict


def _quoted(question: str) -> str:
    return " ".join(question.split())[:80]
