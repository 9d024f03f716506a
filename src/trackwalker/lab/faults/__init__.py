"""The fault library: what can happen to a run, and where it shows.

A fault first changes the run (how slow, where it stops), then, once the times are known, shows itself in metrics and
log.
Places in the run are fractions of its steps (`0.4`) or step numbers (`97`).
"""

from trackwalker.lab.faults import benign, gpu, host, network, observer, rarer_ends, rarer_shapes, stops, training
from trackwalker.lab.faults.base import FAULTS
from trackwalker.lab.faults.sets import (
    eighteenth_set,
    eighth_set,
    eleventh_set,
    fifteenth_set,
    fifth_set,
    fourteenth_set,
    fourth_set,
    nineteenth_set,
    ninth_set,
    second_set,
    seventeenth_set,
    seventh_set,
    sixteenth_set,
    sixth_set,
    tenth_set,
    third_set,
    thirteenth_set,
    twelfth_set,
    twentieth_set,
    twenty_first_set,
    twenty_second_set,
)

__all__ = [
    "FAULTS",
    "benign",
    "eighteenth_set",
    "eighth_set",
    "eleventh_set",
    "fifteenth_set",
    "fifth_set",
    "fourteenth_set",
    "fourth_set",
    "gpu",
    "host",
    "network",
    "nineteenth_set",
    "ninth_set",
    "observer",
    "rarer_ends",
    "rarer_shapes",
    "second_set",
    "seventeenth_set",
    "seventh_set",
    "sixteenth_set",
    "sixth_set",
    "stops",
    "tenth_set",
    "third_set",
    "thirteenth_set",
    "training",
    "twelfth_set",
    "twentieth_set",
    "twenty_first_set",
    "twenty_second_set",
]
