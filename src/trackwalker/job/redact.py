"""What a secret is: by the name it stands under, by its shape, and by how random it is near such a name. One list.

`scrub.py` applies it to texts and documents. Everything here looks at one name or one value of bounded length.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise

HIDDEN = "***"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Whatever stands under a name with one of these is a secret.
WEAK, SETTLED, STRONG = 1, 2, 3
_STRONG = frozenset(
    {"password", "passwd", "passphrase", "passcode", "passw", "pwd", "pw", "secret", "secrets", "credential",
     "credentials", "creds", "apikey", "authtoken", "privatekey", "authorization"}
)  # fmt: skip
# These name secrets too, and other things: what stands under them must look like one, unless the name is an
# environment variable's (`WANDB_KEY`) or has a second word that settles it (`api key`).
_WEAK = frozenset(
    {"token", "key", "auth", "pass", "sig", "signature", "cookie", "pat", "jwt", "dsn", "session", "seed", "salt",
     "otp", "sas", "bearer", "login"}
)  # fmt: skip
_SETTLES = frozenset(
    {"api", "access", "private", "account", "client", "signing", "encryption", "master", "shared", "ssh", "auth",
     "secret", "license", "routing", "storage", "subscription", "service", "webhook", "session", "refresh", "id",
     "bot", "app",
     "deploy", "push", "registry", "user", "admin", "root", "db", "database", "hf", "hub", "job", "ci", "github",
     "gitlab", "slack", "wandb", "bearer", "oauth", "csrf", "xsrf", "identity"}
)  # fmt: skip
_TAILS = frozenset(
    {"old", "new", "prod", "dev", "test", "staging", "main", "backup", "default", "value", "data", "b64", "base64",
     "string", "env"}
)  # fmt: skip
_NOT_ALONE = frozenset({"PWD", "OLDPWD"})  # the shell's folder
# No value at all: a switch, a placeholder, a path, a reference to where the value is.
_NOTHING = r"true|false|none|null|nil|\*+|\.{0,2}/[\w./-]*|<[^>]*>|\$\{?\w+\}?|[\[\](){}]+"
_EMPTY = re.compile(rf"(?:{_NOTHING})\Z", re.IGNORECASE)
_DULL = re.compile(
    rf"(?:{_NOTHING}|yes|no|on|off|default|auto|unset|required|missing|redacted|hidden"
    r"|[\d.,eE+-]+(?:ms|s|m|h|d|[kmgKMG]?i?[bB]?)?)\Z",
    re.IGNORECASE,
)
_CALL = re.compile(r"[A-Za-z_]\w{0,80}(?:\.[A-Za-z_]\w{0,80}){0,8}\(")  # `key = random.split(…)`: a program, no value
_LONGEST = 4096

# Tokens that say themselves whose they are. A prefix, then so many characters that only a generator writes.
_PREFIXES = (
    r"hf_", r"hf_oauth_", r"api_org_", r"gh[pousr]_", r"github_pat_", r"gl[a-z]{2,6}-", r"sk-",
    r"[srp]k_(?:live|test)_", r"rpa_", r"r8_", r"xox[a-z](?:\.xox[a-z])?-", r"xapp-\d-", r"npm_", r"pypi-",
    r"dckr_[a-z]{3}_", r"nvapi-",
    r"ya29\.", r"1//0", r"glsa_", r"glc_", r"do[opr]_v1_", r"shp[a-z]{2}_", r"SG\.", r"PMAK-", r"lin_api_",
    r"ntn_", r"secret_",
    r"figd_", r"gsk_", r"xai-", r"pplx-", r"fw_", r"lsv2_[a-z]{2}_", r"hv[sbr]\.", r"dp\.[a-z]{2}\.", r"tskey-\w{2,8}-",
    r"fm[12]_", r"whsec_", r"sq0[a-z]{3}-", r"AT[AC]TT3", r"CCIPAT_", r"rubygems_", r"HRKU-", r"pul-", r"ops_eyJ",
    r"AGE-SECRET-KEY-1", r"NRAK-", r"sgp_", r"ph[cx]_", r"wandb_v\d_", r"tvly-", r"jina_", r"EAAC", r"key-",
    r"dt0c01\.", r"eyJrIjoi", r"sl\.",
)  # fmt: skip
_WORDY = ("sk-", "key-", "secret_", "fw_", "pul-", "sl.", "1//")  # these begin other words as well
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    + "|".join(f"(?:{prefix})" for prefix in _PREFIXES)
    + r")(?P<drawn>[A-Za-z0-9_+/=.~-]{16,4096})"
)
_EXACT = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA)[A-Z0-9]{16}(?![A-Za-z0-9])"  # AWS
    r"|AIza[\w-]{30,60}|GOOG1[A-Z0-9]{20,80}|LTAI[A-Za-z0-9]{12,30}|AKID[A-Za-z0-9]{13,40}"  # Google, Alibaba, Tencent
    r"|dapi[0-9a-f]{32}(?:-\d)?|SK[0-9a-f]{32}(?![0-9a-f])"  # Databricks, Twilio
    r"|eyJ[\w-]{8,4096}\.[\w-]{8,4096}(?:\.[\w-]{0,4096}){0,3}"  # a JSON web token
    r"|[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,90}|pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"  # Terraform, Airtable
    r"|[MNO][A-Za-z\d_-]{23,27}\.[\w-]{6}\.[\w-]{27,45}"  # Discord
    r"|MUNGE:[A-Za-z0-9+/=]{20,4096}:?"
    r")|(?<!\d)\d{8,10}:[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"  # a Telegram bot; in its URL it stands right behind "bot"
)
# Any other token of this form: a short prefix, a joint, and what nobody writes by hand.
_GENERIC = re.compile(
    r"(?<![A-Za-z0-9_.$-])[a-z][a-z0-9]{1,9}(?:[_-][a-z0-9]{1,6}){0,2}[_-](?P<drawn>[A-Za-z0-9]{22,200})(?![A-Za-z0-9_])"
)


def is_secret(name: str) -> bool:
    """Whether a name says that its value is a secret, whatever the value looks like."""
    return grade(name) >= SETTLED


def grade(name: str) -> int:
    """0: nothing; WEAK: a secret if its value looks like one; SETTLED: unless it is a number or a word; STRONG: any."""
    if name in _NOT_ALONE or len(name) > 200:
        return 0
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _TAILS):
        words.pop()
    if not words:
        return 0
    if any(word in _STRONG for word in words) or "".join(words[-2:]) in ("apikey", "passphrase"):
        return STRONG
    if words[-1] not in _WEAK:
        return 0
    variable = name.isupper() or name.startswith("_env_")
    if len(words) > 1 and (variable or words[-2] in _SETTLES):
        return SETTLED
    return SETTLED if words[-1] == "token" or (variable and words[-1] in ("key", "auth", "pat", "jwt")) else WEAK


def is_dull(value: str) -> bool:
    """Whether a value is too ordinary to be hidden wherever it recurs: a number, a switch, a path, a placeholder."""
    return not value or bool(_DULL.match(value[:_LONGEST]))


def holds(value: str, under: int) -> bool:
    """Whether a value is a secret under a name of that grade."""
    if under == STRONG:
        bare = value.rstrip(",;")  # of a list: `password=None, user=bob`
        return bool(bare) and not _EMPTY.match(bare[:_LONGEST])
    return not is_dull(value) and (under == SETTLED or (is_random(value) and not _CALL.match(value)))


def is_random(value: str, least: int = 8) -> bool:
    """Whether a value looks drawn and not written: long, of several kinds of characters, none of them often."""
    if len(value) < least or is_dull(value):
        return False
    kinds = sum(any(test(c) for c in value[:200]) for test in (str.islower, str.isupper, str.isdigit))
    if kinds < 2:
        return False
    counts = Counter(value[:200]).values()
    total = sum(counts)
    bits = -sum(n / total * math.log2(n / total) for n in counts)
    # Of a text of n random characters about log2(n) bits are seen; words and numbers repeat themselves.
    return bits >= min(3.3, 0.8 * math.log2(total))


def hide_shapes(text: str) -> tuple[str, int]:
    """The text without tokens that are known by their shape alone, and how many there were."""
    count = 0

    def hide(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return HIDDEN

    def hide_drawn(match: re.Match[str]) -> str:
        drawn = match["drawn"]
        sure = not match[0].startswith(_WORDY) or is_random(drawn, 16)
        return hide(match) if any(map(str.isdigit, drawn)) and sure else match[0]

    def hide_generic(match: re.Match[str]) -> str:
        drawn = match["drawn"]
        kinds = (str.islower, str.isupper, str.isdigit)
        mixed = all(sum(map(kind, drawn)) >= 3 for kind in kinds) and _changes(drawn) >= len(drawn) // 3
        return hide(match) if mixed and is_random(drawn) else match[0]

    text = _EXACT.sub(hide, text)
    text = _TOKEN.sub(hide_drawn, text)
    return _GENERIC.sub(hide_generic, text), count


def _changes(word: str) -> int:
    """How often one kind of character follows another: names change rarely, drawn characters nearly always."""
    kinds = [0 if c.isdigit() else 1 if c.islower() else 2 for c in word]
    return sum(a != b for a, b in pairwise(kinds))


def redact(name: str, value: str) -> str:
    """A setting's value, or stars where its name says that nobody should read it."""
    under = grade(name)
    if under == WEAK and name.strip("-_").isalpha():  # a setting called just `key` is one
        under = SETTLED
    return HIDDEN if under and holds(value, under) else value
