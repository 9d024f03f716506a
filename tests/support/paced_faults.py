"""Real faults in runs that sleep most of the time."""

from __future__ import annotations

from dataclasses import replace

from tiny_settings import QUIET, as_mapping

from trackwalker.lab.real.cases import RealCase


def paced(case: RealCase) -> RealCase:
    """A real fault in a run that sleeps between its steps, broken as soon as there is something to compare with.

    For faults that do not lie in the machine's speed: a stopped rank is as stopped in a small model.
    """
    begins = "early" if case.begins == "steady" else case.begins
    return replace(case, config={**as_mapping(QUIET), **case.config}, begins=begins)
