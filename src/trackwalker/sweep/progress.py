"""What a sweep says while it runs: one line for each result as it lands, and how it stands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from trackwalker.report.text import clip, one_line
from trackwalker.sweep.model import Result, Trial
from trackwalker.sweep.state import Run, State

_LONGEST = 200  # characters of a failure's reason


class Teller:
    """Tells people on a stream; a terminal also gets a line that changes."""

    def __init__(self, at_most: int, out: TextIO | None = None) -> None:
        self._at_most = at_most
        self._out = out or sys.stderr
        self._live = self._out.isatty()
        self._shown = ""
        self._silent = False

    def line(self, text: str) -> None:
        """One line that stays."""
        self._clear()
        print(one_line(text), file=self._out, flush=True)

    def silent(self, why: str) -> None:
        """The scheduler does not answer: said once, until it does."""
        if not self._silent:
            self.line(f"waiting: {why}; jobs go on, nothing is submitted meanwhile")
        self._silent = True

    def answers(self) -> None:
        """The scheduler answers."""
        if self._silent:
            self.line("the scheduler answers again")
        self._silent = False

    def submitted(self, trial: Trial, job: str, attempt: int) -> None:
        """A job is queued."""
        again = f", attempt {attempt}" if attempt > 1 else ""
        why = f": {trial.why}" if trial.why else ""
        self.line(f"{trial.key}: job {job}{_on(trial.nodes)}{again}{why}")

    def landed(self, state: State, run: Run, result: Result, again: str, left: float | None) -> None:
        """A result is there; `left` are the minutes for what is known to come."""
        more = (f"; {again}" if again else "") + (f"; about {minutes(left)} to go" if left else "")
        self.line(f"[{len(state.done)}/{self._at_most}] {sentence(run.trial, result)}{more}")

    def state(self, state: State, waiting: int, left: float | None) -> None:
        """How it stands, on a terminal."""
        if not self._live:
            return
        jobs = ", ".join(run.job for run in state.open_runs if run.job)
        text = f"{len(state.done)} done, {len(state.open_runs)} under way ({clip(jobs, 40)}), {waiting} to come"
        text += f", about {minutes(left)} for these" if left is not None else ""
        if text != self._shown:
            self._clear()
            self._out.write(text)
            self._out.flush()
            self._shown = text

    def close(self) -> None:
        """Nothing more is told."""
        self._clear()

    def _clear(self) -> None:
        if self._shown:
            self._out.write("\r\x1b[K")
            self._shown = ""


def sentence(trial: Trial, result: Result) -> str:
    """A result in one line: what, where, how fast or why not."""
    job = f", job {result.job}" if result.job else ""
    where = f"{_on(trial.nodes)}{job}, {minutes(result.minutes)}"
    if result.ok and result.score is not None:
        width = (
            f" ({result.low:,.4g} to {result.high:,.4g})" if result.low is not None and result.high is not None else ""
        )
        step = f", {result.step_s:.4g} s a step" if result.step_s is not None else ""
        mfu = f", MFU {100 * result.mfu:.1f} %" if result.mfu is not None else ""
        return f"{trial.key}: {score(result.score)} tokens/s/device{width}{step}{mfu}{where}"
    phase = f" in {result.phase}" if result.phase else ""
    cause = f" ({result.cause})" if result.cause and result.cause != result.status else ""
    why = f": {clip(one_line(result.why), _LONGEST)}" if result.why else ""
    return f"{trial.key}: {result.status}{phase}{cause}{why}{where}"


def score(value: float) -> str:
    """Tokens per second and device for people."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def minutes(value: float) -> str:
    """A length of time for people."""
    if value < 1.0:
        return f"{60 * value:.0f} s"
    return f"{value:.0f} min" if value < 120 else f"{value / 60:.1f} h"


def _on(nodes: Sequence[str]) -> str:
    if not nodes:
        return ""
    return f" on {', '.join(nodes)}" if len(nodes) <= 4 else f" on {len(nodes)} nodes ({nodes[0]} … {nodes[-1]})"
