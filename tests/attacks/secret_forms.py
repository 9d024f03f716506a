"""The corpora of secret forms, expanded: what a text looks like, and which parts of it nobody may see afterwards."""

from __future__ import annotations

import random
import re
import string
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("secrets")
_SLOT = re.compile(r"\{(hex|an|UP|b64|url|dig):(\d+)\}|\{=([^}]*)\}")
_ALPHABETS = {
    "hex": "0123456789abcdef",
    "an": string.ascii_letters + string.digits,
    "UP": string.ascii_uppercase + "234567",
    "b64": string.ascii_letters + string.digits + "+/",
    "url": string.ascii_letters + string.digits + "-_",
    "dig": string.digits,
}


@dataclass(frozen=True)
class Form:
    """One way in which a secret stands in a text."""

    name: str
    text: str
    secrets: tuple[str, ...]

    def leaks(self, cleaned: str) -> bool:
        """Whether any secret, or a good part of a long one, can still be read."""
        for secret in self.secrets:
            pieces = {secret[i : i + 12] for i in range(0, len(secret) - 11, 4)} if len(secret) > 16 else set()
            if any(part in cleaned for part in {secret, *pieces}):
                return True
        return False


def forms(which: str) -> list[Form]:
    """`holdout` or `tuned`."""
    found = []
    for line in (FOLDER / f"{which}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, template = line.partition(" | ")
            found.append(_expanded(name, template))
    return found


def _expanded(name: str, template: str) -> Form:
    rng, secrets = random.Random(name), list[str]()

    def fill(slot: re.Match[str]) -> str:
        drawn = slot[3] if slot[3] is not None else "".join(rng.choices(_ALPHABETS[slot[1]], k=int(slot[2])))
        secrets.append(drawn)
        return drawn

    text = _SLOT.sub(fill, template.replace("\\\\n", "\0")).replace("\\n", "\n").replace("\0", "\\n")
    return Form(name, text, tuple(secrets))
