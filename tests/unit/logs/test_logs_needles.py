"""Literals are found by their anchors: exactly where a plain search would find them."""

from __future__ import annotations

import random

import pytest

from trackwalker.job.dialects import needles as step_needles
from trackwalker.logs.failures.signatures import load
from trackwalker.logs.scanning import needles
from trackwalker.logs.scanning.index import needles_of
from trackwalker.logs.scanning.needles import SHORTEST, Finder, Needles, anchors_of


def plain(texts: list[bytes], data: bytes) -> list[tuple[int, int]]:
    lower = data.lower()
    return sorted(
        (at, i) for i, t in enumerate(texts) for at in range(len(data)) if lower.startswith(t, at)
    )  # overlapping ones too


def found(finder: Finder, data: bytes) -> list[tuple[int, int]]:
    hits = finder.find(memoryview(data))
    return list(zip(hits.places.tolist(), hits.texts.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_every_literal_is_found_where_it_stands(seed: int) -> None:
    rng = random.Random(seed)
    words = ["fatal ", "error: ", "peer ", "timed out", "NCCL ", "link ", "memory", "xx", "ab"]
    made = {"".join(rng.choices(words, k=rng.randint(2, 5))).lower().encode() for _ in range(40)}
    texts = sorted(t for t in made if len(t) >= SHORTEST)
    pieces = [*(t.decode() for t in texts), *words, "\n", " "]
    data = "".join(rng.choice([str.upper, str.lower, str])(rng.choice(pieces)) for _ in range(300)).encode()
    assert found(Finder(texts, frozenset()), data) == plain(texts, data)


def test_an_anchor_that_floods_gives_way_to_its_literals() -> None:
    texts = [b"abcdefghijklm one", b"abcdefghijklm two"]
    (anchor,) = anchors_of(texts)
    data = b"start abcdefghijklm one " + (anchor + b" ") * 3000 + b"ABCDEFGHIJKLM two abcdefghijklm ONE"
    assert found(Finder(texts, frozenset()), data) == plain(texts, data)


def test_a_flood_is_counted_and_the_rest_still_found() -> None:
    texts = [b"flooding line", b"rare failure"]
    data = b"flooding line\n" * 5000 + b"rare failure\n"
    hits = Finder(texts, frozenset()).find(memoryview(data))
    assert (hits.texts == 0).sum() + hits.dropped == 5000
    assert (hits.texts == 0).sum() <= needles._FLOOD + 1
    assert data.index(b"rare") in hits.places.tolist()


def test_every_shipped_needle_has_an_anchor_inside_it() -> None:
    texts = sorted({n.lower() for n in needles_of(load(), step_needles()).literals})
    held = anchors_of(texts)
    assert sorted(i for means in held.values() for i, _ in means) == list(range(len(texts)))
    assert all(texts[i][at : at + len(anchor)] == anchor for anchor, means in held.items() for i, at in means)
    assert len(held) < 0.8 * len(texts)


@pytest.mark.parametrize("seed", range(6))
def test_step_needles_are_found_in_bulk_where_a_plain_search_finds_them(seed: int) -> None:
    rng = random.Random(seed)
    texts = [b"completed step:", b"iteration ", b"global_step="]
    pieces = [*texts, b"Completed Step:", b"ITERATION ", b"complet", b"\n", b"loss 3.1 "]
    data = b"".join(rng.choice(pieces) for _ in range(rng.choice([0, 1, 400])))
    expected = [at for at, _ in plain(texts, data)]
    assert Needles([b"a failure"], texts).find_steps(memoryview(data)).tolist() == expected
