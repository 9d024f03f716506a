"""No id stands alone: every cause has words, and so has everything that the engine may miss."""

from __future__ import annotations

import re

import pytest

from trackwalker.diagnose.causes.playbook import load_playbooks
from trackwalker.job.causes import cause_label, cause_name, known
from trackwalker.report.words import lacking


@pytest.mark.parametrize("cause", sorted(known()))
def test_a_cause_reads_as_words(cause: str) -> None:
    name = cause_name(cause)
    assert name[0].isupper()
    assert len(name) <= 50
    assert not re.search(r"\b(?:oom|tsdb|init|fs|alloc)\b", name)
    assert cause_label(cause) == f"{name} ({cause})"


def test_a_cause_of_somebody_else_is_named_too() -> None:
    assert cause_label("rdma-gone") == "RDMA gone (rdma-gone)"


def test_what_is_missing_is_named_in_words() -> None:
    needed = {t.fact for book in load_playbooks() for t in book.tests if t.fact and t.role == "require"}
    assert [fact for fact in sorted(needed) if lacking([fact]) == [fact]] == []
    assert lacking(["scrape-gap", "frozen-exporter", "hw_gpu_power_watts"]) == [
        "recorded metrics",
        "hw_gpu_power_watts",
    ]
