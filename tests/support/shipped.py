"""The lab's shipped scenarios, read once in a worker: reading all of them takes it two seconds."""

from __future__ import annotations

from trackwalker.lab.scenario import all_scenarios

SHIPPED = tuple(all_scenarios())
