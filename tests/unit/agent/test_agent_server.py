"""The server as the official client sees it, in one process: progress of long calls, schemas, prompts, refusals."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from helpers import make_job

from trackwalker.agent import server, toolbox
from trackwalker.agent.audit import Audit, Caller
from trackwalker.agent.tools import list_jobs
from trackwalker.agent.workspace import Workspace

# Not imported here: every worker of the landing tier collects this file.
pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="the agent extra is not installed")


@pytest.mark.real_clock
def test_a_long_call_tells_that_it_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mcp

    make_job(tmp_path / "outputs", "8308-JAX-a")
    monkeypatch.setattr(server, "_TELL_EVERY_S", 0.02)
    box = toolbox.Toolbox(Workspace(tmp_path / "outputs"), Audit(tmp_path / "audit.jsonl"), Caller())
    quick = box.call

    def slow(tool: Any, **args: Any) -> str:
        time.sleep(0.15)
        return quick(tool, **args)

    monkeypatch.setattr(box, "call", slow)
    told: list[str] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async def talk() -> None:
        with anyio.fail_after(30):
            async with mcp.Client(server.make_server(box)) as client:
                answer = await client.call_tool("list_jobs", {}, progress_callback=heard)
                assert answer.structured_content["total"] == 1
                count = len(told)
                await client.call_tool("list_jobs", {})  # who does not ask is told nothing
                assert len(told) == count

    anyio.run(talk)
    assert told
    assert told[0].startswith("list_jobs: at work for")


def test_every_tool_declares_what_it_answers(tmp_path: Path) -> None:
    box = toolbox.Toolbox(Workspace(tmp_path), Audit(tmp_path / "audit.jsonl"), Caller())
    for tool in toolbox.READ_TOOLS:
        schema = server._answers(tool)
        assert schema["type"] == "object"
        assert {"next", "left", "notice"} <= set(schema["properties"]), tool.__name__
    assert list_jobs in box.tools()
