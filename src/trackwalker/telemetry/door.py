"""A loopback port in front of a private Prometheus: a visitor shows the link's token once, then a cookie.

Every connection carries one request: its head is read here, judged, given the login that Prometheus wants, and the rest
is carried as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
from urllib.parse import parse_qsl, urlencode, urlsplit

_CHUNK = 1 << 16
_LONGEST_HEAD = 1 << 16
_HEAD_S = 10.0  # for a visitor's request to arrive
_OWN_NAMES = ("127.0.0.1", "localhost")
_DROPPED = (b"connection", b"authorization", b"cookie", b"keep-alive", b"upgrade")
_COOKIE = re.compile(r"(?:^|;\s*)([\w-]+)=([\w-]+)")


class Door:
    """One visitor after another; `token` opens, `header` is what Prometheus itself wants to see."""

    def __init__(self, port: int, token: str, header: str) -> None:
        self._port, self._token, self._header = port, token, header
        # Cookies do not know ports: two views on one machine must not overwrite each other's.
        self._cookie = f"trackwalker-view-{hashlib.sha256(token.encode()).hexdigest()[:8]}"

    async def __call__(self, visitor: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(OSError, asyncio.CancelledError, asyncio.IncompleteReadError, TimeoutError):
            head = await _head(visitor)
            said = self._refusal(head) if head else _answer(400, "not a request\n")
            if said:
                answer.write(said)
                await answer.drain()
            else:
                await self._carry(head, visitor, answer)
        answer.close()

    async def _carry(self, head: list[bytes], visitor: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        inner, ask = await asyncio.open_connection("127.0.0.1", self._port)
        kept = [line for line in head[1:] if line.partition(b":")[0].strip().lower() not in _DROPPED]
        own = [b"Connection: close", b"Authorization: " + self._header.encode()]
        try:
            ask.write(b"\r\n".join([head[0], *kept, *own, b"", b""]))
            asked = asyncio.create_task(_copy(visitor, ask))
            await _copy(inner, answer)
            asked.cancel()
        finally:
            ask.close()

    def _refusal(self, head: list[bytes]) -> bytes:
        """The answer to who is not let in; empty lets in. A script that says the token each time loses it here."""
        words = head[0].decode("latin-1").split(" ")
        fields = {n.strip().lower(): v.strip() for n, _, v in (h.decode("latin-1").partition(":") for h in head[1:])}
        if len(words) != 3 or fields.get("host", "").rpartition(":")[0] not in _OWN_NAMES:
            return _answer(403, "ask for 127.0.0.1\n")
        if fields.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _answer(403, "not from a page of another site\n")
        if self._opens(dict(_COOKIE.findall(fields.get("cookie", ""))).get(self._cookie, "")):
            return b""
        if fields.get("authorization") and secrets.compare_digest(fields["authorization"], self._header):
            return b""
        parts = urlsplit(words[1])
        query = parse_qsl(parts.query, keep_blank_values=True)
        if not self._opens(next((value for name, value in query if name == "token"), "")):
            return _answer(401, "this needs its token: open the address that was printed, with ?token=...\n")
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        target = f"/{parts.path.lstrip('/')}{'?' + rest if rest else ''}"
        if parts.path.startswith("/api/"):
            head[0] = f"{words[0]} {target} {words[2]}".encode("latin-1")
            return b""
        cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
        return _answer(302, "", f"Location: {target}\r\nSet-Cookie: {cookie}\r\n")

    def _opens(self, given: str) -> bool:
        return bool(given) and secrets.compare_digest(given.encode(), self._token.encode())


async def _head(visitor: asyncio.StreamReader) -> list[bytes]:
    try:
        raw = await asyncio.wait_for(visitor.readuntil(b"\r\n\r\n"), _HEAD_S)
    except asyncio.LimitOverrunError:
        return []
    return raw[:-4].split(b"\r\n") if len(raw) <= _LONGEST_HEAD else []


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()


def _answer(status: int, text: str, more: str = "") -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status} -\r\nContent-Type: text/plain\r\nCache-Control: no-store\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
