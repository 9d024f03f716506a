"""A client of the MCP server as tests use it, and a workspace with one local job for it to talk about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest

from trackwalker.job.journal import read
from trackwalker.job.processes import read_stat
from trackwalker.job.run import RunRecord

if find_spec("mcp") is None:  # imported where it is used: every worker collects these files, and it takes 1.5 s
    pytest.skip("the agent extra is not installed", allow_module_level=True)

LARGEST = 8_000
LOCAL = "local_20261115_093000_ab12"


class Talk:
    """One client; every message of the server is measured."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def call(self, tool: str, **args: Any) -> dict[str, Any]:
        """The answer of a tool that must succeed."""
        answer = await self.client.call_tool(tool, args)
        assert len(answer.content[0].text.encode()) < args.get("max_bytes", LARGEST), tool
        assert not answer.is_error, answer.content[0].text
        found: dict[str, Any] = json.loads(answer.content[0].text)
        assert answer.structured_content == found  # the client has checked it by the tool's own schema
        assert ("next" in found) == ("left" in found), found.keys()
        return found

    async def refused(self, tool: str, **args: Any) -> str:
        """The complaint of a tool that must refuse."""
        answer = await self.client.call_tool(tool, args)
        assert answer.is_error, answer.content[0].text
        return str(answer.content[0].text)


@asynccontextmanager
async def over_stdio(workspace: Path, state: Path, *options: str) -> AsyncIterator[Talk]:
    env = {**os.environ, "XDG_STATE_HOME": str(state)}
    words = ["-m", "trackwalker", "mcp", "--workspace", str(workspace), *options]
    import mcp

    server = mcp.StdioServerParameters(command=sys.executable, args=words, env=env)
    async with mcp.Client(mcp.stdio_client(server)) as client:
        yield Talk(client)


def run(talk: Callable[[], Awaitable[None]], limit_s: float = 120) -> None:
    async def limited() -> None:
        with anyio.fail_after(limit_s):
            await talk()

    anyio.run(limited)


def audit(state: Path) -> list[dict[str, Any]]:
    return read(state / "trackwalker" / "agent" / "audit.jsonl").items


@pytest.fixture
def local_job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A workspace with one local job; its agent is a real process."""
    folder = tmp_path / "outputs" / f"{LOCAL}-JAX-x"
    (folder / "agent").mkdir(parents=True)
    (tmp_path / "outputs" / f"{folder.name}.log").write_text("0: hello\n")
    (folder / "log").symlink_to(f"../{folder.name}.log")
    RunRecord(
        id=LOCAL, name="JAX-x", model="x", scheduler="local", trainer="tiny", created=0, argv=["run", "x"],
        command=["x"], workspace=str(tmp_path / "outputs"),
    ).save(folder / "run.json")  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stat = read_stat(process.pid)
    assert stat is not None
    (folder / "agent" / "state.json").write_text(json.dumps({"agent": {"pid": process.pid, "start": stat.start}}))
    yield process
    process.kill()
    process.wait()
