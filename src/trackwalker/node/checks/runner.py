"""Run the checks at once, each with its own deadline: one that fails or hangs takes nothing else with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trackwalker.node.checks import compare, fabric, gpu, storage, system
from trackwalker.node.checks.result import FAIL, OFF, WARN, Check, Context, Result, warned

CHECKS: tuple[Check, ...] = (*gpu.CHECKS, *fabric.CHECKS, *storage.CHECKS, *system.CHECKS)
PLANNED: tuple[Check, ...] = fabric.PLANNED  # those that need the network plan (Context.meeting)


class BadPolicy(ValueError):
    """A policy that names no check or no decision; the message says which there are."""


def policy(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Check id -> fail, warn or off: the defaults, with what the user wants instead."""
    decided = {**{check.id: _default(check) for check in (*CHECKS, *PLANNED)}, **compare.DEFAULTS}
    for name, decision in (given or {}).items():
        if name not in decided:
            raise BadPolicy(f"{name!r} is no check; there are {', '.join(sorted(decided))}")
        if decision not in (FAIL, WARN, OFF):
            raise BadPolicy(f"{name}: {decision!r} is no decision; use fail, warn or off")
        decided[name] = decision
    return decided


def run_checks(
    context: Context, wanted: Mapping[str, str] | None = None, checks: Sequence[Check] = CHECKS
) -> list[Result]:
    """Every check's result, in the checks' order, under the policy."""
    decided = {**{check.id: _default(check) for check in checks}, **(wanted or {})}
    runs = [_Run(check, context) for check in checks if decided[check.id] != OFF]
    for run in runs:
        run.start()
    return [_judged(run.result(), decided[run.check.id]) for run in runs]


def _default(check: Check) -> str:
    return FAIL if check.gates else WARN


def gating(results: Iterable[Result]) -> list[Result]:
    """The results that end the job."""
    return [r for r in results if r.status == FAIL]


def _judged(result: Result, decision: str) -> Result:
    return replace(result, status=WARN) if result.status == FAIL and decision == WARN else result


class _Run(threading.Thread):
    """One check under way. A thread that hangs in the kernel is left behind: it is a daemon."""

    def __init__(self, check: Check, context: Context) -> None:
        super().__init__(name=f"check-{check.id}", daemon=True)
        self.check = check
        self._context = context
        self._began = time.monotonic()
        self._result: Result | None = None

    def run(self) -> None:
        try:
            found = self.check.run(self._context)
        except Exception as error:  # a check nobody foresaw to fail must not end the preflight
            found = warned(f"unknown: {type(error).__name__}: {error}", unknown=True)
        self._result = replace(found, seconds=round(time.monotonic() - self._began, 3))

    def result(self) -> Result:
        """What it found, or that it has not come back."""
        self.join(max(0.0, self._began + self.check.seconds - time.monotonic()))
        found = self._result or warned(
            f"unknown: no answer in {self.check.seconds:g} s",
            "see what hangs on this node (dmesg, D-state processes) before trusting it",
            unknown=True,
        )
        return replace(found, id=self.check.id, host=self._context.host)
