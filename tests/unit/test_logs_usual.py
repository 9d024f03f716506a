"""Usual step lines are not searched; every other line is, wherever it stands and however it came about."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trackwalker.logs.index import _needles
from trackwalker.logs.needles import Finder
from trackwalker.logs.signatures import load
from trackwalker.logs.usual import Usual

NEEDLES = [b"Segmentation fault", b"out of memory", b"Aborted (core dumped)\n", b"Traceback"]


def step_line(rank: int, step: int, rng: random.Random, label: str = "{:02d}: ") -> bytes:
    return (
        f"{label.format(rank)}completed step: {step}, seconds: {rng.uniform(0.5, 20):.3f}, TFLOP/s/device: 812.345, "
        f"MFU: 32.49%, Tokens/s/device: {rng.uniform(900, 2500):.3f}, total_weights: 262144, "
        f"loss: {rng.uniform(2, 12):.3f}\n"
    ).encode()


def search(usual: Usual, text: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """What is found with and without the usual lines."""
    finder = Finder(NEEDLES, frozenset())
    spare = np.concatenate([np.frombuffer(text, np.uint8), np.zeros(1100, np.uint8)])
    data = spare[: len(text)]
    ends = np.flatnonzero(data == 10)
    some, everything = usual.find(finder, data, spare, ends), finder.find(data.data)
    return [sorted(zip(h.places.tolist(), h.texts.tolist(), strict=True)) for h in (some, everything)]  # type: ignore[return-value]


@pytest.mark.parametrize("label", ["{:02d}: ", "{}: ", "[rank{}] ", ""])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_missed_among_and_inside_broken_step_lines(seed: int, label: str) -> None:
    rng = random.Random(seed)
    lines = [step_line(r % 24, s, rng, label) for s in range(40) for r in range(24)]
    usual = Usual.learn([line.rstrip(b"\n") for line in lines[:24]])
    assert usual is not None
    for _ in range(60):
        at, needle = rng.randrange(len(lines)), rng.choice(NEEDLES).rstrip(b"\n")
        line = lines[at]
        cut = rng.randrange(len(line))
        lines[at] = rng.choice(
            [
                line[:cut] + needle + b"\n",  # the rank died while it wrote
                line[:cut] + needle + b"\n" + line[cut:],  # another process wrote in between
                line[:cut] + b"node7: python[4411]: " + needle + b" in libc.so " + line[cut:],
                line.rstrip(b"\n") + needle + b"\n",
                needle + line,
                line + b"17: " + needle + b"\n",
                b"\n\n" + needle + b"\n",
            ]
        )
    text = b"".join(lines)[rng.randrange(100) :] + rng.choice(NEEDLES)[: rng.randrange(30)]
    some, everything = search(usual, text)
    assert some == everything
    assert len(everything) > 20


def test_the_usual_lines_are_left_out() -> None:
    rng = random.Random(1)
    lines = [step_line(r, s, rng) for s in range(10) for r in range(24)]
    usual = Usual.learn([line.rstrip(b"\n") for line in lines[:24]])
    assert usual is not None
    text = np.frombuffer(b"".join(lines), np.uint8)
    begins, ends = usual._others(np.append(text, np.zeros(1100, np.uint8)), np.flatnonzero(text == 10), len(text))
    assert (ends - begins).sum() == len(lines[0])  # what stands before the first newline may be half a line


def test_lines_without_a_common_form_teach_nothing() -> None:
    rng = random.Random(1)
    assert Usual.learn([]) is None
    assert Usual.learn([b"step: 3 loss: 2.0"]) is None
    assert Usual.learn([b"x" * n + step_line(0, 1, rng) for n in range(9)]) is None


def test_no_needle_stands_in_a_usual_line() -> None:
    line = step_line(3, 17, random.Random(1)).lower()
    assert [n for n in _needles(load()).literals if n.lower() in line] == []
