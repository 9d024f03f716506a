"""Playbooks are data: they load, name known causes, and a mistake in one is a clear line."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

import pytest

from trackwalker.diagnose.causes.detect import DETECTORS
from trackwalker.diagnose.causes.playbook import Playbook, load_playbook, load_playbooks
from trackwalker.diagnose.facts.log_facts import FACTS
from trackwalker.errors import UsageError

PLAYBOOKS = load_playbooks()
ABOUT = "retry: hang\nsweep: hang\ngroup: stop\ntopics: [hang]\nabout_host: false\n"
CAPACITY_ACTIONS = {"exclude-nodes", "drain-node", "cancel-job", "restart-job"}


def test_the_shipped_set() -> None:
    assert {p.id for p in PLAYBOOKS} >= {"collective-hang", "cpu-contention", "node-death", "healthy"}


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda p: p.id)
def test_every_playbook_can_be_executed_and_read(playbook: Playbook) -> None:
    assert playbook.body.startswith("# ")
    assert any(t.role == "require" for t in playbook.tests)
    for test in [*playbook.tests, *playbook.screen]:
        if test.fact is not None:
            assert test.fact in FACTS
            continue
        if test.signature is not None:
            assert test.signature
            continue
        assert test.detector in DETECTORS
        query = Template(test.query or "").substitute(window="60s", tail="60s", start="0.5", end="1.0")
        assert "@ 1.0" in query or "@ 0.5" in query, "evidence must carry its moment"
        for metric in test.metrics:
            assert re.search(rf"\b{metric}\b", query)
    for action in playbook.actions:
        if action.do in CAPACITY_ACTIONS:
            assert action.needs_approval


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no front matter", "front matter"),
        ("---\nid: [\n---\nbody\n", "bad front matter"),
        ("---\nid: x\n---\nbody\n", "Field required"),
        (
            f"---\nid: x\ntitle: t\nsymptoms: [stall]\n{ABOUT}summary: s\ntests: [{{id: a, role: require}}]\n---\n",
            "needs a fact, a signature or a query",
        ),
        (f"---\nid: x\ntitle: t\nsymptoms: [sleepy]\n{ABOUT}summary: s\ntests: []\n---\n", "symptoms"),
    ],
)
def test_a_bad_playbook_is_one_clear_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.md"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_playbook(path)
    assert complaint in str(error.value)
    assert "bad.md" in str(error.value)
    assert "\n" not in str(error.value)
