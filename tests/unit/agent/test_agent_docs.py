"""docs/how-to/agents.md says what the server does: its tools, its policy, its set-ups."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from trackwalker.agent.audit import Audit, Caller
from trackwalker.agent.policy import Policy
from trackwalker.agent.server import make_server
from trackwalker.agent.toolbox import ACTION_TOOLS, READ_TOOLS, Toolbox
from trackwalker.agent.workspace import Workspace
from trackwalker.errors import MissingToolError

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "agents.md").read_text()


def block(language: str) -> str:
    """The first block of a language, as it would be pasted."""
    match = re.search(rf"^( *)```{language}\n(.*?)^ *```", PAGE, re.S | re.M)
    assert match is not None
    return re.sub(rf"^{match[1]}", "", match[2], flags=re.M)


def test_the_page_lists_every_tool_and_no_other() -> None:
    tables = PAGE.split("## The tools")[1].split("## What")[0], PAGE.split("| action |")[1].split("## ")[0]
    for table, tools in zip(tables, (READ_TOOLS, ACTION_TOOLS), strict=True):
        assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [tool.__name__ for tool in tools]


def test_the_policy_of_the_page_is_one(tmp_path: Path) -> None:
    path = tmp_path / "policy.yml"
    path.write_text(block("yaml"))
    path.chmod(0o600)
    policy = Policy.load(path)
    assert policy.allowed("cancel", "mcp")
    assert not policy.allowed("submit", "mcp")
    assert policy.may_approve("user:alice")


def test_the_settings_for_cursor_are_json_and_call_our_command() -> None:
    entry = json.loads(block("json"))["mcpServers"]["trackwalker"]
    assert (entry["command"], entry["args"][0]) == ("trackwalker", "mcp")


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    box = Toolbox(Workspace(tmp_path), Audit(tmp_path / "audit.jsonl"), Caller())
    with pytest.raises(MissingToolError, match=r"pip install 'trackwalker\[agent\]'"):
        make_server(box)
