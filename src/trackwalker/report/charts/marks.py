"""Marks on the time axis: flags above the plot for what ended or began, diamonds below it for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trackwalker.diagnose.views.story import Mark, Story
from trackwalker.job.causes import about, cause_name
from trackwalker.report.charts.axis import LEFT, RIGHT, WIDTH, inside
from trackwalker.report.charts.plots import Label, Scale, place_labels, px, text_width
from trackwalker.report.text import clip, one_line
from trackwalker.report.words import utc

_ROWS = 4
_NEAR = 9.0  # pixels within which marks of one kind are one flag: a job's ranks exit together
_MOST = 40
_ORDER = ("onset", "exit", "cancel", "restart", "end")


@dataclass(frozen=True)
class Flag:
    """A labelled moment; `row` 0 is next to the plot, an empty `text` found no free place."""

    kind: str
    x: str
    row: int
    text: str
    text_x: str
    anchor: str
    title: str


@dataclass(frozen=True)
class Save:
    """A checkpoint as a diamond under the plot; not every one carries its label."""

    x: str
    text: str
    text_x: str
    title: str


def words_of(mark: Mark) -> str:
    """What a mark says, the kind always in words."""
    label = one_line(mark.label)
    if mark.kind == "onset" and about(label) is not None:
        label = cause_name(label)
    if mark.kind in label.lower():
        return label
    return f"{mark.kind}: {label}" if label else mark.kind


def flags(story: Story, x: Scale) -> list[Flag]:
    """The onset, exit, cancel, restart and end marks, the close ones merged, with labels that do not overlap."""
    groups: list[list[Mark]] = []
    for kind in _ORDER:
        for mark in sorted(
            (m for m in story.marks if m.kind == kind and inside(x, m)), key=lambda m: (m.time, m.label)
        ):
            if groups and groups[-1][0].kind == kind and x(mark.time) - x(groups[-1][0].time) < _NEAR:
                groups[-1].append(mark)
            else:
                groups.append([mark])
    groups = groups[:_MOST]
    texts = [clip(words_of(group[0]), 44) + _more(group) for group in groups]
    labels = [Label(x(group[0].time), text_width(text)) for group, text in zip(groups, texts, strict=True)]
    drawn = []
    for group, text, label, place in zip(
        groups, texts, labels, place_labels(labels, LEFT, RIGHT, _ROWS, 8), strict=True
    ):
        title = f"{utc(group[0].time)} UTC {clip(words_of(group[0]), 120)}{_more(group)}"
        if place is None:
            drawn.append(Flag(group[0].kind, px(label.x), -1, "", "0", "start", title))
            continue
        text_x, anchor = (label.x - 8, "end") if place.left else (label.x + 8, "start")
        drawn.append(Flag(group[0].kind, px(label.x), place.row, text, px(text_x), anchor, title))
    return drawn


def saves(story: Story, x: Scale) -> list[Save]:
    """The checkpoints; the last is labelled first because it decides what is lost."""
    marks = sorted((m for m in story.marks if m.kind == "checkpoint" and inside(x, m)), key=lambda m: -m.time)
    spaced = list(_spaced(marks, x))
    texts = [one_line(mark.label).removeprefix("checkpoint").strip(" :") or "saved" for mark in spaced]
    labels = [Label(x(mark.time), text_width(clip(text, 20), 6.2)) for mark, text in zip(spaced, texts, strict=True)]
    drawn: list[Save] = []
    taken: float = WIDTH
    for mark, text, label in zip(spaced, texts, labels, strict=True):
        fits = label.x + 8 + label.width < taken
        title = f"checkpoint {clip(text, 80)}, {utc(mark.time)} UTC"
        drawn.append(Save(px(label.x), clip(text, 20) if fits else "", px(label.x + 8), title))
        taken = label.x - 8
    return drawn[::-1]


def _spaced(marks: Iterable[Mark], x: Scale) -> Iterable[Mark]:
    last = float("inf")
    for mark in marks:
        if last - x(mark.time) >= 4:
            last = x(mark.time)
            yield mark


def _more(group: list[Mark]) -> str:
    return f" and {len(group) - 1} more" if len(group) > 1 else ""
