"""Network: links up and as fast as their like, RDMA ports active, and the settings that ionic fabrics need."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter

from trackwalker.node.checks.result import Check, Context, Result, as_root, failed, passed, several, skipped, warned
from trackwalker.node.network.interfaces import links
from trackwalker.node.network.rdma_ports import Port, ports

_FD_RULE = re.compile(r"\bfd[0-9a-f]{2}:", re.IGNORECASE)
_ROCE = re.compile(r"^\s*ROCE device\s*:\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_STATUS = re.compile(r"^\s*Status\s*:\s*(\w+)", re.IGNORECASE | re.MULTILINE)
_RAILS = 8  # of the machines that have these rules, when the adapters themselves cannot be counted
REACH_S = 10.0  # a lost SYN is sent again after 1, 3 and 7 s
_ALONE = "single-node job"


def nics(context: Context) -> Result:
    """Physical links and their speeds. An unused port that is down is no fault: only having none up is."""
    found = {link.name: link for link in links(context.sys) if link.kind in ("physical", "bond")}
    if not found:
        return skipped("no physical network device is visible here")
    up = {name: link.speed for name, link in found.items() if link.up}
    data = {"up": up, "down": sorted(set(found) - set(up))}
    if not up:
        return failed("no physical link is up", "check cables and drivers (ip link)", **data)
    speeds = Counter(up.values())
    text = ", ".join(
        f"{n} x {speed / 1000:g} Gb/s" if speed else f"{n} of unknown speed" for speed, n in speeds.items()
    )
    return passed(text, **data)


def rdma(context: Context) -> Result:
    """Every adapter that could carry the collectives is ACTIVE, and as fast as others of its make."""
    found = ports(context.sys)
    if not found:
        return skipped("no RDMA devices")
    active = [p for p in found if p.active]
    down = [p.name for p in found if not p.active]
    data = {"active": {p.name: p.rate for p in active}, "down": down}
    if not active:
        text = f"none of {several(len(found), 'RDMA port')} is ACTIVE"
        remedy = "check cables, switch ports and drivers (ibstat)"
        return (failed if context.nodes > 1 else warned)(text, remedy, **data)
    slow = [f"{p.name} runs at {p.rate:g} of {best:g} Gb/s" for p, best in _slow(active)]
    dark = [p.name for p in found if not p.active and any(p.model == a.model for a in active)]
    text = f"{len(active)} ACTIVE"
    if slow or dark:
        text += "".join(f"; {part}" for part in (*slow, *(f"{name} is not ACTIVE" for name in dark)))
        return warned(text, "check the cable and the switch port; fewer rails mean slower collectives", **data)
    return passed(text, **data)


def _slow(active: list[Port]) -> list[tuple[Port, float]]:
    """A port slower than all others of its model. Two of one lower speed are more likely a storage network; if they are
    not, the comparison with other nodes tells."""
    out = []
    for port in active:
        rates = Counter(p.rate for p in active if p.model == port.model)
        usual, count = rates.most_common(1)[0]
        if port.rate < usual and count > 1 and rates[port.rate] == 1:
            out.append((port, usual))
    return out


def ipv6_rules(context: Context) -> Result:
    """Routing rules of an IPv6 RoCE fabric: one for each rail, or none. Some missing shows up later as CQE errors."""
    if context.nodes < 2:
        return skipped(_ALONE)
    listed = context.command(["ip", "-6", "rule"])
    if listed is None:
        return skipped("`ip -6 rule` cannot be asked here")
    count = sum(bool(_FD_RULE.search(text)) for text in listed.splitlines())
    rails = len(_ionic(context)) or _RAILS
    if not count:
        return skipped("IPv4 fabric: no fd rules", count=0)
    if count != rails:
        remedy = "restore the RDMA routing rules of this host"
        return failed(f"{count} (expected {rails})", remedy, count=count, expected=rails)
    return passed(str(count), count=count, expected=rails)


def dcqcn(context: Context) -> Result:
    """Congestion control enabled on every Pensando adapter."""
    if context.nodes < 2:
        return skipped(_ALONE)
    adapters = _ionic(context)
    if not adapters:
        return skipped("no Pensando adapters")
    text = as_root(context.command, ["nicctl", "show", "dcqcn"])
    if not text:
        return skipped("nicctl cannot be asked here")
    enabled = sum(word.lower() == "enabled" for word in _STATUS.findall(text))
    expected = len(_ROCE.findall(text)) or len(adapters)
    if enabled != expected:
        remedy = "enable DCQCN on every adapter: without it congestion stalls the collectives"
        return failed(f"{enabled} enabled (expected {expected})", remedy, enabled=enabled, expected=expected)
    return passed(str(enabled), enabled=enabled, expected=expected)


def reach(context: Context) -> Result:
    """The coordinator's port answers. It is only held yet, so the answer is a refusal: that, too, came from there."""
    if context.nodes < 2:
        return skipped(_ALONE)
    if context.meeting is None:
        return skipped("no network plan yet")
    address, port = context.meeting
    begin = time.monotonic()
    try:
        socket.create_connection(context.meeting, timeout=REACH_S).close()
    except ConnectionRefusedError:
        pass
    except OSError as error:
        why = error.strerror or str(error)  # "timed out" has no number
        remedy = "open the firewall between the nodes, or choose another network with NCCL_SOCKET_IFNAME"
        return failed(f"{address} port {port}: {why}", remedy, address=address, port=port)
    seconds = round(time.monotonic() - begin, 4)
    return passed(f"{address} answers in {seconds * 1000:.1f} ms", address=address, port=port, answer_s=seconds)


def _ionic(context: Context) -> list[str]:
    return sorted({p.device for p in ports(context.sys) if p.driver == "ionic" or "ionic" in p.device})


CHECKS = (
    Check("nics", nics, gates=False),
    Check("rdma", rdma, gates=True),
    Check("ipv6_rules", ipv6_rules, gates=True),
    Check("dcqcn", dcqcn, gates=False, seconds=45.0),
)
PLANNED = (Check("reach", reach, gates=True),)
