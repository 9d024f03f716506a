"""One verdict against one truth."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from trackwalker.diagnose.causes.confidence import support
from trackwalker.diagnose.causes.evidence import contradictions
from trackwalker.lab.scenario import Truth

_DESTRUCTIVE = {"exclude-nodes", "drain-node", "cancel-job", "restart-job"}


class Claim(BaseModel):
    """One root that a verdict names: how sure it is, what supports it, and whether it is true."""

    cause: str
    confidence: float | None  # None: it does not say
    support: float  # the raw score that our own confidence is made of
    right: bool
    margin: float | None = None  # to the next best explanation; None: nothing was compared
    covers: float | None = None  # share of what deviates that follows from it
    explains: float | None = None  # share of the lost time
    hosts: int = 0


class Grade(BaseModel):
    """How right one verdict is; `passed` is what the scoreboard counts."""

    status: bool
    outcome: bool
    roots: bool
    hosts: bool
    devices: bool
    forbidden: list[str] = []  # what it said and must not say
    ungrounded: list[str] = []  # claims without evidence or against their own numbers, actions without approval
    accused: list[str] = []  # hosts named as culprits, or to be taken out
    said_outcome: str = ""
    onset_error_steps: int | None = None
    said: str = ""
    claims: list[Claim] = []

    @property
    def passed(self) -> bool:
        """The right outcome, exactly the right causes on exactly the right hosts, nothing forbidden."""
        return self.outcome and self.roots and self.hosts and not self.forbidden and not self.ungrounded


def grade(verdict: dict[str, Any] | None, truth: Truth) -> Grade:
    """Grade a verdict; none at all is wrong in everything but forbids nothing."""
    if verdict is None:
        return Grade(status=False, outcome=False, roots=False, hosts=False, devices=False, said="no verdict")
    right = (truth, *truth.alternatives)
    grades = [_grade_one(verdict, t) for t in right]
    best = next((g for g in grades if g.passed), grades[0])
    roots = [c for c in verdict.get("causes", []) if c.get("role") == "root"]
    claims = [_claim(verdict, c, right) for c in roots]
    if best.passed:  # two stories of one name are right together: each names a part of the hosts
        claims = [c.model_copy(update={"right": True}) for c in claims]
    return best.model_copy(update={"claims": claims})


def _claim(verdict: dict[str, Any], cause: dict[str, Any], right: tuple[Truth, ...]) -> Claim:
    """A claim is true when some right answer has this cause on exactly these hosts, whatever else it has."""
    name, hosts = str(cause.get("cause")), {str(h) for h in cause.get("hosts", [])}
    true = any(
        name in t.also_roots
        or (name in {r.cause for r in t.roots} and hosts == {h for r in t.roots if r.cause == name for h in r.hosts})
        for t in right
    )
    sure = cause.get("confidence")
    confidence = float(sure) if isinstance(sure, int | float) else None
    shares = {key: cause.get(key) for key in ("margin", "covers", "explains")}
    return Claim(
        cause=name, confidence=confidence, support=support(verdict, cause), right=true, hosts=len(hosts), **shares
    )


def _grade_one(verdict: dict[str, Any], truth: Truth) -> Grade:
    roots = [c for c in verdict.get("causes", []) if c.get("role") == "root"]
    said = {str(c.get("cause")) for c in roots}
    wanted = {r.cause for r in truth.roots}
    hosts = {str(h) for c in roots for h in c.get("hosts", [])}
    true_hosts = {h for r in truth.roots for h in r.hosts}
    devices = {str(d) for c in roots for d in [*c.get("devices", []), *c.get("gpus", [])]}
    true_devices = {d for r in truth.roots for d in [*r.devices, *r.gpus]}
    accused = hosts | {h for a in verdict.get("actions", []) if a.get("do") in _DESTRUCTIVE for h in a.get("hosts", [])}
    wrong = [m for m in truth.must_not if (m[5:] in accused if m.startswith("host:") else m in said)]
    abstained = truth.or_abstain and verdict.get("outcome") == "insufficient-evidence" and not roots
    return Grade(
        status=not truth.status or verdict.get("status") in truth.status,
        outcome=abstained or verdict.get("outcome") == truth.outcome,
        roots=abstained or wanted <= said <= wanted | set(truth.also_roots),
        hosts=abstained or hosts == true_hosts or (truth.outcome == "expected" and not hosts),  # nobody's fault
        devices=abstained or true_devices <= devices,
        forbidden=wrong,
        ungrounded=_ungrounded(verdict),
        accused=sorted(accused),
        said_outcome=str(verdict.get("outcome")),
        onset_error_steps=_onset_error(roots, truth),
        said=_said(verdict, roots),
    )


def _ungrounded(verdict: dict[str, Any]) -> list[str]:
    known = {e.get("id") for e in verdict.get("evidence", [])}
    out = [
        f"{c.get('cause')} has no evidence" for c in verdict.get("causes", []) if not set(c.get("evidence", [])) & known
    ]
    for item in verdict.get("evidence", []):
        if item.get("kind") != "log":  # a line is quoted as it is
            wrong = contradictions(str(item.get("says", "")), item.get("values") or {})
            out += [f"{item.get('id')} contradicts its own numbers: {w}" for w in wrong]
    for action in verdict.get("actions", []):
        if action.get("do") in _DESTRUCTIVE:
            if not action.get("needs_approval"):
                out.append(f"{action.get('do')} without approval")
            if verdict.get("outcome") == "insufficient-evidence":
                out.append(f"{action.get('do')} on insufficient evidence")
    return out


def _onset_error(roots: list[dict[str, Any]], truth: Truth) -> int | None:
    steps = [c["onset"]["step"] for c in roots if c.get("onset") and c["onset"].get("step") is not None]
    return min(abs(int(s) - truth.onset_step) for s in steps) if steps and truth.onset_step is not None else None


def _said(verdict: dict[str, Any], roots: list[dict[str, Any]]) -> str:
    causes = "; ".join(f"{c.get('cause')}({','.join(c.get('hosts', []))})" for c in roots)
    return f"{verdict.get('status')} / {verdict.get('outcome')}: {causes or '-'}"
