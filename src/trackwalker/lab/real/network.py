"""A small network on one machine: a namespace for each rank, a bridge as the switch, and links that can be broken.

Linux namespaces and veth pairs, as root. Loss and delay are made by a relay of ours in the link (`lab/real/relay.py`):
the kernel's own netem is missing from many kernels.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.lab.real.undo import NotHereError, Undo, start_of
from trackwalker.launch.plan import Plan

_NAMES = Path("/run/netns")
_PREFIX = "twlab-"
_SUBNET = "10.213.7"
_COMMAND_S = 20.0
# Gloo binds to the address its own host name resolves to: each rank gets a name and a hosts file of its own.
_ENTER = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def unavailable() -> str | None:
    """Why there can be no network of namespaces here; None when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need the command {missing[0]}"
    name = f"{_PREFIX}probe{os.getpid()}"
    done = _try("ip", "netns", "add", name)
    if done:
        return f"this kernel makes no network namespaces ({done})"
    try:
        bridge = _try("ip", "-n", name, "link", "add", "name", "br0", "type", "bridge")
        pair = _try("ip", "-n", name, "link", "add", "name", "v0", "type", "veth", "peer", "name", "v1")
        return f"this kernel has no bridge or veth devices ({bridge or pair})" if bridge or pair else None
    finally:
        _try("ip", "netns", "del", name)


def build(token: str, ranks: int, hosts_file: Path, undo: Undo) -> None:
    """A switch and a namespace for each rank, all up; `undo` takes everything away again."""
    switch = f"{_PREFIX}{token}-sw"
    undo.push("command", "ip", "netns", "del", switch)
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "name", "br0", "type", "bridge")
    _ip("-n", switch, "link", "set", "br0", "up")
    for rank in range(ranks):
        name = f"{_PREFIX}{token}-r{rank}"
        undo.push("command", "ip", "netns", "del", name)
        _ip("netns", "add", name)
        _ip("-n", switch, "link", "add", f"r{rank}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", switch, "link", "set", f"r{rank}", "master", "br0", "up")
        _ip("-n", name, "addr", "add", f"{address(rank)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
    rows = ["127.0.0.1 localhost", *(f"{address(r)} rank{r}" for r in range(ranks))]
    hosts_file.write_text("\n".join(rows) + "\n")


def address(rank: int) -> str:
    """A rank's address."""
    return f"{_SUBNET}.{rank + 1}"


def into_namespaces(plan: Plan, token: str, hosts_file: Path) -> Plan:
    """The same run with every rank in its own namespace, meeting at rank 0's address."""
    ranks = []
    for spec in plan.agent.ranks:
        enter = ["nsenter", f"--net={_NAMES}/{_PREFIX}{token}-r{spec.rank}", "unshare", "--uts", "--mount"]
        argv = [*enter, "sh", "-c", _ENTER, f"rank{spec.rank}", str(hosts_file), *spec.argv]
        ranks.append(dataclasses.replace(spec, argv=argv, env={**spec.env, "JAX_COORDINATOR_IP": address(0)}))
    return dataclasses.replace(plan, agent=dataclasses.replace(plan.agent, ranks=ranks))


def link_down(pid: int, undo: Undo) -> None:
    """Take the rank's link down at the switch: its own end loses the carrier."""
    switch, port = _port_of(pid)
    undo.push("command", "ip", "-n", switch, "link", "set", port, "up")
    _ip("-n", switch, "link", "set", port, "down")


def impair(pid: int, undo: Undo, loss: float = 0.0, delay_s: float = 0.0) -> None:
    """Put a relay into the rank's link that loses a share of what the rank sends, or delays both directions."""
    switch, port = _port_of(pid)
    near, far = f"{port}n", f"{port}f"
    undo.push("command", "ip", "-n", switch, "link", "set", port, "master", "br0")
    undo.push("command", "ip", "-n", switch, "link", "del", near)
    _ip("-n", switch, "link", "add", near, "type", "veth", "peer", "name", far)
    _ip("-n", switch, "link", "set", near, "up")
    _ip("-n", switch, "link", "set", far, "master", "br0", "up")
    words = ["nsenter", f"--net={_NAMES}/{switch}", sys.executable, "-m", "trackwalker.lab.real.relay", port, near]
    relay = subprocess.Popen(
        [*words, str(loss), str(delay_s), str(os.getpid())], stdin=subprocess.DEVNULL, start_new_session=True
    )
    undo.push("end", relay.pid, start_of(relay.pid))
    time.sleep(0.5)  # it listens before the link is cut over: until then the bridge still forwards
    if relay.poll() is not None:
        raise NotHereError("the relay could not open the link (raw sockets need root)")
    _ip("-n", switch, "link", "set", port, "nomaster")


def _port_of(pid: int) -> tuple[str, str]:
    """The switch and the port of the namespace a process lives in."""
    mine = os.stat(f"/proc/{pid}/ns/net").st_ino
    for path in sorted(_NAMES.glob(f"{_PREFIX}*-r*")) if _NAMES.exists() else []:
        if os.stat(path).st_ino == mine:
            stem, _, port = path.name.rpartition("-")
            return f"{stem}-sw", port
    raise UsageError(
        "the ranks of this job share the machine's network, where a broken link would break everything else: start a "
        "job with a network of its own (trackwalker demo --fault packet-loss)"
    )


def _ip(*words: str) -> None:
    trouble = _try("ip", *words)
    if trouble:
        raise NotHereError(f"ip {' '.join(words)}: {trouble}")


def _try(*words: str) -> str | None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    return None if done.returncode == 0 else " ".join(done.stderr.split()) or f"exit code {done.returncode}"
