"""Where evidence becomes something to look at: lines of logs lose their secrets here, once, for every view of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.scrub import Scrubber, scrubber_of
from trackwalker.logs.failures.roles import Roles

_SAYING = ("summary", "causes", "ruled_out", "untestable", "evidence", "actions", "data_quality", "failure")


def without_secrets(verdict: Verdict, scrubber: Scrubber) -> Verdict:
    """The verdict as it may be shown, saved and sent."""
    said = verdict.model_dump(by_alias=True)
    cleaned = {name: scrubber.clean_document(said[name]) for name in _SAYING}
    if all(cleaned[name] == said[name] for name in _SAYING):
        return verdict
    return Verdict.model_validate({**said, **cleaned})


def quote_without_secrets(roles: Roles, log: Path) -> None:
    """The lines that triage quotes."""
    if any(finding.text for finding in roles.findings):
        scrubber = scrubber_of(log)
        roles.findings[:] = [replace(found, text=scrubber.clean(found.text)) for found in roles.findings]
        roles.first_says = scrubber.clean(roles.first_says)
