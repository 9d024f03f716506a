"""`trackwalker serve`: the web app over a workspace, until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import webbrowser
from functools import partial
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.errors import MissingToolError, UsageError
from trackwalker.job.private import kept_secret

TOKEN_VARIABLE = "TRACKWALKER_WEB_TOKEN"  # noqa: S105 - a name
_PORT = 8321  # tried first, so that an address can be kept
_SHORTEST = 16


def serve(
    workspace: Workspace = DEFAULT_WORKSPACE,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Default: 8321, or a free one where that is taken.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; default: this machine's own, for its users only.")
    ] = "127.0.0.1",
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", envvar="TRACKWALKER_MODEL", help="For the ask box, as `ask` takes it.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", envvar="TRACKWALKER_ENDPOINT", help="For the ask box, as `ask` takes it."),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0.0, help="Price of one GPU-hour, for what an incident cost.")
    ] = None,
    background: Annotated[
        bool, typer.Option(help="Diagnose finished and troubled jobs beside it, one at a time, with little priority.")
    ] = True,
) -> int:
    """Show a workspace in a browser: jobs, verdicts, metrics, logs, nodes; nothing is changed. Ctrl-C ends it.

    It opens with a token, as other users of this machine reach the same address: the printed link has it, and a browser
    remembers it. It is kept for the next time (on this machine's own address), or taken from TRACKWALKER_WEB_TOKEN.
    """
    try:
        import uvicorn

        from trackwalker.web.app import create_app, get_ready
    except ImportError as e:
        raise MissingToolError(f"the web app needs {e.name}: pip install 'trackwalker[web]'") from e
    from trackwalker.job.dialects import needles
    from trackwalker.logs.failures.signatures import load
    from trackwalker.logs.scanning.index import needles_of
    from trackwalker.web.pages.render import compile_templates
    from trackwalker.web.settings import LOOPBACK, Settings

    get_ready(workspace)
    needles_of(load(), needles())  # what the first page needs is made before its link is printed
    compile_templates("job")
    token = _token(kept=host in LOOPBACK)
    app = create_app(Settings(workspace, token, model, endpoint, price, examine=background))
    listener = _listen(host, port)
    url = _url(host, listener.getsockname()[1])
    if os.environ.get(TOKEN_VARIABLE):
        print(f"{url}  (add ?token= with the value of {TOKEN_VARIABLE}; Ctrl-C ends it)", flush=True)
    else:
        print(f"{url}?token={token}  (Ctrl-C ends it)", flush=True)
        print("whoever has this link can look at the workspace: it is yours alone", file=sys.stderr)
    if show:
        webbrowser.open(f"{url}?token={token}")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # addresses may hold the token
        server_header=False,
        timeout_graceful_shutdown=3,
        lifespan="on",
    )
    logging.getLogger("uvicorn.error").addFilter(_worth_telling)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        print()
    return 0


def _worth_telling(record: logging.LogRecord) -> bool:
    """Not that a visitor's question was open when the server was ended: that is what a Ctrl-C does."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError) and "graceful shutdown exceeded" not in record.getMessage()


def _token(kept: bool = False) -> str:
    given = os.environ.get(TOKEN_VARIABLE, "")
    if given and len(given) < _SHORTEST:
        raise UsageError(f"{TOKEN_VARIABLE} is too short to be a secret: give at least {_SHORTEST} characters")
    made = partial(secrets.token_urlsafe, 24)
    return given or (kept_secret("web-token", made) if kept else made())


def _listen(host: str, port: int | None) -> socket.socket:
    """The first address that can be had; a port that was asked for is that one or none."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [_PORT, 0] if port is None else [port]
    for number in wanted:
        listener = socket.socket(kind, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(128)
            return listener
        except OSError as e:
            listener.close()
            said = e.strerror or str(e)
            if number == wanted[-1]:
                raise UsageError(f"cannot listen on {host} port {number}: {said}; --port 0 takes a free one") from e
    raise AssertionError("unreachable")


def _url(host: str, port: int) -> str:
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
    return f"http://{shown}:{port}/"
