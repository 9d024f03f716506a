"""Untrusted text made safe to show: log lines and host names are data, never markup or terminal commands."""

from __future__ import annotations

import re

# Whole escape sequences go, so that no "[31m" debris stays behind. An unterminated string sequence loses only
# its introducer: otherwise one stray escape could hide the rest of a log line from the reader.
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x90-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# C0, DEL and C1 controls; soft hyphen; zero-width, bidi and tag characters; line and paragraph separators.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"\s+")
# More than a few combining marks on one letter is not a language: it paints over the lines above and below.
_STACKED = re.compile(
    "([\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{3})[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"})


def clean(text: str) -> str:
    """The text without escapes, controls and invisible direction changes; line breaks stay."""
    text = _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _UNSAFE.sub("", text)
    return _STACKED.sub(r"\1", _SURROGATE.sub("\ufffd", text))


def visible(text: str) -> str:
    """One line of a log for people who want to see what is there: controls as signs, colours gone, nothing hidden."""
    text = _ANSI.sub("", text.removesuffix("\r"))
    text = _UNSAFE.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\ufffd", text)
    return _STACKED.sub(r"\1", _SURROGATE.sub("\ufffd", text))


def one_line(text: str) -> str:
    """The clean text on one line, so that data cannot fake a line of the report."""
    return _SPACE.sub(" ", clean(text)).strip()


def plain(text: str) -> str:
    """The clean text on one line as Markdown shows it: what a log or a trace says must not become markup."""
    return one_line(text).translate(_MARKUP)


def clip(text: str, limit: int) -> str:
    """At most `limit` characters, the cut shown by an ellipsis."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…"


def clip_middle(text: str, limit: int) -> str:
    """At most `limit` characters, cut in the middle: host names differ at their ends."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return text[: limit - 1 - tail] + "…" + (text[-tail:] if tail else "")


def json_visible(document: str) -> str:
    """The same JSON document with every unsafe character as a JSON escape: still equal, now harmless."""

    def escape(match: re.Match[str]) -> str:
        units = match.group().encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

    return _SURROGATE.sub(escape, _UNSAFE.sub(escape, document))
