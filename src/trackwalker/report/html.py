"""The verdict and its story as one self-contained HTML page: no network, no scripts, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trackwalker.diagnose.saved import note_of
from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.story import Mark, Story
from trackwalker.job.causes import cause_label
from trackwalker.report import view, words
from trackwalker.report.charts import axis
from trackwalker.report.charts import host_lanes as lanes
from trackwalker.report.charts import throughput_timeline as timeline
from trackwalker.report.charts.marks import words_of
from trackwalker.report.story import heat as story_heat
from trackwalker.report.story import overlay as story_overlay
from trackwalker.report.story.background import Background, with_restarts, without_secrets
from trackwalker.report.text import clean, clip, one_line
from trackwalker.report.view import in_order
from trackwalker.report.words import lacking

_MARKS = 200
_CHANGES = 100


def render_html(verdict: Verdict, story: Story, more: Background | None = None) -> str:
    """The report page; the same verdict, story and background give the same bytes."""
    more = more or Background()
    verdict, story = in_order(without_secrets(verdict, more)), with_restarts(story, more)
    items, refs, left_out = view.evidence(verdict)
    document, cut = view.raw(verdict)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            v=verdict,
            title=view.title(verdict),
            outcome=words.OUTCOMES[verdict.outcome],
            summary=clip(one_line(verdict.summary), 1500),
            note=clip(one_line(note_of(verdict)), 600),
            size=words.job_size(verdict),
            window=words.window(verdict),
            causes=view.causes(verdict, refs),
            evidence=items,
            evidence_left_out=left_out,
            ruled_out=[(clip(cause_label(item.cause), 80), refs.of(item.evidence)) for item in verdict.ruled_out],
            failed_checks=[check for check in verdict.data_quality if not check.ok],
            passed_checks=[check for check in verdict.data_quality if check.ok],
            progress=words.verdict_facts(verdict),
            timeline=timeline.build(story),
            lanes=lanes.build(story),
            heat=story_heat.build(story),
            overlay=story_overlay.build(story),
            more=more,
            effects=words.EFFECTS,
            changes=more.changes[:_CHANGES],
            policy=content_policy(),
            phases=story.phases[:_MARKS],
            marks=_mark_rows(story),
            marks_left_out=max(len(story.marks) - _MARKS, 0),
            notes=[clip(one_line(note), 600) for note in story.notes[:40]],
            metric=clip(one_line(story.lane_metric), 160),
            query=clip(one_line(story.lane_query), 600),
            width=axis.WIDTH,
            left=axis.LEFT,
            right=axis.RIGHT,
            raw=document,
            raw_cut=cut,
        )
    )


def _mark_rows(story: Story) -> list[tuple[str, str, str]]:
    """The marks for the table; where there are too many, checkpoints give way to what ended or began."""

    def when(mark: Mark) -> float:
        return mark.time if words.is_time(mark.time) else 0.0

    chosen = sorted(story.marks, key=lambda mark: (mark.kind == "checkpoint", when(mark), mark.label))[:_MARKS]
    chosen.sort(key=lambda mark: (when(mark), mark.label))
    return [(words.utc(mark.time), clip(words_of(mark), 120), clip(one_line(mark.host or ""), 80)) for mark in chosen]


def content_policy() -> str:
    """What a browser may do with the page: show it with its own style, which is named by its hash, and nothing else."""
    return policy_of(f"style-src '{inline_hash(environment().get_template('report.css').render())}'")


def policy_of(*allowed: str) -> str:
    """A policy that allows this and the pictures that are in the page."""
    return "; ".join(("default-src 'none'", *allowed, "img-src data:", "base-uri 'none'", "form-action 'none'"))


def inline_hash(text: str) -> str:
    """How a content policy names an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _safe(value: Any) -> Any:
    """Every string on its way into the page loses its control characters here; escaping follows after it."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def environment() -> Environment:
    """The templates of this package, with the filters that the pages share."""
    made = Environment(
        loader=PackageLoader("trackwalker.report"),
        autoescape=True,  # for every template, whatever its suffix: all of this is untrusted text
        finalize=_safe,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.filters.update(
        line=one_line,
        clip=clip,
        number=words.number,
        seconds=words.seconds,
        names=words.names,
        cause=cause_label,
        lacking=lacking,
        utc=words.utc,
        size=words.size,
    )
    return made
