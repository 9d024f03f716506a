"""HTTP for the channels: failures sorted by whether the message may have arrived, and no secret in any of them."""

from __future__ import annotations

import email.utils
import ipaddress
import json
import logging
import ssl
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import httpx

from trackwalker.job.redact import HIDDEN
from trackwalker.report.text import clip, one_line
from trackwalker.watch.notify.base import InDoubtError, Notifier, NotSentError, RejectedError

TIMEOUT = httpx.Timeout(15.0, connect=8.0)
_LARGEST_ANSWER = 4 << 20
_LONGEST_WAIT = 6 * 3600.0
_NEVER_LEFT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.ProxyError)


class _HideSecrets(logging.Filter):
    """httpx logs every URL at level INFO, and Telegram's URLs contain the token."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if any(secret in text for secret in self.secrets):
            record.msg, record.args = hide(text, self.secrets), ()
        return True


_FILTER = _HideSecrets()
logging.getLogger("httpx").addFilter(_FILTER)


@cache
def _authorities() -> ssl.SSLContext:
    """Reading the certificates of all authorities takes a while: once is enough for all channels."""
    return httpx.create_ssl_context()


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text with stars for every secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


class Http:
    """One service's client; `secrets` never appear in its errors or in httpx's log."""

    def __init__(self, service: str, url: str, secrets: Iterable[str] = ()) -> None:
        self._service = service
        self._secrets = tuple(s for s in secrets if s)
        _FILTER.secrets.update(self._secrets)
        # A proxy of the environment is for the outside world; what listens on this machine is asked directly.
        self._client = httpx.Client(timeout=TIMEOUT, trust_env=not _is_here(url), verify=_authorities())

    def post(
        self, url: str, *, timeout: float | None = None, may_repeat: bool = False, **request: Any
    ) -> tuple[int, Any, httpx.Headers]:
        """Status, decoded JSON (the text where it is none) and headers; 4xx are returned, the rest is sorted."""
        return self.ask("POST", url, timeout=timeout, may_repeat=may_repeat, **request)

    def ask(
        self, method: str, url: str, *, timeout: float | None = None, may_repeat: bool = False, **request: Any
    ) -> tuple[int, Any, httpx.Headers]:
        """The same with any method. `may_repeat`: nothing happens twice if it is asked twice."""
        unsure = NotSentError if may_repeat else InDoubtError
        if timeout is not None:
            request["timeout"] = httpx.Timeout(timeout, connect=8.0)
        try:
            with self._client.stream(method, url, **request) as answer:
                raw = b""
                for block in answer.iter_bytes():
                    raw += block
                    if len(raw) > _LARGEST_ANSWER:
                        break
        except _NEVER_LEFT as e:
            raise NotSentError(self._words(f"cannot be reached ({self._plain(e)})")) from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as e:
            raise unsure(self._words(f"did not answer ({self._plain(e)})")) from None
        status = answer.status_code
        decoded = _decoded(raw)
        if status == 429:
            raise NotSentError(self._words("asks to slow down"), retry_after(answer.headers, decoded))
        if status >= 500 or 300 <= status < 400 or status == 408:
            raise unsure(self._words(f"answered {status}"), retry_after(answer.headers, decoded))
        return status, decoded, answer.headers

    def refused(self, status: int, why: str) -> RejectedError:
        """The error for an answer that trying again does not change."""
        return RejectedError(self._words(f"refused the message: {status} {clip(one_line(why), 200)}".rstrip()))

    def in_doubt(self, why: str) -> InDoubtError:
        """The error for an answer that says neither yes nor no."""
        return InDoubtError(self._words(why))

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def _words(self, what: str) -> str:
        return hide(f"{self._service} {what}", self._secrets)

    def _plain(self, error: Exception) -> str:
        return clip(one_line(f"{type(error).__name__}: {error}".rstrip(": ")), 160)


class OverHttp(Notifier):
    """A channel over HTTP."""

    _http: Http

    def close(self) -> None:
        """End the connections."""
        self._http.close()


def retry_after(headers: httpx.Headers, decoded: Any = None) -> float | None:
    """How long the service wants us to wait: its header (seconds or a date), or Telegram's parameter."""
    said: Any = headers.get("retry-after")
    if said is None and isinstance(decoded, dict):
        parameters = decoded.get("parameters")
        said = parameters.get("retry_after") if isinstance(parameters, dict) else decoded.get("retry_after")
    if said is None:
        return None
    try:
        seconds = float(said)
    except (TypeError, ValueError):
        try:
            seconds = email.utils.parsedate_to_datetime(str(said)).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0.0), _LONGEST_WAIT) if seconds == seconds else None


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")


def _is_here(url: str) -> bool:
    host = httpx.URL(url).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
