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

# No page of another origin may read an answer: this matches no text at all.
NO_ORIGIN = r"--web.cors.origin=[^\x00-\x{10FFFF}]"


# The one password hash that Prometheus takes (bcrypt, "2b"), so that no library has to be installed for it.
_LETTERS = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_WORDS = 18 + 4 * 256  # Blowfish starts from so many words of the fraction of pi
_MAGIC = b"OrpheanBeholderScryDoubt"
_MASK = 0xFFFFFFFF
_LONGEST = 72  # bytes of a password that count


def hashed(password: bytes, salt: bytes, cost: int = 4) -> str:
    """The hash of a password as Prometheus' web configuration wants it; `salt` is 16 bytes."""
    if len(salt) != 16 or not 4 <= cost <= 31:
        raise ValueError("bcrypt takes a salt of 16 bytes and a cost from 4 to 31")
    key = (password + b"\0")[:_LONGEST]
    state = list(_pi_words())
    _expand(state, key, salt)
    for _ in range(1 << cost):
        _expand(state, key)
        _expand(state, salt)
    words = [int.from_bytes(_MAGIC[at : at + 4], "big") for at in range(0, len(_MAGIC), 4)]
    for at in range(0, len(words), 2):
        left, right = words[at : at + 2]
        for _ in range(64):
            left, right = _encipher(state, left, right)
        words[at : at + 2] = left, right
    digest = b"".join(word.to_bytes(4, "big") for word in words)[:23]
    return f"$2b${cost:02d}${_encode(salt)}{_encode(digest)}"


def _expand(state: list[int], key: bytes, salt: bytes = b"") -> None:
    stream = int.from_bytes((key * (72 // len(key) + 1))[:72], "big")
    for i in range(18):
        state[i] ^= stream >> 32 * (17 - i) & _MASK
    halves = [int.from_bytes(salt[at : at + 4], "big") for at in range(0, 16, 4)] if salt else [0, 0, 0, 0]
    left = right = 0
    for i in range(0, _WORDS, 2):
        at = i % 4
        left, right = _encipher(state, left ^ halves[at], right ^ halves[at + 1])
        state[i], state[i + 1] = left, right


def _encipher(state: list[int], left: int, right: int) -> tuple[int, int]:
    for i in range(16):
        left ^= state[i]
        mixed = state[18 + (left >> 24)] + state[274 + (left >> 16 & 0xFF)] ^ state[530 + (left >> 8 & 0xFF)]
        right ^= mixed + state[786 + (left & 0xFF)] & _MASK
        left, right = right, left
    return right ^ state[17], left ^ state[16]


@cache
def _pi_words() -> tuple[int, ...]:
    """The fraction of pi in words of 32 bits, by Machin's formula with some bits to spare."""
    bits = 32 * _WORDS + 64
    pi = 4 * (4 * _arctan(5, bits) - _arctan(239, bits)) >> 64
    fraction = pi & ((1 << 32 * _WORDS) - 1)
    return tuple(fraction >> 32 * (_WORDS - 1 - i) & _MASK for i in range(_WORDS))


def _arctan(inverse: int, bits: int) -> int:
    power = (1 << bits) // inverse
    total, number, sign = power, 1, 1
    while power:
        power //= inverse * inverse
        number, sign = number + 2, -sign
        total += sign * (power // number)
    return total


def _encode(data: bytes) -> str:
    """Its own base64: another alphabet, no padding."""
    value, length = int.from_bytes(data, "big") << (-8 * len(data) % 6), -(-8 * len(data) // 6)
    return "".join(_LETTERS[value >> 6 * (length - 1 - i) & 0x3F] for i in range(length))


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
