"""What triage says of words that nobody knows: python bench/ablation.py [--show] [--to FILE] [--only SOURCE] [--intact]

The patterns that decide a text are taken away, all of the failure class that named it, and it is asked again: that is
how a text looks whose author met words that we had not. Right is then another pattern's right name, an abstention with
the right class is good, another specific name is wrong. No text need be new for that, so a change can be measured
before a blind batch is spent on it. The figures compare two states of the programme; they foretell no batch, since a
text that we know has more in it that we know.

Texts, each of several lines: those that tests/unit/logs gives to triage (collected by running it), the collection of
real excerpts and the batches that were scored and may be read (--blind DIR, by default none). What is right is the
label, or of a test's text what triage says of it intact.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trackwalker.diagnose.triage as room
from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.logs.failures.kinds import kind_of_cause
from trackwalker.logs.failures.signatures import load
from trackwalker.logs.scanning.index import Gatherer
from trackwalker.logs.scanning.lines import parse
from trackwalker.logs.scanning.scan import Line

ROOT = Path(__file__).parents[1]
REAL = ROOT.parent / "shared" / "data" / "reallogs"
GENERIC = (None, "nothing", "healthy", "unclassified", "unknown-death", "python-exception")
_LONGEST, _FEWEST = 1 << 16, 3  # bytes, lines


@dataclass(frozen=True)
class Case:
    """One text and what is right to say of it."""

    source: str
    name: str
    text: bytes
    accept: tuple[str, ...] = ()  # empty: what triage says of it intact
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Said:
    """What triage says of one text."""

    cause: str | None
    kind: str = ""
    signature: str = ""

    @property
    def names(self) -> bool:
        """Whether it is a specific name."""
        return self.cause not in GENERIC


def ask(text: bytes, folder: Path) -> Said:
    """Triage of one text."""
    log = folder / "case.log"
    log.write_bytes(text)
    try:
        found = room.triage(Job("case", log, None))
    except TrackwalkerError:
        return Said(None)
    if found.primary is None:
        return Said("healthy" if found.status in ("completed", "soft-success") else None)
    kind = found.primary.kind or ("program" if found.primary.cause == "python-exception" else "")
    return Said(found.primary.cause, kind, found.primary.id)


@contextmanager
def without(patterns: frozenset[int]) -> Iterator[None]:
    """As if these patterns, by their numbers, had never been written: their lines are not even looked at for them."""
    known = load()
    gone = {at for at, rule in enumerate(known.rules) if rule.asked in patterns}
    rules, take = known.rules, Gatherer.take

    def taken(self: Gatherer, source: Any, line: Line) -> None:
        left = tuple(n for n in line.needles if n not in gone)
        if left:
            take(self, source, replace(line, needles=left))

    known.rules = [replace(rule, patterns=("(?!)",)) if at in gone else rule for at, rule in enumerate(rules)]
    Gatherer.take = taken  # type: ignore[method-assign]
    try:
        yield
    finally:
        known.rules, Gatherer.take = rules, take  # type: ignore[method-assign]


def deciding(text: bytes, signature: str) -> frozenset[int]:
    """The patterns of a failure class that find a line of a text."""
    known = load()
    bodies = [body for raw in text.split(b"\n") if (body := parse(raw[:4000])) is not None]
    return frozenset(
        rule.asked for rule in known.rules if rule.owner == signature
        and any(rule.place(body.text, body.text.lower()) >= 0 for body in bodies)
    )  # fmt: skip


def tested() -> Iterator[Case]:
    """What the unit tests of logs give to triage."""
    import pytest

    texts: dict[bytes, str] = {}
    read = room.read_record
    now = ""

    class Collects:
        def pytest_runtest_call(self, item: Any) -> None:
            nonlocal now
            now = item.nodeid

    def reads(job: Job, *args: Any, **kwargs: Any) -> Any:
        if job.log is not None and job.dir is None and not job.more and job.log.stat().st_size < _LONGEST:
            texts.setdefault(job.log.read_bytes(), now)
        return read(job, *args, **kwargs)

    room.read_record = reads  # type: ignore[assignment]
    try:
        quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
        pytest.main([*quiet, str(ROOT / "tests/unit/logs")], plugins=[Collects()])
    finally:
        room.read_record = read
    for text, name in texts.items():
        if text.count(b"\n") >= _FEWEST:
            yield Case("tests", name.rpartition("/")[2], text)


def labelled() -> Iterator[Case]:
    """The collection of real excerpts."""
    labels = json.loads((REAL / "labels.json").read_text()) if REAL.is_dir() else {}
    for name, label in sorted(labels.items()):
        if label.get("accept") and (REAL / f"{name}.log").is_file():
            yield Case("real", name, (REAL / f"{name}.log").read_bytes(), tuple(label["accept"]))


def batch(folder: Path) -> Iterator[Case]:
    """A blind batch that was scored before."""
    for answer in json.loads((folder / "answers.json").read_text(encoding="utf-8")):
        classes = tuple(c for c in (answer["class"], *answer.get("also_class", ())) if c)
        told = tuple(c for c in (answer["cause"], *answer.get("also", ())) if c)
        yield Case(
            folder.name, answer["file"], (folder / answer["file"]).read_bytes(), told or ("unclassified",), classes
        )


def outcome(said: Said, accept: tuple[str, ...], classes: tuple[str, ...]) -> str:
    """In one word."""
    if said.cause in accept:
        return "right"
    if said.names:
        return "wrong name"
    return "class" if said.kind in classes else "wrong class" if said.kind else "nothing"


def rows(cases: list[Case]) -> Iterator[dict[str, Any]]:
    """Each case, intact and without what decided it."""
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases:
            intact = ask(case.text, Path(scratch))
            accept = case.accept or tuple(filter(None, (intact.cause,)))
            own = {intact.kind, *(kind_of_cause(c) for c in accept)} - {""}
            classes = case.classes or tuple(sorted(own))
            said = replace(intact, cause=intact.cause or "nothing")
            row = {"source": case.source, "case": case.name, "accept": accept, "intact": intact.cause,
                   "is": outcome(said, accept, classes)}  # fmt: skip
            if row["is"] == "right" and intact.names and (gone := deciding(case.text, intact.signature)):
                with without(gone):
                    left = ask(case.text, Path(scratch))
                row |= {"without": intact.signature, "patterns": len(gone), "then": left.cause, "by": left.signature,
                        "kind": left.kind, "becomes": outcome(left, accept, classes)}  # fmt: skip
            yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blind", type=Path, nargs="*", default=[], help="batches that were scored before")
    parser.add_argument("--only", help="this source alone: tests, real or a batch's name")
    parser.add_argument("--cases", type=Path, help="keep the tests' texts there, or read them where they are kept")
    parser.add_argument("--show", action="store_true", help="each wrong name")
    parser.add_argument("--to", type=Path, help="write what was said of each case there")
    options = parser.parse_args()
    cases = list(labelled())
    for folder in options.blind:
        cases += batch(folder)
    if options.only in (None, "tests"):
        cases += kept(options.cases)
    found = list(rows([c for c in cases if options.only in (None, c.source)]))
    for row in found:
        if options.show and "wrong name" in (row["is"], row.get("becomes")):
            print(json.dumps(row))
    if options.to:
        options.to.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    for source in dict.fromkeys([*(row["source"] for row in found), "all"]):
        of = [row for row in found if source in (row["source"], "all")]
        intact, left = Counter(row["is"] for row in of), Counter(row["becomes"] for row in of if "becomes" in row)
        print(f"{source}: intact {_ratios(intact)}; without what decides {_ratios(left)}")
    return 0


def kept(folder: Path | None) -> list[Case]:
    """The tests' texts; from where an earlier run kept them, with what was said of them then as what is right."""
    if folder is not None and folder.is_dir():
        out = []
        for path in sorted(folder.glob("*.json")):
            told = json.loads(path.read_text())
            out.append(Case("tests", told["name"], path.with_suffix(".log").read_bytes(), (told["said"] or "nothing",)))
        return out
    found = list(tested())
    if folder is not None:
        folder.mkdir(parents=True)
        for number, case in enumerate(found):
            said = ask(case.text, folder).cause
            (folder / f"{number:04d}.json").write_text(json.dumps({"name": case.name, "said": said}))
            (folder / f"{number:04d}.log").write_bytes(case.text)
    return found


def _ratios(counted: Counter[str]) -> str:
    total = sum(counted.values())
    return f"of {total}: " + ", ".join(f"{word} {n} ({100 * n / total:.0f} %)" for word, n in counted.most_common())


if __name__ == "__main__":
    sys.exit(main())
