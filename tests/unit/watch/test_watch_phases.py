"""How long silence may be beside pauses: the first step after the first pause of a kind gets longer, later ones not."""

from __future__ import annotations

from trackwalker.watch.detect.phases import Course

STEP_S, USUAL_S, LONG_S = 9.0, 54.0, 120.0


def trained(course: Course, at: float, first: int, count: int) -> float:
    for step in range(first, first + count):
        at += STEP_S
        course.take({"t": at, "rank": 0, "phase": "train", "step": step, "seconds": STEP_S})
    return at


def paused(course: Course, at: float, phase: str, seconds: float, **fields: object) -> float:
    course.take({"t": at, "rank": 0, "phase": phase, "state": "begin", **fields})
    at += seconds
    course.take({"t": at, "rank": 0, "phase": phase, "state": "end", "seconds": seconds, **fields})
    return at


def test_the_first_step_after_the_first_evaluation_may_compile() -> None:
    course = Course()
    at = trained(course, 0.0, 0, 30)
    assert course.step_limit() == USUAL_S
    at = paused(course, at, "eval", 75.0)
    assert course.step_limit() == LONG_S
    at = trained(course, at, 30, 1)
    assert course.step_limit() == USUAL_S
    at = paused(course, at, "eval", 75.0)
    assert course.step_limit() == USUAL_S
    paused(course, at, "checkpoint", 5.0)  # the first of its kind
    assert course.step_limit() == LONG_S


def test_what_goes_on_in_the_background_excuses_nothing() -> None:
    course = Course()
    at = trained(course, 0.0, 0, 30)
    paused(course, at, "checkpoint", 60.0, background=True)
    assert course.step_limit() == USUAL_S


def test_a_new_attempt_pauses_for_the_first_time_again() -> None:
    course = Course()
    at = paused(course, trained(course, 0.0, 0, 30), "eval", 75.0)
    at = trained(course, at, 30, 1)
    course.restart(at)
    at = trained(course, at, 0, 30)
    assert course.step_limit() == USUAL_S
    paused(course, at, "eval", 75.0)
    assert course.step_limit() == LONG_S
