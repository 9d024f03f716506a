"""The score that a suite must not fall below."""

from __future__ import annotations

import json
from importlib.resources import files

from trackwalker.lab.scoring.results import Results


def below_recorded(results: Results) -> str | None:
    """One line when the smoke suite scored less than it did before; None when it did not (or is another suite)."""
    held = json.loads((files("trackwalker.lab") / "smoke-score.json").read_text(encoding="utf-8"))
    passed = sum(c.passed for c in results.cases)
    if results.suite != [held["suite"]] or len(results.cases) != held["cases"] or passed >= held["passed"]:
        return None
    return f"{passed} of {len(results.cases)} cases are right, {held['passed']} were: the diagnosis became worse"
