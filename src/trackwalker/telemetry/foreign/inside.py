"""A recorded database that holds other exporters' names: the same numbers in ours beside them.

A quantity is what it measures, not what its exporter calls it: a diagnosis asks for our names wherever the numbers lie.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trackwalker.telemetry.blocks import BlockWriter
from trackwalker.telemetry.client import Telemetry
from trackwalker.telemetry.foreign.borrowed import Borrowed, write_rows
from trackwalker.telemetry.foreign.names import Rule, load_maps
from trackwalker.telemetry.foreign.remote import Cost

_SEED = 0x0D15EA5E  # of the block's name: none that a recorder or the lab would draw


def untold(metrics: frozenset[str]) -> list[Rule]:
    """The rules for metrics of others that are not there in our names."""
    return [replace(r, host=("host", *r.host)) for r in load_maps().known(metrics) if r.to not in metrics]


def write_ours(telemetry: Telemetry, rules: list[Rule], into: Path) -> frozenset[str]:
    """Write these as a block of a folder; returns the names, theirs, of which there is one."""
    writer, maps, begin_end = BlockWriter(into, _SEED, block_ms=1 << 50), load_maps(), telemetry.range()
    done = set()
    for rule in rules:
        only = ",".join(f'{name}=~"{value}"' for name, value in rule.only.items())
        rows = telemetry.raw(f"{rule.name}{{{only}}}", *begin_end)
        if write_rows(writer, maps, rule, rows, None, Borrowed(Cost())):
            done.add(rule.name)
    into.mkdir(parents=True, exist_ok=True)
    writer.close()
    return frozenset(done)
