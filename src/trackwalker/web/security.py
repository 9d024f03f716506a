"""Who may ask, and what a browser may do with the answer; every response passes through here.

The app only shows things, so only GET and HEAD exist, and POST where a question may cost money (`ask` with a model) or
somebody decides about an incident (state, owner, note, "this verdict is wrong"): kept beside the server, not in a job.
A token is needed, once as `?token=`, then as a cookie that no script can read: other users of this machine reach its
loopback address, too. A request that came to that address must name it in `Host`: a page of another site that has its
name point here (DNS rebinding) carries that name. What a browser says comes from a page of another site, or of another
port, is refused even with the cookie.
"""

from __future__ import annotations

import hashlib
import html
import re
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trackwalker.web.settings import LOOPBACK

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_METHODS = ("GET", "HEAD")
# What may cost money (a model's answer), and what people decide about an incident, which changes no job.
_POSTS = re.compile(r"/ask|/ask/answer|/incidents/[^/]+/(mark|wrong)")


class Guard:
    """ASGI middleware: refuses who may not look, and puts the rules for browsers on every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token
        # Cookies do not know ports: two servers on one machine must not overwrite each other's.
        self._cookie = f"trackwalker-{hashlib.sha256(token.encode()).hexdigest()[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    # A page may be stricter with itself (a report file that needs its own styles), never silent.
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to who is not let in; None lets in."""
        post = scope["method"] == "POST" and _POSTS.fullmatch(scope["path"]) is not None
        if scope["method"] not in _METHODS and not post:
            return PlainTextResponse("only reading: GET or HEAD\n", 405, {"Allow": ", ".join(_METHODS)})
        headers = Headers(scope=scope)
        name = _host(headers.get("host", ""))
        if name not in LOOPBACK and (not self._token or _came_to(scope) in LOOPBACK):
            return PlainTextResponse("ask for 127.0.0.1\n", 403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not post and self._matches(next((value for name, value in query if name == "token"), "")):
            return self._welcome(scope["path"], [pair for pair in query if pair[0] != "token"])
        if _foreign(headers):
            return PlainTextResponse("not for a page of another site\n", 403)
        if not self._token or self._matches(self._sent(headers)):
            return None
        return PlainTextResponse(
            "this page needs its token: open the address that 'trackwalker serve' printed, with ?token=...\n", 401
        )

    def _sent(self, headers: Headers) -> str:
        for line in headers.getlist("cookie"):
            try:
                morsel = SimpleCookie(line).get(self._cookie)
            except CookieError:
                continue
            if morsel is not None:
                return morsel.value
        return ""

    def _matches(self, given: str) -> bool:
        return bool(given) and secrets.compare_digest(given.encode(), self._token.encode())

    def _welcome(self, path: str, query: list[tuple[str, str]]) -> Response:
        # A page of ours that goes on by itself, not a redirect: a strict cookie is not sent along a redirect that
        # began on another site, as a click in a chat does.
        target = html.escape("/" + quote(path.lstrip("/")) + (f"?{urlencode(query)}" if query else ""), quote=True)
        answer = HTMLResponse(
            f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Trackwalker</title>"
            f'<link rel="icon" href="data:,">'
            f'<meta http-equiv="refresh" content="0;url={target}"></head>'
            f'<body><p><a href="{target}">Go on</a></p></body></html>'
        )
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer


def _came_to(scope: Scope) -> str:
    server = scope.get("server")
    return str(server[0]) if server else ""


def _foreign(headers: Headers) -> bool:
    """Whether a browser says that somebody else's page asks; who is no browser says nothing."""
    origin = headers.get("origin", "")
    if origin == "null":  # what a form of ours sends too, as it may not say where it stands (Referrer-Policy)
        return headers.get("sec-fetch-site") != "same-origin"
    if origin and origin.partition("://")[2] != headers.get("host", ""):
        return True
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _host(header: str) -> str:
    """The name of a Host header, without its port and without the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()
