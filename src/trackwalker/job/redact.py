"""Secrets stay out of names, logs and records."""

from __future__ import annotations

import re

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"TOKEN$|SECRET|PASSW|CREDENTIAL|PRIVATE_KEY|API_?KEY|ACCESS_?KEY|AUTH$|_KEY$|^KEY$|_PAT$|COOKIE", re.IGNORECASE
)


def is_secret(name: str) -> bool:
    """Whether an environment or config name looks like it carries a secret."""
    return bool(_SECRET_NAME.search(name))


def redact(name: str, value: str) -> str:
    """The value, or stars when its name says that nobody should read it."""
    return HIDDEN if is_secret(name) and value else value
