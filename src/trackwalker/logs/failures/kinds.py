"""The generic class of a failure (memory, storage, network, ...) from words, codes and exception types.

A class is a question that a person can go on with ("storage?"), not a name: what decides it stands in `kinds.yml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import orjson

from trackwalker.job.yaml_files import read_yaml
from trackwalker.logs.failures.structure import GUESSES
from trackwalker.logs.scanning.disk_cache import kept

FILE = Path(__file__).parents[1] / "kinds.yml"
_DECIDES = 6.0  # a code or an exception class outweighs words
_LEANS = 2.0  # an exception class that any code raises
_OBJECT = 0.5  # what the failed verb is about weighs more than the rest of the line
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])(?!B\b)")  # a class name is a sentence without spaces
# Lines of fields, JSON or key=value: what says who wrote it, where and when is not about the failure.
_FIELD = re.compile(r'"?\b(\w+)"?\s?[:=]\s?("(?:[^"\\]|\\.)*"|[^\s,{}]+),?')
_FIELDS = re.compile(r"^\W{0,3}\w+\"?[:=](?:.*?\w\"?[:=]){2}")
# Who speaks, before what is said: a level with a logger's name, glog's head, a thread that panicked.
_HEAD = re.compile(
    r"^\W{0,3}(?:(?:Exception in thread \"[^\"]*\" |Caused by: )(?:[a-z_]\w*\.)*|[IWEF]\d{4} [\d:.]+ +\d+ \S+\] |\[NeMo[^\]]*\] ?|thread '[^']*' panicked at \S+ ?|(?:what\(\):|panic:)\s+"  # noqa: E501
    r"|(?:- )?(?:[\w.-]+ )?(?:- )?\[?(?:ERROR|CRITICAL|FATAL|error|critical|fatal)\s*\]?[\s:-]+(?:[\w-]+(?:\.[\w-]+)*: ?)?"  # noqa: E501
    r"|(?:[\w]+\.)+(?=[A-Z]\w+: )|NCCL WARN )"
)
_HERE = re.compile(
    r"(?i)\b(?:on |of )?(?:this|our) (?:node|rank|host|worker|process|machine)(?:'s)?\b"
    r"|\b(?:(?:global|local|world)[ _]?)?(?:rank|worker|process|task|node|host)[ =:#]{1,2}\d+\b"
    r"|\b(?:ray)?(?:worker|node|task|actor|job) (?:id|ip address|port|pid): \S+"
)
_SIGNALS = {9: "memory"} | dict.fromkeys((1, 2, 15), "scheduler") | dict.fromkeys((4, 6, 7, 8, 11), "program")
_OPTIONS = re.compile(
    r"\[(?:(?:'[^']*'|\"[^\"]*\")(?:, |(?=\]))){2,}(?:\]|['\"][^'\"]*$)|^(?:\$ |\^C).*|(?<=\s)--[a-z][\w-]*(?:=\S+)?"
)  # of a command that is typed or quoted
_ADDRESS = re.compile(
    r"https?://[^\s'\">)]+|\b(?:[\w-]+\.)+(?:com|org|net|io|ai|edu|gov|example)\b(?!/)"
)  # its words are names
_SERVICE = re.compile(  # barrierd:, tokenguard:, one word of two
    r"^(\W{0,3}[a-z]{3,}?)((?:d|kit|guard|warden|keeper|master|shim|mesh|cast|vault|rt|ctl|agent|net|lib|hub|link|gate|sync|clock|store))(?=(?: \w+)?: )"  # noqa: E501
)
_WHOSE = frozenset({
    "ts", "t", "time", "timestamp", "at", "level", "lvl", "sev", "severity", "rank", "local_rank", "world_rank", "host",
    "hostname", "node", "pid", "tid", "ip", "step", "logger", "comp", "component", "src", "mod", "module", "unit",
    "where", "file", "filename", "path", "line", "lineno", "func", "function", "caller", "thread", "job", "run",
})  # fmt: skip
_PROCESS, _NOTICED_BY = "program", {"network"}
_MOSTLY = 2.0  # what only leans somewhere does not take a known cause out of its own class
_LEAST = 1.0  # a word that leans somewhere is a question worth asking


@dataclass(frozen=True)
class Kind:
    """One class, ready to be asked."""

    name: str
    texts: tuple[tuple[int, str], ...]
    errors: frozenset[str]
    errnos: frozenset[str]
    causes: frozenset[str]
    also: frozenset[str]
    signatures: frozenset[str]
    leans: frozenset[str]

    @cached_property
    def words(self) -> list[tuple[int, re.Pattern[str]]]:
        """Compiled when a class is asked for by words: a known cause needs none of them."""
        return [(weight, re.compile(rf"(?i)(?<![a-z])(?:{text})")) for weight, text in self.texts]

    def weight(self, text: str) -> float:
        """How much of a text speaks for it; every word counts once."""
        total = 0.0
        for weight, expression in self.words:
            total += weight * len({m.group().lower() for m in expression.finditer(text)})
        return total


@cache
def kinds() -> tuple[Kind, ...]:
    """All classes."""
    out = []
    text = FILE.read_text(encoding="utf-8")
    for name, told in orjson.loads(kept("kinds", text.encode(), lambda: _as_json(text))).items():
        words = tuple((int(weight), "|".join(texts)) for weight, texts in told["words"].items())
        out.append(
            Kind(
                name,
                words,
                frozenset(told["errors"]),
                frozenset(map(str, told["errnos"])),
                frozenset(told["causes"]),
                frozenset(told["also"]),
                frozenset(told.get("signatures", ())),
                frozenset(told.get("leans", ())),
            )
        )
    return tuple(out)


@cache
def kind_of_signature(signature: str) -> str:
    """The class of a failure class whose cause tells none, or another one; "" where the cause's or the words count."""
    return next((k.name for k in kinds() if signature in k.signatures), "")


def kind_of_end(signal: int | None, code: int | None) -> str:
    """The class of an end that has no words: by the kernel, by whoever may tell it to end, by itself."""
    if signal is not None:
        return _SIGNALS.get(signal, "")
    return _PROCESS if code else ""


def _as_json(text: str) -> bytes:
    return orjson.dumps(read_yaml(text), option=orjson.OPT_NON_STR_KEYS)


@cache
def kind_of_cause(cause: str, text: str = "") -> str:
    """The class that a cause belongs to, "" for those that belong to none; of several the one its line speaks for."""
    known = [k for k in kinds() if cause in k.causes or cause in k.also]
    own = next((k for k in known if cause in k.causes), None)
    if own is None or len(known) == 1 or not text:
        return own.name if own else ""
    spoken = _CAMEL.sub(" ", _spoken(text))
    weights = {k.name: k.weight(spoken) for k in known}
    if own.name == _PROCESS and weights[own.name] >= _MOSTLY:
        weights |= dict.fromkeys(_NOTICED_BY & weights.keys(), 0.0)  # that a connection ended is how it was noticed
    return max(known, key=lambda k: (weights[k.name] if weights[k.name] >= _MOSTLY else 0.0, k is own)).name


def _spoken(text: str, hosts: Iterable[str] = ()) -> str:
    """A line without the fields that say only who wrote it, where and when, and without the names of hosts."""
    if (guesses := GUESSES.search(text)) is not None:
        text = text[: guesses.start()]
    for host in hosts:
        text = text.replace(host, " ")
    text = _ADDRESS.sub(" http ", _OPTIONS.sub("", text))
    text = _SERVICE.sub(r"\1 \2", _HERE.sub("", _HEAD.sub("", text)))
    if not _FIELDS.match(text):
        return text
    return _FIELD.sub(lambda field: "" if field[1].lower() in _WHOSE else field[0].replace("_", " "), text)


def kind_of(
    texts: Sequence[str],
    about: str = "",
    exception: str = "",
    errno: str = "",
    hosts: Iterable[str] = (),
    least: float = _LEAST,
    but: str = "",
) -> str:
    """The class of some lines of one failure; "" where nothing speaks clearly for one, below the `least` weight.

    `hosts` are only names there; `but` is a class that is not asked for.
    """
    named = [host for host in set(hosts) if host and any(host in text for text in texts)]
    joined = _CAMEL.sub(" ", " ".join(_spoken(text, named) for text in dict.fromkeys(texts)))
    spoken = _CAMEL.sub(" ", _spoken(about, named))
    scores = {k.name: k.weight(joined) + _OBJECT * k.weight(spoken) for k in kinds()}
    for k in kinds():
        scores[k.name] += _DECIDES * (errno in k.errnos) + _DECIDES * (exception in k.errors)
        scores[k.name] += _LEANS * (exception in k.leans)
    scores.pop(but, None)
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= least else ""
