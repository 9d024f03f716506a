"""Who may ask our Prometheus and TensorBoard: whoever knows a random secret of this user. Loopback is every user's."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trackwalker.job.private import kept_secret
from trackwalker.job.services import USER
from trackwalker.job.whole import write_whole
from trackwalker.observe.bcrypt import hashed

# No page of another origin may read an answer: this matches no text at all.
NO_ORIGIN = r"--web.cors.origin=[^\x00-\x{10FFFF}]"


@dataclass(frozen=True)
class Login:
    """A password and its hash, which Prometheus compares with."""

    password: str
    digest: str

    @property
    def header(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{USER}:{self.password}".encode()).decode()

    def write(self, folder: Path) -> str:
        """Write the web configuration for Prometheus; returns the flag that names it."""
        path = folder / "web.yml"
        write_whole(path, f"basic_auth_users:\n  {USER}: '{self.digest}'\n", mode=0o600)
        return f"--web.config.file={path}"


@cache
def login() -> Login:
    """This user's, made once: the hash takes a quarter of a second, which opening a database must not cost."""
    password, _, digest = kept_secret("prometheus-login", _make).strip().partition(" ")
    return Login(password, digest) if digest else Login(*_make().split(" "))


def _make() -> str:
    password = secrets.token_urlsafe(24)
    return f"{password} {hashed(password.encode(), secrets.token_bytes(16))}"
