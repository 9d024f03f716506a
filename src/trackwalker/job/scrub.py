"""Secrets out of text that leaves the house: by the names they stand under, by their shape, and wherever they recur.

Every pattern has a largest length and begins where a word begins, so that the time grows with the text and not with its
square, whatever the text is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trackwalker.job.named import is_secret_word, named_secrets
from trackwalker.job.redact import HIDDEN, hide_shapes, is_dull, is_random, is_secret, redact
from trackwalker.job.whole import read_part

_Match = re.Match[str]
_SHORT = re.compile(  # programs that take a password as -p, or with the user's name
    r"\b(?P<head>(?:(?:docker|podman|skopeo|helm)\b[^\n|;&]{0,40}? login|sshpass|mysql\w{0,8})\b[^\n|;&]{0,200}?"
    r" -p[ \t]{0,8}'?"
    r"|(?:curl|wget|http)\b[^\n|;&]{0,400}? (?:-u|--user|--proxy-user)[ \t=]{0,8}['\"]?[^\s:'\"]{0,100}:)"
    r"(?P<value>[^\s'\"-][^\s'\"]{0,200})"
)
_NETRC = re.compile(
    r"(?P<head>\bmachine\s{1,8}\S{1,200}\s{1,8}login\s{1,8}\S{1,200}\s{1,8}password\s{1,8})(?P<value>\S{1,4096})"
)
_PIPED = re.compile(  # into a program that reads a password or a token
    r"(?P<head>\b(?:echo|printf|print)[ \t]{1,8}(?:-\w{1,4}[ \t]{1,8})?(?:['\"]%s(?:\\n)?['\"][ \t]{1,8})?['\"]?)"
    r"(?P<value>[^\s'\"|$-][^\s'\"|]{3,200})"
    r"(?=['\"]?[ \t]{0,8}\|[ \t]{0,8}[^|\n]{0,200}?(?:\bsudo\b[^|\n]{0,40}? (?:-S|--stdin)\b"
    r"|--\w{1,20}-stdin\b|--stdin\b|--with-token\b|\bkinit\b|\bcryptsetup\b|\bchpasswd\b|\bgpg\b[^|\n]{0,80}--passphrase-fd))"
)
# One of these stands in every text that such a pattern finds something in: long texts are rarely looked at further.
_SHORT_WORDS = (" login", "sshpass", "mysql", "curl", "wget", "http")
_PIPED_WORDS = ("sudo", "stdin", "--with-token", "kinit", "cryptsetup", "chpasswd", "--passphrase-fd")
_SCHEME = re.compile(
    r"(?i)\b(?P<head>(?:Bearer|Basic|Digest|Negotiate|Token|ApiKey)[ \t]{1,8})(?P<value>[A-Za-z0-9._~+/=-]{8,4096})"
)
_SCHEMES = ("bearer", "basic", "digest", "negotiate", "token", "apikey")
_ACCOUNT = re.compile(r"(?<![A-Za-z0-9])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,20}+://)(?P<rest>[^\s\"'<>`]{1,2000})")
_HOST = re.compile(
    r"@(?:[A-Za-z0-9-]{1,63}\.){0,8}[A-Za-z0-9-]{1,63}(?::\d{1,5})?(?=[/?#,:]|$)|@\[[0-9a-fA-F:]{2,40}\]"
)
_PORT = re.compile(r"[A-Za-z0-9.-]{0,253}:\d{1,5}(?:[/?#]|$)|[^@/?#]*[/?#]")
_HOOK = re.compile(
    r"(?P<head>https?://[^\s\"'<>/]{0,200}(?:/[^\s\"'<>/]{0,100}){0,4}?(?:/(?:web)?hooks?(?:b2)?|(?<=hooks\.slack\.com)/(?:services|workflows|triggers))/)"
    r"(?P<value>[^\s\"'<>]{8,2000})",
    re.IGNORECASE,
)
_PASSFILE = re.compile(
    r"^(?P<head>[\w.*-]{1,200}:(?:\d{2,5}|\*):[\w*.-]{1,60}:[\w*.-]{1,60}:)(?P<value>\S{4,200})$", re.MULTILINE
)
_BEGIN, _END = "-----BEGIN ", "-----END "
_HEAD = 1 << 18  # of a log: where launchers print the environment
_LEAST = 6  # shorter ones are hidden where they are named, not everywhere: "yes" is no secret
_FEW = 64  # known values that one pattern can hold; more are looked up by how they begin


class Scrubber:
    """First `learn` every text, then `clean` every text: a value named as secret in one is hidden in all."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._known: Callable[[str], str] | None = None
        self.hidden = 0

    def learn(self, text: str) -> None:
        """Remember the values that stand under secret names."""
        for begin, end in named_secrets(text):
            self._remember(text[begin:end])
        for pattern, words in ((_SHORT, _SHORT_WORDS), (_NETRC, ("machine",)), (_PIPED, _PIPED_WORDS)):
            for match in pattern.finditer(text) if any(word in text for word in words) else ():
                self._remember(match["value"])
        lower = text.lower()
        near = any(word + blank in lower for word in _SCHEMES for blank in " \t") or not text.isascii()
        for match in _SCHEME.finditer(text) if near else ():
            if is_random(match["value"]):
                self._remember(match["value"])

    def learn_document(self, value: Any, secret: bool = False) -> None:
        """The same for a document: everything below a secret name is a secret."""
        if isinstance(value, dict):
            for name, held in value.items():
                self.learn_document(held, secret or is_secret_word(str(name)))
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
        if len(value) >= _LEAST and not is_dull(value) and HIDDEN not in value:
            self._values.add(value)
            self._known = None

    def clean(self, text: str) -> str:
        """The text without secrets."""
        text = self._hide_keys(text)
        if self._values:
            if self._known is None:
                self._known = _finder(self._values)
            text = self._counted(self._known(text), text)
        if "://" in text:
            text = _ACCOUNT.sub(self._hide_account, text)
            text = _HOOK.sub(self._hide_tail, text)
        text = self._hide_named(text)
        for pattern in (_SHORT, _NETRC, _SCHEME, _PASSFILE, _PIPED):
            text = pattern.sub(self._hide_tail, text)
        text, count = hide_shapes(text)
        self.hidden += count
        return text

    def clean_document(self, value: Any, secret: bool = False) -> Any:
        """The document without secrets; its form stays."""
        if isinstance(value, dict):
            return {
                self.clean(str(k)): self.clean_document(v, secret or is_secret_word(str(k))) for k, v in value.items()
            }
        if isinstance(value, list):
            pairs = zip(["", *value], value, strict=False)
            return [self.clean_document(v, secret or _announces(before)) for before, v in pairs]
        if isinstance(value, float):  # measured, of a host or a pod that may be called like a secret
            return value
        if secret and value not in (None, "", HIDDEN, True, False):
            self.hidden += 1
            return HIDDEN
        return self.clean(value) if isinstance(value, str) else value

    def _hide_keys(self, text: str) -> str:
        """Private keys go over many lines; one that is cut has no end."""
        if _BEGIN not in text:
            return text
        parts, at = [], 0
        while (begin := text.find(_BEGIN, at)) >= 0:
            line = text[begin : begin + 80]
            if "PRIVATE KEY" not in line:
                parts.append(text[at : begin + len(_BEGIN)])
                at = begin + len(_BEGIN)
                continue
            end = text.find(_END, begin)
            close = text.find("-----", end + len(_END)) if end >= 0 else -1
            parts += [text[at:begin], HIDDEN]
            self.hidden += 1
            at = close + 5 if close >= 0 else len(text)
        return "".join([*parts, text[at:]])

    def _hide_named(self, text: str) -> str:
        parts, at = [], 0
        for begin, end in named_secrets(text):
            parts += [text[at:begin], HIDDEN]
            self.hidden += 1
            at = end
        return "".join([*parts, text[at:]]) if parts else text

    def _hide_account(self, match: _Match) -> str:
        """The user and the password of a URL; a password may hold anything, so the last `@` before a host ends it."""
        rest = match["rest"]
        if "@" not in rest or _PORT.match(rest):
            first = rest.partition("/")[0]
            if "@" not in first:
                return match[0]
        hosts = list(_HOST.finditer(rest))
        if not hosts:
            return match[0]
        self.hidden += 1
        return f"{match['scheme']}{HIDDEN}{rest[hosts[-1].start() :]}"

    def _hide_tail(self, match: _Match) -> str:
        if HIDDEN in match["value"] or (match.re is _SCHEME and not is_random(match["value"])):
            return match[0]
        self.hidden += 1
        return f"{match['head']}{HIDDEN}"

    def _counted(self, cleaned: str, text: str) -> str:
        self.hidden += cleaned.count(HIDDEN) - text.count(HIDDEN) if cleaned != text else 0
        return cleaned


def _finder(values: set[str]) -> Callable[[str], str]:
    """Puts stars for every known value: by one pattern for a few of them, by how they begin for many."""
    ordered = sorted(values, key=lambda v: (-len(v), v))  # longest first: one may be part of another
    if len(ordered) <= _FEW:
        pattern = re.compile("|".join(map(re.escape, ordered)))
        return lambda text: pattern.sub(HIDDEN, text)
    beginnings: dict[str, list[str]] = {}
    least = min(map(len, ordered))
    for value in ordered:
        beginnings.setdefault(value[:least], []).append(value)

    def replaced(text: str) -> Iterator[str]:
        at = kept = 0
        while at < len(text):
            found = beginnings.get(text[at : at + least])
            value = next((v for v in found if text.startswith(v, at)), None) if found else None
            if value is None:
                at += 1
                continue
            yield text[kept:at]
            yield HIDDEN
            at = kept = at + len(value)
        yield text[kept:]

    return lambda text: "".join(replaced(text))


def scrubber_of(log: Path | None = None) -> Scrubber:
    """Knows the secrets of this process's environment and those that a log prints at its head."""
    scrubber = Scrubber()
    scrubber.learn_document({name: value for name, value in os.environ.items() if is_secret(name)})
    if log is not None:
        scrubber.learn(read_part(log, _HEAD).decode("utf-8", "replace"))
    return scrubber


def shown(name: str, value: str) -> str:
    """A setting's value for records and headers: stars in the place of it, or of whatever in it is a secret."""
    starred = redact(name, value)
    return starred if starred == HIDDEN else Scrubber().clean(value)


def _announces(word: Any) -> bool:
    """Whether the next of a command's words is a secret: `--hf-token` stands alone in a list."""
    return isinstance(word, str) and word.startswith("--") and "=" not in word and is_secret_word(word)


def as_document(text: str) -> Any:
    """The JSON value of a text, None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
