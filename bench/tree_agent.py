"""The real node agent (its zipapp, one rank that sleeps) on a made-up /sys with 8 MI300X and 8 mlx5 adapters."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from trackwalker.launch.code.bundle import build_agent
from trackwalker.node.agent.spec import AgentSpec, RankSpec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from sysfs_trees import adapter, mi300x

ADAPTERS = 8
# The agent as it is; only /sys is another folder, because no option of the real agent says so.
_ENTRY = """
import functools, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from trackwalker.node.agent import agent
from trackwalker.node.agent.spec import load_spec
agent.machine_collectors = functools.partial(agent.machine_collectors, sysfs=sys.argv[3])
sys.exit(agent.Agent(load_spec(Path(sys.argv[2]))).run(adopt=False))
"""


def plant(root: Path) -> Path:
    """A folder that looks like the /sys of such a node."""
    mi300x(root)
    for number in range(ADAPTERS):
        adapter(root, number, "mlx5")
    return root


class TreeAgent:
    """A started agent; `stop` ends it and its rank."""

    def __init__(self, folder: Path, sysfs: Path, node: str = "node0000") -> None:
        job = folder / "local_20260101_000000_abcd-JAX-bench"
        rank = RankSpec(0, f"{node}-r0", ["sleep", "86400"])
        job_log = job.with_suffix(".log")
        spec = AgentSpec("local_20260101_000000_abcd", "JAX-bench", "bench", node, job, job_log, [rank], 1, 1.0)
        (job / "agent").mkdir(parents=True)
        file = job / "agent" / "spec.json"
        file.write_text(json.dumps(dataclasses.asdict(spec), default=str))
        bundle = build_agent(job / "agent" / "agent.pyz")
        argv = [sys.executable, "-I", "-S", "-c", _ENTRY, str(bundle), str(file), str(sysfs)]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        self._job = job
        self._targets = job / "agent" / "targets" / f"{node}.json"

    @property
    def url(self) -> str:
        """Where it serves; waits for it."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                target = json.loads(self._targets.read_text())[0]["targets"][0]
                urllib.request.urlopen(f"http://{target}/metrics", timeout=5).read()
                return f"http://{target}/metrics"
            except (OSError, ValueError, StopIteration):
                time.sleep(0.1)
        raise SystemExit("the agent does not serve its metrics")

    @property
    def ranks(self) -> list[int]:
        """The shells around the ranks: not the agent's cost."""
        state = json.loads((self._job / "agent" / "state.json").read_text())
        return [int(rank["pid"]) for rank in state["ranks"]]

    def stop(self) -> None:
        """Cancel the run and wait for its end."""
        self.process.terminate()
        self.process.wait(30)
