"""Secrets under names: a name is found by its stem, judged, and what stands behind it is read, in whatever language.

One pass: every name is looked at once and has a largest length, and so has every value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from trackwalker.job.redact import HIDDEN, SETTLED, WEAK, grade, holds, is_random, is_secret

_STEMS = ("pass", "pw", "secret", "cred", "token", "key", "auth", "sig", "cookie", "pat", "jwt", "dsn", "session",
          "seed", "salt", "otp", "sas", "login")  # fmt: skip
# As people write them; a pattern that ignores case would take three times as long.
_STEM = re.compile("|".join(form for stem in _STEMS for form in (stem, stem.upper(), stem.capitalize())))
_TAIL = re.compile(r"[\w.-]{0,120}")
_HEAD = 120  # characters of a name before its stem
_QUOTED = r"""\\"[^"\\\n]{0,4096}(?=\\")|b?"(?:[^"\\\n]|\\.){0,4096}(?=")|b?'(?:[^'\\\n]|\\.){0,4096}(?=')"""
_OPENS = re.compile(r"""\\"|b?"|b?'""")
# name = value, name: value, "name": "value", name => value, (name, "value"): the joint, with what closes the name.
_JOIN = re.compile(
    r"(?:\\?[\"'])?\]?[ \t]{0,16}(?:=>|:=|=|:(?!:|//)|,(?=[ \t]{0,4}b?[\"']))[ \t]{0,16}"
    r"(?:\([ \t]?['\"][^'\"\n]{0,200}['\"],[ \t]?)?"  # auth=("user", "password")
)
_SCHEMES = r"(?:(?i:Bearer|Basic|Digest|Negotiate|Token|ApiKey)[ \t]{1,4})?"
_SCHEME = re.compile(_SCHEMES)
_VALUE = re.compile(rf"{_QUOTED}|{_SCHEMES}[^\s\"',;}}&|<>)\]]{{1,4096}}")
_LINE_VALUE = re.compile(rf"{_QUOTED}|{_SCHEMES}[^\s\"'][^\s\"']{{0,4096}}")  # of a variable: up to the next blank
_BELOW = re.compile(
    r"(?:[\"']?:[ \t]{0,8}\n[ \t]{0,40}-[ \t]{1,8}|[\"']?[ \t]{0,8}\n[ \t]{0,40}value:[ \t]{1,8})"
)  # YAML
_FLAG = re.compile(r"[ \t]{1,8}('[^'\n]{1,200}(?=')|[^\s'\"-][^\s'\"]{0,4096})")
_TAGGED = re.compile(r">([^<>\n]{1,4096})(?=</)")
_PROMPT = re.compile(r"(?: for [^\n:]{1,80})?[ \t]{0,4}:(?!:)[ \t]{0,8}([^\n]{1,200})")
# In words: "the api key is …", "with token …". Only what cannot be a word counts then.
_SAID = re.compile(
    r"(?:[ \t]{1,4}(?:is|was|of|value|string))?[ \t]{0,4}:?[ \t\n]{1,4}(?:[ \t]{0,40})[`'\"]?([^\s\"'`,;)]{12,4096})"
)
_PHRASES = ("passphrase", "passcode")


def named_secrets(text: str) -> Iterator[tuple[int, int]]:
    """Where the secrets are that stand under a name, from the first to the last."""
    done = 0
    for stem in _STEM.finditer(text):
        if stem.start() < done:
            continue
        begin, first = stem.start(), max(done, stem.start() - _HEAD)
        while begin > first and (text[begin - 1].isalnum() or text[begin - 1] in "_-."):
            begin -= 1
        tail = _TAIL.match(text, stem.end())
        done = end = tail.end() if tail else stem.end()
        while end > stem.end() and text[end - 1] in ".-":  # a sentence ends
            end -= 1
        under = _grade(text[begin:end])
        if under == WEAK and text[begin - 1 : begin] in (
            "?",
            "&",
        ):  # what a URL carries under such a name opens something
            under = SETTLED
        found = _behind(text, begin, end, under) if under else None
        if found is not None and HIDDEN not in text[found[0] : found[1]]:
            done = max(done, found[1])
            yield found


def is_secret_word(name: str) -> bool:
    """Names as they stand in texts: options have dashes, the launcher's environment settings a prefix."""
    return is_secret(name.lstrip("-.").removeprefix("_env_"))


@lru_cache(maxsize=1 << 14)
def _grade(name: str) -> int:
    return grade(name.lstrip("-.").removeprefix("_env_"))


def _behind(text: str, begin: int, end: int, under: int) -> tuple[int, int] | None:
    """The value that belongs to a name."""
    name = text[begin:end].lower()
    if below := _BELOW.match(text, end):
        return _judged(text, _VALUE.match(text, below.end()), 0, under)
    if name.endswith(_PHRASES) and (said := _PROMPT.match(text, end)):
        return _judged(text, said, 1, under)
    if join := _JOIN.match(text, end):
        # A variable of its own, and not a part of a URL or of a list of settings: its value goes on to the next blank.
        alone = (begin == 0 or text[begin - 1] in " \t\n'\"") and join[0] == "="
        return _judged(text, (_LINE_VALUE if alone else _VALUE).match(text, join.end()), 0, under)
    if name.startswith("--") and (flag := _FLAG.match(text, end)):
        return _judged(text, flag, 1, under)
    if text[begin - 1 : begin] == "<" and (tagged := _TAGGED.match(text, end)):
        return _judged(text, tagged, 1, under)
    if "pass" in name and (said := _PROMPT.match(text, end)):
        return _judged(text, said, 1, under)
    said = _SAID.match(text, end)
    if said is not None and is_random(said[1], 12) and any(map(str.isdigit, said[1])):
        return said.span(1)
    return None


def _judged(text: str, found: re.Match[str] | None, group: int, under: int) -> tuple[int, int] | None:
    """Where the value is without its quotes, if it is a secret under a name of that grade."""
    if found is None:
        return None
    begin, end = found.span(group)
    opens = _OPENS.match(text, begin)
    begin = opens.end() if opens else begin
    scheme = _SCHEME.match(text, begin, end)
    begin = scheme.end() if scheme and scheme.end() < end else begin
    return (begin, end) if holds(text[begin:end], under) else None
