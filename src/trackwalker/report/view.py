"""The verdict as the HTML template reads it: plain strings, cut to size, every evidence reference resolved."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import escape

from trackwalker.diagnose.verdict import Cause, Evidence, Onset, Verdict
from trackwalker.job.causes import cause_label, cause_name
from trackwalker.report import words
from trackwalker.report.ranges import places
from trackwalker.report.text import clean, clip, json_visible, one_line

# Characters of an evidence text and of its source that are always visible.
_SAYS, _SOURCE = 420, 240
# What each part may weigh on the page, in escaped bytes: a log line full of "<" weighs four times its length.
_SHOWN_BYTES, _FULL_BYTES, _RAW_BYTES = 100_000, 120_000, 150_000
_FULL = 12_000
_ITEMS = 120
_VALUES = 12
_HOSTS = 24
_SPELLED = 6  # names that are written out; of more, how many and which ranges

_ANCHOR = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}")
# Ids of the page itself: evidence with such an id gets a neutral anchor.
_OURS = ("cause-", "evidence-", "h-", "t-", "l-", "m-", "o-")
_TAKEN = frozenset(
    {"verdict", "timeline", "hosts", "causes", "evidence", "tested", "quality", "progress", "settings", "raw"}
)
_ROLES = ("root", "contributing", "masked", "mechanism", "consequence")
_ROLE_WORDS = {
    "root": "root cause",
    "contributing": "contributing",
    "masked": "masked by a larger cause",
    "mechanism": "mechanism",
    "consequence": "consequence",
}


@dataclass(frozen=True)
class Ref:
    """A citation: the id and its anchor; where there is none, `note` says why."""

    id: str
    anchor: str
    note: str = ""


@dataclass(frozen=True)
class Item:
    """One evidence item on the page."""

    id: str
    key: str  # the id as the verdict has it
    anchor: str
    kind: str
    says: str
    rest: str  # the whole text where `says` had to be cut
    source: str
    values: tuple[tuple[str, str], ...]
    more_values: int


@dataclass(frozen=True)
class CauseView:
    """One cause on the page."""

    name: str
    role: str
    root: bool
    benign: bool
    confidence: str
    hosts: tuple[str, ...]
    more_hosts: int
    devices: str
    since: str
    facts: tuple[tuple[str, str], ...]
    refs: tuple[Ref, ...]


@dataclass(frozen=True)
class Refs:
    """Resolves evidence ids to anchors on the page."""

    anchors: dict[str, str]
    known: frozenset[str]

    def of(self, ids: list[str]) -> tuple[Ref, ...]:
        """The citations of one cause."""
        return tuple(self._one(key) for key in ids[:60])

    def _one(self, key: str) -> Ref:
        note = "not on this page" if key in self.known else "not in this verdict"
        anchor = self.anchors.get(key, "")
        return Ref(clip(one_line(key), 24), anchor, "" if anchor else note)


def evidence(verdict: Verdict) -> tuple[list[Item], Refs, int]:
    """The items to show (all cited ones, then others), their anchors, and how many are left out."""
    lists = [cause.evidence for cause in verdict.causes] + [item.evidence for item in verdict.ruled_out]
    cited = {key for ids in lists for key in ids}
    # Sorting is stable, so both groups stay in the order of the verdict when the cut comes.
    ranked = sorted(range(len(verdict.evidence)), key=lambda i: (verdict.evidence[i].id not in cited, i))
    chosen = [verdict.evidence[i] for i in sorted(ranked[:_ITEMS])]
    long = sum(len(item.says) > _SAYS or len(item.source) > _SOURCE for item in chosen)
    shown, full = _SHOWN_BYTES // max(len(chosen), 1) // 2, _FULL_BYTES // max(long, 1) // 2
    anchors: dict[str, str] = {}
    items = []
    for position, item in enumerate(chosen, 1):
        ours = item.id in _TAKEN or item.id.startswith(_OURS)
        plain = _ANCHOR.fullmatch(item.id) and not ours and item.id not in anchors
        anchor = item.id if plain else f"evidence-{position}"
        anchors.setdefault(item.id, anchor)
        items.append(_item(item, anchor, shown, full))
    known = frozenset(item.id for item in verdict.evidence)
    return items, Refs(anchors, known), len(verdict.evidence) - len(items)


def fit(text: str, limit: int, weight: int) -> str:
    """At most `limit` characters and `weight` bytes once escaped, the cut shown by an ellipsis."""
    text = clip(text, limit)
    while len(text) > 1 and (heavy := len(escape(text).encode("utf-8", "replace"))) > weight:
        text = clip(text, min(len(text) * weight // heavy, len(text) - 1))
    return text


def _item(item: Evidence, anchor: str, weight: int, full_weight: int) -> Item:
    says, source = clean(item.says).strip(), one_line(item.source)
    shown, shown_source = fit(says, _SAYS, weight), fit(source, _SOURCE, weight)
    cut = [text for text, part in ((says, shown), (source, shown_source)) if part != text]
    rest = "\n\n".join(fit(text, _FULL, full_weight) for text in cut)
    values = [(clip(one_line(key), 60), words.number(value)) for key, value in list(item.values.items())[:_VALUES]]
    return Item(
        id=clip(one_line(item.id), 24),
        key=item.id,
        anchor=anchor,
        kind=item.kind,
        says=shown,
        rest=rest,
        source=shown_source,
        values=tuple(values),
        more_values=max(len(item.values) - _VALUES, 0),
    )


def causes(verdict: Verdict, refs: Refs) -> list[CauseView]:
    """All causes, the roots first."""
    ordered = sorted(verdict.causes, key=lambda cause: _ROLES.index(cause.role))
    return [_cause(cause, refs, verdict.outcome == "expected") for cause in ordered]


def _cause(cause: Cause, refs: Refs, benign: bool) -> CauseView:
    root = cause.role == "root"
    return CauseView(
        name=clip(one_line(cause_label(cause.cause)), 120),
        role="what it is, and it is normal" if root and benign else _ROLE_WORDS[cause.role],
        root=root,
        benign=benign,
        confidence=words.confidence(cause.confidence),
        hosts=tuple(clip(one_line(host), 120) for host in cause.hosts[:_HOSTS]),
        more_hosts=max(len(cause.hosts) - _HOSTS, 0),
        devices=clip(words.names([*(words.gpu(name) for name in cause.gpus), *cause.devices]), 400),
        since=words.onset(cause.onset) if cause.onset and (cause.onset.time or cause.onset.step is not None) else "",
        facts=tuple((name, clip(_gathered(name, value, cause), 1200)) for name, value in words.cause_facts(cause)),
        refs=refs.of(cause.evidence),
    )


def _gathered(name: str, value: str, cause: Cause) -> str:
    """Many hosts or devices counted and in ranges: a list that is cut names the first of them only."""
    many = {"hosts": cause.hosts, "GPUs": cause.gpus, "devices": cause.devices}.get(name, [])
    return places([one_line(each) for each in many]) if len(many) > _SPELLED else value


def title(verdict: Verdict) -> str:
    """The page title: a browser tab must tell two incidents apart."""
    roots = ", ".join(cause_name(cause.cause) for cause in verdict.roots[:3])
    hosts = words.names(words.culprits(verdict), 3)
    what = f"{roots}{f' on {hosts}' if hosts else ''}" if roots else verdict.status
    return clip(one_line(f"{words.OUTCOMES[verdict.outcome]}: job {verdict.job.id}, {what}"), 140)


def raw(verdict: Verdict) -> tuple[str, bool]:
    """The verdict as JSON, and whether it had to be cut to keep the page small."""
    document = json_visible(verdict.to_json())
    shown = fit(document, _RAW_BYTES, _RAW_BYTES)
    return shown, shown != document


_EFFECTS = ("consequence", "mechanism")


def in_order(verdict: Verdict) -> Verdict:
    """The verdict with no root later than its own consequence.

    Each onset is measured by itself and known to some seconds or steps. A consequence that was seen before every root
    bounds when the first of them began: that root began then at the latest, and is as uncertain as the two lie apart.
    """
    roots = [c for c in verdict.causes if c.role == "root" and _time(c) is not None]
    effects = [(t, c) for c in verdict.causes if c.role in _EFFECTS and (t := _time(c)) is not None]
    if not roots or not effects:
        return verdict
    first = min(roots, key=lambda c: _time(c) or 0.0)
    seen, effect = min(effects, key=lambda pair: pair[0])
    began = _time(first)
    if began is None or seen >= began or first.onset is None or effect.onset is None:
        return verdict
    steps = [s for s in (first.onset.step, effect.onset.step) if s is not None]
    moved = Onset(
        time=effect.onset.time,
        step=min(steps) if steps else None,
        uncertainty_s=max(first.onset.uncertainty_s or 0.0, began - seen),
    )
    causes = [c.model_copy(update={"onset": moved}) if c is first else c for c in verdict.causes]
    return verdict.model_copy(update={"causes": causes})


def _time(cause: Cause) -> float | None:
    if cause.onset is None or not cause.onset.time:
        return None
    try:
        found = datetime.fromisoformat(cause.onset.time)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
