"""A second copy of every sample to a store that outlives the job; its secrets travel in files only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from trackwalker.errors import UsageError
from trackwalker.job.redact import is_secret

URL_VARIABLE = "TRACKWALKER_REMOTE_WRITE"
AUTH_VARIABLE = "TRACKWALKER_REMOTE_WRITE_AUTH_FILE"
# A store that is away makes Prometheus open more and more connections; without a bound each costs memory next to the
# training. Twenty carry a million samples a second.
_QUEUE = {"max_shards": 20, "capacity": 10_000, "max_samples_per_send": 2_000}
FLAGS = ("--storage.remote.flush-deadline=5s",)  # by itself a store that is away would hold up the end for a minute


@dataclass(frozen=True)
class Auth:
    """Who we are for the store: a user and a password, or a bearer token."""

    user: str | None
    secret: str


@dataclass(frozen=True)
class RemoteWrite:
    """Where to send samples, and the file that says who we are."""

    url: str
    auth_file: Path | None = None

    def environment(self) -> dict[str, str]:
        """As the recorder is told: by environment, because that is where every scheduler hands things on."""
        auth = {AUTH_VARIABLE: str(self.auth_file.absolute())} if self.auth_file else {}
        return {URL_VARIABLE: self.url, **auth}

    def section(self, folder: Path) -> dict[str, Any]:
        """Prometheus' `remote_write` entry; a secret is put into a private file in `folder`, never into the entry."""
        section: dict[str, Any] = {"url": self.url, "queue_config": dict(_QUEUE)}
        if self.auth_file is None:
            return section
        auth = read_auth(self.auth_file)
        secret = folder / "remote-write.secret"
        secret.touch(mode=0o600)
        secret.write_text(auth.secret)
        if auth.user is None:
            return {**section, "authorization": {"type": "Bearer", "credentials_file": str(secret)}}
        return {**section, "basic_auth": {"username": auth.user, "password_file": str(secret)}}


def remote_write(url: str | None, auth_file: Path | None) -> RemoteWrite | None:
    """The wish, checked; the messages never repeat what might be a secret."""
    if not url:
        if auth_file is not None:
            raise UsageError("--remote-write-auth-file without --remote-write: give the store's address as well")
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError("--remote-write is not an address: use http(s)://host[:port]/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError("--remote-write is not an address: use http(s)://host[:port]/path")
    if parts.username is not None or parts.password is not None:
        raise UsageError("--remote-write holds a user or password: put them into a --remote-write-auth-file")
    if any(is_secret(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise UsageError("--remote-write holds a secret behind '?': put it into a --remote-write-auth-file")
    if auth_file is not None:
        read_auth(auth_file)
    return RemoteWrite(url, auth_file)


def from_environment(env: Mapping[str, str] = os.environ) -> RemoteWrite | None:
    """The wish as the recorder hears it."""
    auth = env.get(AUTH_VARIABLE)
    return remote_write(env.get(URL_VARIABLE), Path(auth) if auth else None)


def read_auth(path: Path) -> Auth:
    """One line: `bearer TOKEN` or `basic USER:PASSWORD`."""
    try:
        words = path.read_text().strip().split(None, 1)
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "not text"
        raise UsageError(f"--remote-write-auth-file {path} cannot be read: {why}") from None
    kind, rest = (words[0].lower(), words[1]) if len(words) == 2 else ("", "")
    user, colon, password = rest.partition(":")
    if kind == "bearer" and len(rest.split()) == 1:
        return Auth(None, rest)
    if kind == "basic" and user and colon and "\n" not in rest:
        return Auth(user, password)
    raise UsageError(f"--remote-write-auth-file {path}: one line is expected, 'bearer TOKEN' or 'basic USER:PASSWORD'")
