"""Files beside the main log of one job: each read as what it is, all in one index with one time."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackwalker.errors import EvidenceError
from trackwalker.logs.formats.forms import Form, Says, form_of, held_up, rank_in
from trackwalker.logs.scanning.lines import parse
from trackwalker.logs.scanning.shares import Beside, read_beside

if TYPE_CHECKING:
    from trackwalker.logs.scanning.index import Gatherer

_A_FORM = 1 << 20  # bytes
_HEADING = re.compile(rb"(?m)^==> ([^\n]{1,200}) <==\r?\n")
_A_HOST = re.compile(
    r"(?i)(?!(?:rank|worker|proc|process|task|r|p|w|t|stdout|stderr|log|out)[-_]?\d+$)[a-z][\w-]*\d[\w-]*$"
)
_MOST_TOGETHER = 64 << 20  # bytes


def beside(gatherer: Gatherer, paths: Sequence[Path], main: Path) -> None:
    """Read every further file; one that cannot be read must not hide the others."""
    dumps: dict[int, Any] = {}
    names = names_of([main, *paths])
    logs: list[Beside] = []
    for path in paths:
        try:
            form = form_of(path)
            if form.dump is not None:
                dumps[len(dumps) if (rank := rank_in(path)) is None else rank] = form.dump
            elif form.name == "log":
                logs.append(Beside(path, rank_of_log(path), names[path], form.host))
            else:
                _take(gatherer, path, form, names[path])
        except EvidenceError:
            continue
    read_beside(gatherer, logs)
    for said in held_up(dumps):
        _say(gatherer, said, "flight recorder")


@contextmanager
def apart(log: Path) -> Iterator[list[Beside]]:
    """The files of ranks that one file holds below one another, as `tail` prints several; none of any other file.

    The first of them has the file's own name. Where their names differ in a host's, it is theirs.
    """
    try:
        with log.open("rb") as file:
            front = file.read(4096)
            held = front + file.read(_MOST_TOGETHER) if _HEADING.match(front.lstrip()) else b""
    except OSError:
        held = b""  # whoever reads it says so
    heads = list(_HEADING.finditer(held))
    names = [head[1].decode("utf-8", "replace") for head in heads]
    ranks = [rank_of_log(Path(name)) for name in names]
    if len(heads) < 2 or None in ranks or len(set(ranks)) < len(ranks):
        yield []
        return
    hosts = _hosts_in(names)
    with tempfile.TemporaryDirectory(prefix="trackwalker-") as folder:
        parts: list[Beside] = []
        ends = [*(head.start() for head in heads[1:]), len(held)]
        each = zip(ranks, names, hosts, heads, ends, strict=True)
        for rank, name, host, head, end in sorted(each, key=lambda one: one[0] or 0):
            path = Path(folder) / str(rank) / (name.strip("/").replace("/", "-")[-200:] if parts else log.name)
            path.parent.mkdir()
            path.write_bytes(held[head.end() : end])
            parts.append(Beside(path, rank, "", host))
        yield parts


def _hosts_in(names: list[str]) -> list[str]:
    """Of files' names the part that is a host's: a word with a number, not the rank's, of one form in all of them."""
    words = [re.split(r"[/._]", name) for name in names]
    for column in zip(*words, strict=False) if len({len(each) for each in words}) == 1 else ():
        forms = {re.sub(r"\d+", "", word) for word in column}
        if len(set(column)) > 1 and len(forms) < 3 and all(_A_HOST.match(word) for word in column):
            return list(column)
    return [""] * len(names)


def host_told(path: Path) -> str:
    """The one host that a small file tells of: a described pod, a core dump; a log says it line by line."""
    try:
        return form_of(path).host if path.stat().st_size <= _A_FORM else ""
    except (EvidenceError, OSError):
        return ""


def is_no_log(path: Path) -> bool:
    """Whether a file is one of the forms that say something of their own."""
    try:
        form = form_of(path)
    except EvidenceError:
        return False
    return form.dump is not None or bool(form.says or form.lines)


def names_of(paths: list[Path]) -> dict[Path, str]:
    """What to call each file: its name, with its folder where several are called so."""
    plain = Counter(p.name for p in paths)  # the first, the main log, keeps its own
    return {p: p.name if plain[p.name] == 1 or p == paths[0] else f"{p.parent.name}/{p.name}" for p in paths}


def rank_of_log(path: Path) -> int | None:
    """A log of one rank has its number in its name, or in its folder's as torchrun makes them; others have none."""
    plain = path.stem.lower()
    is_rank = any(word in plain for word in ("rank", "worker", "proc", "task")) or plain in ("stdout", "stderr")
    numbered = is_rank or plain.rpartition("_")[2].isdigit()
    return rank_in(path) if numbered else None


def _take(gatherer: Gatherer, path: Path, form: Form, name: str) -> None:
    for said in form.says:
        _say(gatherer, said, name)
    if form.lines:  # an error file is read as the text that the rank would have printed
        with tempfile.TemporaryDirectory(prefix="trackwalker-") as folder:
            text = Path(folder) / path.name
            text.write_text("\n".join(form.lines) + "\n")
            gatherer.read(text, rank_in(path), name, form.host)
    elif not form.says:
        gatherer.read(path, None, name, form.host)


def _say(gatherer: Gatherer, said: Says, name: str) -> None:
    known = gatherer.signatures
    signature = known.by_state.get(said.state) if said.state else known.by_dump
    stamp = parse(f"{said.clock} x".encode()) if said.clock else None
    clock = stamp.clock if stamp is not None else None
    if signature is None and said.state:  # FAILED and the like say how it ended, not why
        signature = known.by_exit
    if signature is not None:
        gatherer.say(signature, said.rank, said.text, name, clock, said.host)


_RANK_FILE = re.compile(r"^rank-(\d{1,6})\.log$")


def rank_files(directory: Path | None) -> dict[int, Path]:
    """The other ranks' logs of a Kubernetes job."""
    if directory is None or not directory.is_dir():
        return {}
    found = {int(m[1]): p for p in directory.iterdir() if (m := _RANK_FILE.match(p.name)) and p.is_file()}
    return dict(sorted(found.items()))
