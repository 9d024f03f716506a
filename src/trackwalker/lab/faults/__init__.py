"""The fault library: what can happen to a run, and where it shows.

A fault first changes the run (how slow, where it stops), then, once the times are known, shows itself in metrics and
log.
Places in the run are fractions of its steps (`0.4`) or step numbers (`97`).
"""

from trackwalker.lab.faults import (
    clocks,
    compiling,
    congestion,
    cpu,
    data,
    dead_ports,
    ends,
    gpu_heat,
    lossy_ports,
    lost_gpus,
    memory,
    observer,
    power,
    room_heat,
    starts,
    storage,
    stuck_hosts,
    trainer_logs,
    training,
    words,
)
from trackwalker.lab.faults.base import FAULTS

__all__ = [
    "FAULTS",
    "clocks",
    "compiling",
    "congestion",
    "cpu",
    "data",
    "dead_ports",
    "ends",
    "gpu_heat",
    "lossy_ports",
    "lost_gpus",
    "memory",
    "observer",
    "power",
    "room_heat",
    "starts",
    "storage",
    "stuck_hosts",
    "trainer_logs",
    "training",
    "words",
]
