"""Precedence is one graph over states, as data: no cause file names another cause, and the code names none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

import trackwalker
from trackwalker.diagnose.causes.playbook import Playbook, limits, load_playbook, load_playbooks
from trackwalker.diagnose.causes.states import states
from trackwalker.errors import UsageError
from trackwalker.job.causes import known

ROOT = Path(trackwalker.__file__).parent
PRECEDENCE = {"explains", "yields_to", "unnamed_yields_to", "disputes", "may_cause", "told_explains"}
OTHER_WORDS = {"healthy", "unclassified", "preempted"}  # an outcome, no cause at all, what another attempt may mend
MOST_NUMBERS = 73  # numeric parameters in cause files and limits.yml: may only go down


def front_matter() -> dict[str, dict]:
    return {p.stem: yaml.safe_load(p.read_text().split("---\n", 2)[1]) for p in (ROOT / "playbooks").glob("*.md")}


def test_no_cause_file_names_a_cause_that_it_beats() -> None:
    assert {name: PRECEDENCE & set(front) for name, front in front_matter().items() if PRECEDENCE & set(front)} == {}
    assert PRECEDENCE & set(Playbook.model_fields) == set()


def test_a_cause_file_with_an_old_key_or_an_unknown_state_is_refused_in_one_line(tmp_path: Path) -> None:
    text = (ROOT / "playbooks" / "oom-host.md").read_text()
    for wrong, words in (("explains: [node-death]", "explains"), ("state: out-of-luck", "no state 'out-of-luck'")):
        path = tmp_path / "mine.md"
        path.write_text(re.sub(r"^state:.*$", wrong, text, count=1, flags=re.MULTILINE))
        with pytest.raises(UsageError, match=words):
            load_playbook(path)


def test_the_code_of_diagnose_names_no_cause() -> None:
    quoted = [
        f"{path.name}:{node.lineno}: {node.value}"
        for path in sorted((ROOT / "diagnose").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known() - OTHER_WORDS
    ]
    assert quoted == []


def test_what_is_reckoned_is_a_cause_with_a_file() -> None:
    assert set(states().told["reckoned"].values()) <= known()


def test_numbers_in_cause_files_only_become_fewer() -> None:
    def count(value: object) -> int:
        if isinstance(value, dict | list):
            return sum(map(count, value.values() if isinstance(value, dict) else value))
        return int(isinstance(value, int | float) and not isinstance(value, bool))

    assert sum(map(count, front_matter().values())) + count(limits()) <= MOST_NUMBERS


def test_every_number_in_a_cause_file_has_its_reason_beside_it() -> None:
    tests = [t for f in front_matter().values() for t in [*f.get("tests", []), *f.get("screen", [])]]
    own = {t["id"]: t["with"] for t in tests if isinstance(t.get("with"), dict)}
    assert [name for name, limit in own.items() if len(limit.get("why", "")) < 20] == []


def test_every_shared_limit_has_its_reason_and_is_shared() -> None:
    used = [t.get("with") for f in front_matter().values() for t in [*f.get("tests", []), *f.get("screen", [])]]
    assert [name for name, limit in limits().items() if len(limit.get("why", "")) < 20] == []
    assert [name for name in limits() if used.count(name) < 2] == []


def test_a_limit_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.md"
    path.write_text((ROOT / "playbooks" / "oom-host.md").read_text().replace("with: one-event", "with: one-evnt"))
    with pytest.raises(UsageError, match=r"no limit .one-evnt. in limits\.yml; known: above-its-own"):
        load_playbook(path)


def test_every_state_of_a_cause_file_is_in_the_graph() -> None:
    used = {b.state for b in load_playbooks()} - {""}
    assert used <= states().known
    assert len(used) > 25


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        ("memory-growing", "all-wait"),  # by way of the kernel's kill and a rank that is gone
        ("device-broken", "driver-broken"),
        ("card-shared", "clock-low"),
        ("link-gone", "rdma-loss"),
        ("rdma-loss", "link-gone"),  # the same trouble told twice: an arrow each way
    ],
)
def test_what_comes_of_what(cause: str, effect: str) -> None:
    assert effect in states().reaches(cause)
    assert cause not in states().reaches(cause)


def test_what_others_call_it_leads_no_further() -> None:
    assert "rank-gone" in states().reaches("rdma-loss")
    assert "beats-missed" in states().reaches("rank-gone")
    assert "beats-missed" not in states().reaches("rdma-loss")
