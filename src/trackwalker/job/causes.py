"""What is known about a cause besides how it is found: in its playbook, or, where it has none, in
`playbooks/causes.yml`.

One place per cause, and every field is required: a cause that is forgotten somewhere is an error at load, and never
silently "a crash". Who retries, sorts, answers or sweeps asks here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from trackwalker.errors import UsageError
from trackwalker.job.yaml_files import read_yaml

_FOLDER = Path(str(files("trackwalker.playbooks")))
_TABLE = _FOLDER / "causes.yml"

# What another attempt may mend (`launch.resume.RULES`); `crash`: not known.
Retry = Literal[
    "cancelled", "oom", "config", "nan", "storage", "hang", "node", "preempted", "time-limit", "crash", "completed"
]
# What a sweep is told of a job that ended so; a hang's phase and the number of its nodes may say more (`sweep.policy`).
Swept = Literal["oom", "hang", "node-fault", "config-error", "cancelled", "failed"]
Group = Literal["before training", "crash", "stop", "slow", "training", "observer", "expected", "healthy"]
Said = TypeVar("Said")
Topic = Literal["speed", "stop", "hang", "memory", "network", "loss", "storage", "heartbeat"]


class About(BaseModel):
    """One cause: what follows from it."""

    model_config = ConfigDict(extra="forbid")

    retry: Retry
    sweep: Swept
    group: Group
    topics: list[Topic]  # questions that it answers; `hang` is a stop that nobody ordered
    about_host: bool  # whoever prints it alone is where the trouble sits
    name: str = ""  # in a few words, where its id does not read as such (`report.names`)
    symptom: bool = False  # it says that somebody is gone: a name only where a launcher tells how processes ended
    may_be_chance: bool = False  # a trial of a sweep that ended so is repeated once


@cache
def known() -> frozenset[str]:
    """The causes that have a playbook or a row."""
    return frozenset({*_told_by_logs(), *(p.stem for p in _FOLDER.glob("*.md"))})


@cache
def _told_by_logs() -> dict[str, Any]:
    """What follows from the causes that only log lines name."""
    rows: dict[str, Any] = parsed(_TABLE.name, _TABLE.read_text(encoding="utf-8"), dict)
    return rows


@cache
def about(cause: str) -> About | None:
    """What is known of a cause; None for a word that is none of ours (somebody else's journal may hold any)."""
    if cause not in known():
        return None
    path = _FOLDER / f"{cause}.md"
    if path.exists():
        return parsed(path.name, front_matter(path)[0], lambda said: apart(said)[0])
    return parsed(f"{_TABLE.name}: {cause}", "{}", lambda _: About(**_told_by_logs()[cause]))


def apart(said: dict[str, Any]) -> tuple[About, dict[str, Any]]:
    """What front matter says about the cause, and the rest: how it is found."""
    mine = About.model_fields.keys() & said.keys()
    return About(**{key: said[key] for key in mine}), {key: said[key] for key in said if key not in mine}


def about_topic(causes: set[str], topic: str) -> set[str]:
    """Those of some causes that answer a question about a topic."""
    return {c for c in causes if (told := about(c)) is not None and topic in told.topics}


def front_matter(path: Path) -> tuple[str, str]:
    """A playbook's front matter and its prose."""
    parts = path.read_text(encoding="utf-8").split("---\n", 2)
    if len(parts) != 3 or parts[0].strip():
        raise UsageError(f"playbook {path.name}: it must begin with front matter between two '---' lines")
    return parts[1], parts[2].strip()


def parsed(name: str, text: str, make: Callable[[dict[str, Any]], Said]) -> Said:
    """What is made of a file's YAML; a mistake is one line that says where."""
    try:
        return make(read_yaml(text))
    except (yaml.YAMLError, TypeError, AttributeError) as e:
        raise UsageError(f"playbook {name}: bad front matter: {' '.join(str(e).split())}") from e
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise UsageError(f"playbook {name}: {where}: {first['msg']}") from e


_WORDS = {
    "cpu": "CPU", "dmabuf": "DMA-BUF", "ecc": "ECC", "fs": "file system", "gpu": "GPU", "ipv6": "IPv6",
    "k8s": "Kubernetes", "moe": "MoE", "nccl": "NCCL", "nic": "NIC", "oom": "out of memory", "p2p": "P2P",
    "python": "Python", "rdma": "RDMA", "shm": "shared memory", "tcp": "TCP", "tgs": "TGS", "xla": "XLA",
}  # fmt: skip


def cause_name(cause: str) -> str:
    """A cause in a few plain words: `GPU out of memory`."""
    known = about(cause)
    if known is not None and known.name:
        return known.name
    said = " ".join(_WORDS.get(word, word) for word in cause.split("-"))
    return said[:1].upper() + said[1:]


def cause_label(cause: str) -> str:
    """The words first, the id in brackets: `GPU out of memory (oom-gpu)`."""
    return f"{cause_name(cause)} ({cause})"
