"""What every fault is: a function that changes the run and returns how it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Shape, Sheet
from trackwalker.lab.world import Floats, Run

Show = Callable[[Sheet, JobLog], None]
Place = float | int  # a fraction of the run's steps (0.4) or a step number (97)
Hosts = str | list[str]

FLOWS = ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts")  # what an RDMA port counts while it carries something

FAULTS: dict[str, Callable[..., Show]] = {}


def fault(build: Callable[..., Show]) -> Callable[..., Show]:
    """Register a fault under its function's name, with dashes."""
    name = build.__name__.replace("_", "-")
    if name in FAULTS:  # the second would silently be used for scenarios of the first
        raise ValueError(f"two faults are called '{name}'")
    FAULTS[name] = build
    return build


def many(hosts: Hosts) -> list[str]:
    """One host or several, as a list."""
    return [hosts] if isinstance(hosts, str) else list(hosts)


def only(host: Hosts) -> str:
    """The one host of a fault that hits one."""
    (name,) = many(host)
    return name


def waited(run: Run, factor: float) -> float:
    """Watts that a GPU draws less while it waits for a slower one; who holds the others up does not wait."""
    return (1.0 - 1.0 / factor) * (run.profile.active_w - run.profile.spin_w)


def ends_at(run: Run, last: int) -> float:
    """When a step ends, or the work, where the step is behind it."""
    return run.work_end if last >= run.at(1.0) else run.time_of(last)


def by_step(run: Run, strength: Floats) -> Shape:
    """A strength per step as a function of time."""
    ends, known = run.ends, strength[: max(1, len(run.ends))]
    return lambda t: known[np.clip(np.searchsorted(ends, t), 0, len(known) - 1)]


def port_dark(run: Run, sheet: Sheet, name: str, device: int, since: float, until: float) -> None:
    """One of a host's eight ports has no link; the other seven carry its traffic."""
    sheet.put("hw_rdma_port_state", 0.0, since, until, name, device=f"{run.spec.nic}_{device}")
    for metric in FLOWS:
        for port in range(8):
            much = 0.0 if port == device else 8 / 7
            sheet.scale(f"hw_rdma_{metric}_total", much, since, until, name, device=f"{run.spec.nic}_{port}")


def rewritten(change: Callable[[str, Run], str]) -> Show:
    """How a fault shows that changes the text of the merged log."""

    def show(sheet: Sheet, log: JobLog) -> None:
        whole = log.write

        def write(path: Path, workers: Path | None) -> None:
            whole(path, workers)
            path.write_text(change(path.read_text(), log.run))

        log.write = write  # type: ignore[method-assign]

    return show


def nothing(sheet: Sheet, log: JobLog) -> None:
    """How a fault shows that only changes the run's times."""
