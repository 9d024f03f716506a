"""Who is let in to a run's TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from trackwalker.observe.tensorboard import guarded

OURS = {"HTTP_HOST": "127.0.0.1:6006", "HTTP_AUTHORIZATION": "Basic right"}


def ask(environ: dict[str, Any], header: str = "Basic right") -> str:
    said: list[str] = []

    def page(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        return [b"curves"]

    list(guarded(page, header)(environ, lambda status, headers: said.append(status)))
    return said[0][:3]


def test_who_knows_the_password_is_let_in() -> None:
    assert ask(OURS) == "200"
    assert ask({**OURS, "HTTP_HOST": "localhost:7", "HTTP_SEC_FETCH_SITE": "same-origin"}) == "200"


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"HTTP_AUTHORIZATION": ""}, "401"),
        ({"HTTP_AUTHORIZATION": "Basic wrong"}, "401"),
        ({"HTTP_AUTHORIZATION": "Basic r\u00efght"}, "401"),
        ({"HTTP_HOST": "evil.example:6006"}, "403"),
        ({"HTTP_HOST": ""}, "403"),
        ({"HTTP_SEC_FETCH_SITE": "same-site"}, "403"),
        ({"HTTP_SEC_FETCH_SITE": "cross-site"}, "403"),
    ],
)
def test_nobody_else_is(changed: dict[str, str], status: str) -> None:
    assert ask({**OURS, **changed}) == status


def test_without_a_password_of_its_own_it_opens_to_nobody() -> None:
    assert ask({**OURS, "HTTP_AUTHORIZATION": ""}, header="") == "401"
