"""What a user may ask of Slurm: `-N4`, `-N 4` and `--nodes=4` are the same; the rest is sbatch's own business."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from trackwalker.errors import UsageError
from trackwalker.launch.request.effective import tables

_SBATCH = tables()["sbatch"]
_TAKES: dict[str, bool] = _SBATCH["takes"]
_LONG: dict[str, str] = _SBATCH["letters"]
_OURS: dict[str, str] = _SBATCH["ours"]
# Never taken for one of ours misspelt; two more are Kubernetes'. An unknown one is still sbatch's own business.
KNOWN = frozenset(_TAKES) | {"namespace", "gpu-resource"}
_SHORT_ALONE = frozenset("HOQVWhksv")
_TIME = re.compile(r"\d+(-\d+(:\d+){0,2}|(:\d+){0,2})|UNLIMITED|INFINITE", re.IGNORECASE)


@dataclass(frozen=True)
class SubmitOptions:
    """How a job is queued; what is None is left to Slurm."""

    nodes: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    reservation: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    gpus_per_node: int | None = None
    requeue: bool = False
    signal_before_s: int = 60  # SIGUSR1 that long before the time limit; Slurm may send it a minute early; 0: never
    extra: list[str] = field(default_factory=list)  # as `--option=value` or `-x`, never a bare word


def parse_scheduler_words(words: Sequence[str], base: SubmitOptions | None = None) -> SubmitOptions:
    """Read sbatch options as the user typed them; unknown ones are kept for sbatch, a bare word is an error."""
    options = base or SubmitOptions()
    extra = list(options.extra)
    for name, value, word in _options(words):
        if name in _OURS:
            raise UsageError(f"scheduler option '{word}': {_OURS[name]}")
        if name in ("nodes", "gpus-per-node") and value is not None and (name == "nodes" or value.isdigit()):
            options = replace(options, **{name.replace("-", "_"): _count(word, value)})  # type: ignore[arg-type]
        elif name == "time" and value is not None:
            if not _TIME.fullmatch(value):
                raise UsageError(f"time limit '{value}': use minutes, H:M:S or days-H:M:S")
            options = replace(options, time=value)
        elif name in ("partition", "account", "reservation", "nodelist", "exclude") and value:
            options = replace(options, **{name: value})  # type: ignore[arg-type]
        elif name in ("requeue", "no-requeue"):
            options = replace(options, requeue=name == "requeue")
        else:
            extra.append(word)
    return replace(options, extra=extra)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str | None, str]]:
    """Each option's long name, its value, and both as one word."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if "\0" in word or "\n" in word:
            raise UsageError(f"scheduler option {word!r} holds a newline or a NUL byte")
        if word.startswith("--") and len(word) > 2:
            name, eq, value = word[2:].partition("=")
            if not eq and _TAKES.get(name, True):  # behind any option that takes one the next word is its value
                value = _next(word, rest)
                word, eq = f"--{name}={value}", "="
            yield name, value if eq else None, word
        elif word.startswith("-") and len(word) > 1 and word[1] != "-":
            letter, value = word[1], word[2:].removeprefix("=")
            if letter in _SHORT_ALONE:
                yield _LONG.get(letter, letter), None, word
                continue
            value = value or _next(word, rest)
            yield (
                _LONG.get(letter, letter),
                value,
                f"--{_LONG[letter]}={value}" if letter in _LONG else f"-{letter}{value}",
            )
        elif word == ":":
            raise UsageError(
                "':' begins another part of a heterogeneous job, and the nodes of a run are equal: leave it"
            )
        else:
            raise UsageError(f"'{word}' is no scheduler option; trainer settings go behind '--'")


def _next(word: str, rest: list[str]) -> str:
    if not rest:
        raise UsageError(f"scheduler option '{word}' needs a value")
    return rest.pop(0)


def _count(word: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise UsageError(f"scheduler option '{word}': give one number of at least 1 (the mesh is planned for it)")
    return int(value)
