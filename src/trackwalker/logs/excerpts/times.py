"""Times that lines of one form tell, whatever the form: steps that became slower, checkpoints that take very long."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from trackwalker.logs.excerpts.gpus import Shown

_A_STEP = re.compile(r"(?i)\b(?:it|iter|iters|iterations?|steps?|batch(?:es)?|epochs?)\b|it/s|/it\b")
_SECONDS = re.compile(
    r"(?i)\b(?:took|takes|time|elapsed|duration|dt|per (?:iteration|step|batch))\b(?: ?\((?:m?s|sec\w*)\))?\s?[:=]?\s?(?P<much>\d+(?:\.\d+)?)(?![\d:/])"  # noqa: E501
    r"|(?<![\d:.])(?P<rate>\d+\.\d+) ?(?:s|sec|ms|seconds)/(?:it|iter|iteration|step|batch)\b"
)
_DIGITS = re.compile(r"\s*\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FEWEST = 3  # before and after
_SLOWER = 1.5  # times the slowest before
_GROWN = 2.0  # times the first, where every one is slower than the one before
_SAVES = re.compile(
    r"(?i)(?:sav(?:e|ed|ing)|checkpoint\w*|ckpt).{0,90}?(?:\bin|took|taking|time|after|[:=])\W{0,2}(?P<much>\d+(?:\.\d+)?) ?(?:s|sec|secs|seconds)\b"  # noqa: E501
    r"|(?:time|timing)\w*/\w*(?:save|checkpoint|ckpt)\w*\W{1,3}(?P<seconds>\d+\.\d+)"
)
_LONG_S = 300.0  # of one save
_READS = re.compile(r"(?i)restor|load|read")  # how much was read is not told: minutes may be what it takes
_WHO = re.compile(r"(?i)\b(?:rank|dev(?:ice)?|gpu|cuda|worker|host|node)s?[ =:]{0,2}[\w.:-]*\d[\w.:-]*")
_MEASURE = re.compile(
    r"(?i)\b(?:mean|avg|average|median|time|took|elapsed|fwd|forward|step|compute)\w*\W{0,3}(?P<much>\d+(?:\.\d+)?) ?(?:ms|s|sec|seconds)\b"  # noqa: E501
)
_WORD = re.compile(r"\S*\d\S*")
_MEMBERS, _AGREE = 4, 1.15  # lines; times the usual one


def slower_steps(lines: Sequence[str]) -> Iterator[Shown]:
    """Steps of one form that from one line on take far longer than all before, or longer from line to line."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for at, line in enumerate(lines):
        match = _SECONDS.search(line, 0, 400) if _A_STEP.search(line, 0, 400) else None
        if match is not None:
            series[_DIGITS.sub("#", line[: match.start()])].append((at, float(match["much"] or match["rate"])))
    for told in series.values():
        seconds = [much for _, much in told]
        for cut in range(_FEWEST, len(seconds) - _FEWEST + 1):
            if min(seconds[cut:]) >= _SLOWER * max(seconds[1:cut]) > 0:
                yield "slower", told[cut][0], lines[told[cut][0]].strip()
                return
        grows = len(seconds) >= _FEWEST and all(b > a for a, b in pairwise(seconds))
        if grows and seconds[-1] >= _GROWN * seconds[0] > 0:
            yield "slower", told[-1][0], lines[told[-1][0]].strip()
            return


def one_far_behind(lines: Sequence[str]) -> Iterator[Shown]:
    """Of the same measure of many ranks, devices or hosts, one that takes far longer while the others agree."""
    forms: dict[str, list[tuple[int, tuple[str, ...], float]]] = defaultdict(list)
    for at, line in enumerate(lines):
        who = tuple(m.group() for m in _WHO.finditer(line, 0, 300))
        much = _MEASURE.search(line, 0, 400) if who else None
        if much is not None:
            forms[_WORD.sub("#", line[: much.start()])].append((at, who, float(much["much"])))
    for told in forms.values():
        ranked = sorted(told, key=lambda each: each[2])
        if len(told) < _MEMBERS or len({who for _, who, _ in told}) < len(told):
            continue
        usual, next_to, worst = ranked[len(ranked) // 2][2], ranked[-2][2], ranked[-1]
        if worst[2] >= _SLOWER * next_to and next_to <= _AGREE * usual:
            yield "slow-words", worst[0], lines[worst[0]].strip()


def long_saves(lines: Sequence[str]) -> Iterator[Shown]:
    """Checkpoints whose writing took minutes, by their own line."""
    for at, line in enumerate(lines):
        match = _SAVES.search(line, 0, 1000)
        if match and not _READS.search(match[0]) and float(match["much"] or match["seconds"]) >= _LONG_S:
            yield "storage-slow", at, line.strip()
