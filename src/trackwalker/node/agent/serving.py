"""How the recorder finds this agent: an address that it can reach, announced in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trackwalker.job.whole import write_whole
from trackwalker.node.agent.output import complain
from trackwalker.node.agent.spec import AgentSpec
from trackwalker.node.network.address import LOOPBACK, NoAddress, host_port, serving_address


# The agent's own small files in the job directory; a disk that is full is complained about once for each file.
class SmallFiles:
    """Files that readers see old or new, never half."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritable: set[str] = set()

    def replace(self, name: str, text: str) -> bool:
        """Write a file; False when it cannot be written now."""
        try:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as e:
            if name not in self._unwritable:
                complain(f"cannot write {name}: {e.strerror}")
            self._unwritable.add(name)
            return False
        self._unwritable.discard(name)
        return True


def address_of(spec: AgentSpec) -> str:
    """Loopback where the whole job is on this machine; else an address that the first node reaches."""
    wanted = spec.listen or os.environ.get("TRACKWALKER_LISTEN", "")
    here = len(spec.ranks) == spec.world or (not spec.owns and spec.nodes == 1)
    if not wanted and here:
        return LOOPBACK
    coordinator = spec.ranks[0].env.get("JAX_COORDINATOR_IP", "") if spec.ranks else ""
    try:
        return serving_address(wanted, coordinator)
    except NoAddress as e:
        complain(f"{e}; until then metrics are served on loopback, for a recorder on this node only")
        return LOOPBACK


def announce(spec: AgentSpec, files: SmallFiles, address: str, port: int, path: str) -> None:
    """A file for each node: on a shared file system they would write over each other's."""
    labels = {"job_id": spec.job_id, "__metrics_path__": path}
    targets = [{"targets": [host_port(address, port)], "labels": labels}]
    files.replace(f"targets/{spec.node}.json", json.dumps(targets))
