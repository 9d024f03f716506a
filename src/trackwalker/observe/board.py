"""`python -m trackwalker.observe.board`: TensorBoard as it is, for whoever knows the password.

TensorBoard itself asks nobody who he is. Its own extension point, the server class, takes the application that we put
the question before; so there is no second, unguarded port behind a proxy.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from typing import Any

HEADER = "TRACKWALKER_BOARD_LOGIN"  # the Authorization header that opens; an environment is its owner's to read
_OWN_NAMES = ("127.0.0.1", "localhost")
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def guarded(application: _Application, header: str) -> _Application:
    """The application for who sends this Authorization header, under our own name, from no other site's page."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_HOST", "").rpartition(":")[0] not in _OWN_NAMES:
            return _refuse(start, "403 Forbidden", "ask for 127.0.0.1\n")
        if environ.get("HTTP_SEC_FETCH_SITE", "none") not in ("none", "same-origin"):
            return _refuse(start, "403 Forbidden", "not from a page of another site\n")
        given = environ.get("HTTP_AUTHORIZATION", "")
        if not header or not secrets.compare_digest(given.encode(), header.encode()):
            asks = ("WWW-Authenticate", 'Basic realm="TensorBoard of a run"')
            return _refuse(start, "401 Unauthorized", "trackwalker tunnel JOB tells the password\n", asks)
        return application(environ, start)

    return answer


def _refuse(start: Callable[..., Any], status: str, text: str, *more: tuple[str, str]) -> list[bytes]:
    body = text.encode()
    start(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), *more])
    return [body]


def main() -> None:
    """TensorBoard with its own arguments."""
    from absl import app
    from tensorboard import default, main_lib, program

    header = os.environ.pop(HEADER, "")

    class Guarded(program.WerkzeugServer):  # type: ignore[misc, name-defined, unused-ignore]
        """TensorBoard's own server around the guarded application."""

        def __init__(self, application: _Application, flags: Any) -> None:
            super().__init__(guarded(application, header), flags)

    main_lib.global_init()
    board = program.TensorBoard(plugins=default.get_plugins(), server_class=Guarded)
    app.run(board.main, flags_parser=board.configure)


if __name__ == "__main__":
    main()
