"""Slurm's compressed host lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackwalker.logs.formats.nodelist import expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node001", ["node001"]),
        ("node[001-003]", ["node001", "node002", "node003"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[1,3,7-8]", ["n1", "n3", "n7", "n8"]),
        ("a[1-2],b3,c[04-05]", ["a1", "a2", "b3", "c04", "c05"]),
        ("gpu[1-2]-ib", ["gpu1-ib", "gpu2-ib"]),
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("r[1-2]n[07-08]-ib,login", ["r1n07-ib", "r1n08-ib", "r2n07-ib", "r2n08-ib", "login"]),
        (" box-r[0-3]\n", ["box-r0", "box-r1", "box-r2", "box-r3"]),
        ("n[5]", ["n5"]),
        ("", []),
        ("a,,b", ["a", "b"]),
        ("n[1-", ["n[1-"]),
        ("n[1-2", ["n[1-2"]),
        ("n]1[", ["n]1["]),
        ("n[3-1]", ["n3-1"]),
        ("n[a-b,2]", ["na-b", "n2"]),
        ("n[²-³]", ["n²-³"]),
        ("n[1-999999999]", ["n1-999999999"]),
    ],
)
def test_expansion(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


def test_a_damaged_product_does_not_eat_the_machine() -> None:
    assert len(expand("a[1-90000]b[1-90000]c[1-90000]")) <= 100_000


@given(st.text(st.sampled_from("ab[]-,019² "), max_size=25))
def test_any_text_is_taken(text: str) -> None:
    hosts = expand(text)
    if not set(text) & set("[]"):
        assert hosts == [name for name in text.strip().split(",") if name]
