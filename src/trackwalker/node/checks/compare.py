"""Are the nodes alike? One result for each thing that should be equal, naming the hosts that are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trackwalker.node.checks.result import FAIL, OFF, PASS, SKIP, WARN, Result

CLOCK_S = 0.5  # further apart, and the order of events across nodes cannot be read from their times
_MOST_HOSTS = 8


@dataclass(frozen=True)
class NodeReport:
    """One node's results, and what else it said at the rendezvous."""

    host: str
    results: Sequence[Result]
    image: str = ""  # digest of the container image
    written_at: float | None = None  # by this node's clock, when it wrote its file
    seen_at: float | None = None  # by node 0's clock, when that file was first read there

    def data(self, check: str) -> Mapping[str, Any]:
        """A check's data; empty when it has not run."""
        return next((r.data for r in self.results if r.id == check), {})


@dataclass(frozen=True)
class _Same:
    """Something that must be the same everywhere."""

    id: str
    what: str
    value: Callable[[NodeReport], Any]  # None: this node cannot say
    remedy: str
    gates: bool = False


def _speeds(report: NodeReport) -> str | None:
    """The active RDMA ports by speed, or the physical links where there is no RDMA."""
    rates = report.data("rdma").get("active") or report.data("nics").get("up")
    if not rates:
        return None
    values = sorted(rates.values())
    return ", ".join(f"{values.count(v)} x {v:g}" for v in sorted(set(values)))


def _words(value: Any) -> str | None:
    if not value:
        return None
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v}" for k, v in sorted(value.items()))
    return value if isinstance(value, str) else ", ".join(map(str, value))


def _version(key: str) -> Callable[[NodeReport], str | None]:
    return lambda report: _words(report.data("versions").get(key))


_UPDATE = "bring the odd hosts to what the others have, or leave them out"
SAME = (
    _Same("uniform_gpus", "GPUs", lambda r: r.data("gpus").get("count"), "leave the odd hosts out", gates=True),
    _Same("uniform_driver", "GPU driver", _version("driver"), _UPDATE),
    _Same("uniform_firmware", "GPU firmware", _version("firmware"), _UPDATE),
    _Same("uniform_nic_firmware", "NIC firmware", _version("nic_firmware"), _UPDATE),
    _Same("uniform_kernel", "kernel", _version("kernel"), _UPDATE),
    _Same("uniform_image", "image digest", lambda r: r.image or None, "pin the image by its digest", gates=True),
    _Same("uniform_speed", "link speeds", _speeds, "check cables and switch ports of the odd hosts"),
)
DEFAULTS = {**{thing.id: FAIL if thing.gates else WARN for thing in SAME}, "uniform_clock": WARN}


def compare(reports: Sequence[NodeReport], policy: Mapping[str, str] | None = None) -> list[Result]:
    """One result for each thing that should agree; nothing to compare on a single node."""
    if len(reports) < 2:
        return []
    results = [_same(thing, reports) for thing in SAME]
    results.append(_clocks(reports))
    wanted = {**DEFAULTS, **(policy or {})}
    return [replace(r, status=wanted[r.id]) if r.status == FAIL else r for r in results if wanted[r.id] != OFF]


def _same(thing: _Same, reports: Sequence[NodeReport]) -> Result:
    groups: dict[Any, list[str]] = {}
    for report in reports:
        value = thing.value(report)
        if value is not None:
            groups.setdefault(value, []).append(report.host)
    if not groups:
        return Result(thing.id, SKIP, f"no node reports its {thing.what}")
    # The most usual first; of equals the one that node 0, or the node next to it, has.
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    data = {"groups": [{"value": value, "hosts": hosts} for value, hosts in ordered]}
    usual, most = ordered[0]
    silent = [r.host for r in reports if thing.value(r) is None]
    if len(ordered) == 1 and not silent:
        return Result(thing.id, PASS, f"{thing.what}: {usual} on all {len(most)}", data)
    if len(ordered) == 1:
        return Result(thing.id, WARN, f"{thing.what}: not known on {_list(silent)}", {**data, "silent": silent})
    odd = "; ".join(f"{value} on {_list(hosts)}" for value, hosts in ordered[1:])
    return Result(thing.id, FAIL, f"{thing.what}: {odd} (others: {usual})", data, thing.remedy)


def _list(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
    return ", ".join(hosts[:_MOST_HOSTS]) + more


def _clocks(reports: Sequence[NodeReport]) -> Result:
    """How far apart the clocks are, as far as it can be proven.

    On NFS each node has measured itself against the server. Everywhere, a file that node 0 read before its writer's
    clock says it was written proves that clock to be ahead by at least the difference.
    """
    measured = {
        r.host: (r.data("clock")["offset_s"], r.data("clock").get("offset_error_s", 0.0))
        for r in reports
        if "offset_s" in r.data("clock")
    }
    ahead = {
        r.host: r.written_at - r.seen_at
        for r in reports
        if r.written_at is not None and r.seen_at is not None and r.written_at - r.seen_at > CLOCK_S
    }
    data: dict[str, Any] = {"against_server": measured, "ahead_of_node_0": ahead}
    remedy = "keep all clocks in step (chrony, ptp4l): times across nodes cannot be compared"
    if ahead:
        worst = ", ".join(f"{host} is at least {seconds:.1f} s ahead" for host, seconds in ahead.items())
        return Result("uniform_clock", FAIL, f"clocks: {worst} of node 0", data, remedy)
    if len(measured) < 2:
        return Result("uniform_clock", SKIP, "clocks: the nodes share no clock to be compared with", data)
    middle = sorted(offset for offset, _ in measured.values())[len(measured) // 2]
    odd = {h: o - middle for h, (o, error) in measured.items() if abs(o - middle) - 2 * error > CLOCK_S}
    if odd:
        worst = ", ".join(f"{host} {seconds:+.1f} s" for host, seconds in odd.items())
        return Result("uniform_clock", FAIL, f"clocks: {worst} from the others", data, remedy)
    spread = max(o for o, _ in measured.values()) - min(o for o, _ in measured.values())
    return Result("uniform_clock", PASS, f"clocks: within {spread:.3f} s", data)
