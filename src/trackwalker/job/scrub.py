"""Secrets out of text that leaves the house: by the names they stand under, by their shape, and wherever they recur."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from trackwalker.job.redact import HIDDEN, is_secret

# Names and schemes have a largest length and begin at a word's beginning: one endless word must not take an hour.
_NAMED = re.compile(
    r"""(?<![A-Za-z_])(?P<name>[A-Za-z_][\w.-]{0,120}+)(?P<join>(?:\\?["'])?\s*[=:]\s*)"""
    r"""(?P<value>\\"[^"\\\n]*\\"|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s"',;}&|]+)"""
)
_FLAG = re.compile(r"(?P<name>--[A-Za-z_][\w.-]{0,120}+)(?P<join>\s+)(?P<value>[^\s-]\S*)")
_SCHEME = re.compile(r"\b(?P<name>Bearer|Basic)(?P<join>\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_ACCOUNT = re.compile(r"(?P<scheme>(?<![a-z0-9])[a-z][a-z0-9+.-]{0,20}+://)[^\s/@\"']+@")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abeprs]-[\w-]{10,}|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|dckr_pat_[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|whsec_[\w+/=-]{16,})"
    r"|(?<!\d)\d{8,10}:AA[\w-]{33}"  # a Telegram bot; in its URL it stands right behind "bot"
    r"|(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/]+"
)
_SIGNED = re.compile(r"(?P<name>X-Amz-(?:Signature|Credential|Security-Token)|[?&]sig|Signature)=[^&\s\"']+")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_HEAD = 1 << 18  # of a log: where launchers print the environment
_LEAST = 6  # shorter ones are hidden where they are named, not everywhere: "yes" is no secret
_DULL = re.compile(r"(?:true|false|none|null|default|auto|\d{1,11}|[\d.eE+-]+|/[\w./-]*)$", re.IGNORECASE)


class Scrubber:
    """First `learn` every text, then `clean` every text: a value named as secret in one is hidden in all."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.hidden = 0

    def learn(self, text: str) -> None:
        """Remember the values that stand under secret names."""
        for pattern in (_NAMED, _FLAG):
            for match in pattern.finditer(text):
                if _is_secret(match["name"]):
                    self._remember(match["value"])
        for match in _SCHEME.finditer(text):
            self._remember(match["value"])
        for match in _SHAPES.finditer(text):
            self._remember(match[0])

    def learn_document(self, value: Any, secret: bool = False) -> None:
        """The same for a document: everything below a secret name is a secret."""
        if isinstance(value, dict):
            for name, held in value.items():
                self.learn_document(held, secret or _is_secret(str(name)))
        elif isinstance(value, list):
            for before, held in zip(["", *value], value, strict=False):
                self.learn_document(held, secret or _announces(before))
        elif isinstance(value, str):
            if secret:
                self._remember(value)
            else:
                self.learn(value)

    def hide(self, value: str) -> None:
        """A value that is known to be a secret, whatever it looks like."""
        if value:
            self._values.add(value)
            self._known = None

    def _remember(self, value: str) -> None:
        value = value.strip("\\\"'")
        if len(value) >= _LEAST and not _DULL.match(value) and value != HIDDEN:
            self._values.add(value)
            self._known = None

    def clean(self, text: str) -> str:
        """The text without secrets."""
        text = self._sub(_PEM, lambda m: HIDDEN, text)
        if self._values:
            if self._known is None:  # longest first: one may be part of another
                ordered = sorted(self._values, key=lambda v: (-len(v), v))
                self._known = re.compile("|".join(map(re.escape, ordered)))
            text = self._sub(self._known, lambda m: HIDDEN, text)
        for pattern in (_NAMED, _FLAG):
            text = pattern.sub(self._hide_named, text)
        text = self._sub(_SCHEME, lambda m: f"{m['name']}{m['join']}{HIDDEN}", text)
        text = self._sub(_ACCOUNT, lambda m: f"{m['scheme']}{HIDDEN}@", text)
        text = self._sub(_SIGNED, lambda m: f"{m['name']}={HIDDEN}", text)
        return self._sub(_SHAPES, lambda m: HIDDEN, text)

    def clean_document(self, value: Any, secret: bool = False) -> Any:
        """The document without secrets; its form stays."""
        if isinstance(value, dict):
            return {self.clean(str(k)): self.clean_document(v, secret or _is_secret(str(k))) for k, v in value.items()}
        if isinstance(value, list):
            pairs = zip(["", *value], value, strict=False)
            return [self.clean_document(v, secret or _announces(before)) for before, v in pairs]
        if secret and value not in (None, "", HIDDEN, True, False):
            self.hidden += 1
            return HIDDEN
        return self.clean(value) if isinstance(value, str) else value

    def _hide_named(self, match: re.Match[str]) -> str:
        value = match["value"]
        if not _is_secret(match["name"]) or HIDDEN in value:
            return match[0]
        quote = value[: 2 if value.startswith('\\"') else 1] if value[0] in "\"'\\" else ""
        self.hidden += 1
        return f"{match['name']}{match['join']}{quote}{HIDDEN}{quote}"

    def _sub(self, pattern: re.Pattern[str], by: Any, text: str) -> str:
        text, count = pattern.subn(by, text)
        self.hidden += count
        return text


def scrubber_of(log: Path | None = None) -> Scrubber:
    """Knows the secrets of this process's environment and those that a log prints at its head."""
    scrubber = Scrubber()
    scrubber.learn_document({name: value for name, value in os.environ.items() if is_secret(name)})
    if log is not None:
        try:
            with log.open("rb") as file:
                scrubber.learn(file.read(_HEAD).decode("utf-8", "replace"))
        except OSError:
            pass  # a log that cannot be read is the reader's error to tell
    return scrubber


def _is_secret(name: str) -> bool:
    """Names as they stand in texts: options have dashes, the launcher's environment settings a prefix."""
    return is_secret(name.lstrip("-").removeprefix("_env_").replace("-", "_"))


def _announces(word: Any) -> bool:
    """Whether the next of a command's words is a secret: `--hf-token` stands alone in a list."""
    return isinstance(word, str) and word.startswith("--") and "=" not in word and _is_secret(word)


def as_document(text: str) -> Any:
    """The JSON value of a text, None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None
