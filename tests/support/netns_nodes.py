"""A network for the nodes of a test's Slurm: a namespace for each node, a bridge as the switch, cables that can be bad.

Traffic between two nodes crosses the switch, except where a cable of their own joins them. A bad cable loses packets
of one pair and of nobody else, and the rest of the machine's network is left alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from trackwalker.lab.real.network import unavailable

_NAMES = Path("/run/netns")
_CONTROLLER = 254  # last number of the address that the machine itself has on the switch
# Gloo binds to the address that its own host name resolves to: every node needs a name and a hosts file of its own.
_ENTER = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
_COMMAND_S = 20.0


class NodeNetwork:
    """The switch with a port for each node and one for this machine, where the controller runs."""

    def __init__(self, nodes: int, folder: Path) -> None:
        self._nodes, self._hosts = nodes, folder / "hosts"
        self._token = f"tws{os.getpid()}"
        self._cables: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> NodeNetwork:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def network(self) -> str:
        """The addresses of all nodes, as TRACKWALKER_LISTEN names a network."""
        return f"{self._subnet}.0/24"

    @property
    def controller(self) -> str:
        """Where the nodes find this machine."""
        return f"{self._subnet}.{_CONTROLLER}"

    def address(self, node: int) -> str:
        """A node's address; nodes count from 0."""
        return f"{self._subnet}.{node + 1}"

    def enter(self, node: int, name: str) -> list[str]:
        """The words before a command that is to run on a node: it has the node's network, name and hosts file."""
        inside = ["nsenter", f"--net={_NAMES / self._namespace(node)}", "unshare", "--uts", "--mount"]
        return [*inside, "sh", "-c", _ENTER, name, str(self._hosts)]

    def name_nodes(self, names: list[str]) -> None:
        """Let every node find every other by its name."""
        rows = [f"{self.address(i)} {name}" for i, name in enumerate(names)]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", *rows]) + "\n")

    def bad_cable(self, a: int, b: int, loss: float, delay_s: float = 0.0) -> None:
        """Join two nodes by a cable of their own that loses this share of what the first sends to the second.

        On a cable without length TCP mends a loss at once; `delay_s`, both ways, is what makes each one cost time.
        """
        switch = self._switch
        for end, other in ((a, b), (b, a)):
            inside = self._namespace(end)
            _ip("-n", switch, "link", "add", f"c{end}", "type", "veth", "peer", "name", "cable", "netns", inside)
            _ip("-n", switch, "link", "set", f"c{end}", "up")
            _ip("-n", inside, "link", "set", "cable", "up")
            _ip("-n", inside, "route", "add", f"{self.address(other)}/32", "dev", "cable", "src", self.address(end))
        words = [
            "nsenter",
            f"--net={_NAMES / switch}",
            sys.executable,
            "-m",
            "trackwalker.lab.real.relay",
            f"c{a}",
            f"c{b}",
        ]
        self._cables.append(
            subprocess.Popen([*words, str(loss), str(delay_s), str(os.getpid())], stdin=subprocess.DEVNULL, cwd="/")
        )
        ping = ["nsenter", f"--net={_NAMES / self._namespace(b)}", sys.executable, "-c", _REACHES, self.address(a)]
        deadline = time.monotonic() + 20
        while subprocess.run(ping, capture_output=True, timeout=_COMMAND_S, check=False).returncode:
            assert self._cables[-1].poll() is None, "the relay in the cable ended"
            assert time.monotonic() < deadline, "nothing crosses the cable"

    def close(self) -> None:
        """Leave no process and no device behind."""
        for relay in self._cables:
            relay.kill()
            relay.wait()
        for name in [self._switch, *map(self._namespace, range(self._nodes))]:
            with contextlib.suppress(AssertionError):
                _ip("netns", "del", name)

    @property
    def _switch(self) -> str:
        return f"{self._token}-sw"

    def _namespace(self, node: int) -> str:
        return f"{self._token}-n{node}"

    def _build(self) -> None:
        routes = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True).stdout
        tried = (f"10.214.{(os.getpid() + i) % 254}" for i in range(254))
        self._subnet = next(subnet for subnet in tried if f"{subnet}." not in routes)
        switch = self._switch
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "name", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        _ip("link", "add", self._token, "type", "veth", "peer", "name", "host", "netns", switch)  # goes with the switch
        _ip("-n", switch, "link", "set", "host", "master", "br0", "up")
        _ip("addr", "add", f"{self.controller}/24", "dev", self._token)
        _ip("link", "set", self._token, "up")
        for node in range(self._nodes):
            name = self._namespace(node)
            _ip("netns", "add", name)
            _ip("-n", switch, "link", "add", f"n{node}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"n{node}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")


# A closed port answers with a refusal, which came back over the cable.
_REACHES = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=1)
except ConnectionRefusedError:
    pass
"""


def missing() -> str:
    """Why there can be no such network here; empty when there can."""
    return unavailable() or ""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
