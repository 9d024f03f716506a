"""How often triage ranks the confirmed cause first: python bench/reallogs.py [--folder DIR]

DIR holds *.log and labels.json ({"name": {"accept": [cause ids]}}). Prints expected against found and the share right.
Without --folder it is the collection the signatures were written with: its score is in-sample. A collection nobody
looked at while writing them belongs outside the repository, since such excerpts are other people's text.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from trackwalker.diagnose.triage import triage
from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job

DEFAULT = Path(__file__).parents[2] / "shared" / "data" / "reallogs"


def score(folder: Path, only: set[str] | None = None) -> list[tuple[str, list[str], str | None]]:
    """(name, accepted causes, found cause) of every labelled log."""
    labels = json.loads((folder / "labels.json").read_text())
    rows: list[tuple[str, list[str], str | None]] = []
    for name, label in sorted(labels.items()):
        log = folder / f"{name}.log"
        if not log.is_file() or not label.get("accept") or (only and name not in only):
            continue
        rows.append((name, label["accept"], first_cause(log)))
    return rows


def first_cause(log: Path) -> str | None:
    """The cause triage lists first: the primary one, or without a failure what it says slowed or looked bad."""
    try:
        found = triage(Job(log.stem, log, None))
    except TrackwalkerError:
        return None
    finding = found.primary or next(iter(found.roles.findings), None)
    return finding.cause if finding else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT)
    parser.add_argument("--only", nargs="*", help="names to score, all by default")
    options = parser.parse_args()
    rows = score(options.folder, set(options.only) if options.only else None)
    for name, accepted, found in rows:
        print(f"{'ok  ' if found in accepted else 'MISS'} {name}  expected {' or '.join(accepted)}, found {found}")
    right = sum(found in accepted for _, accepted, found in rows)
    print(f"{right} of {len(rows)} right ({100 * right / max(len(rows), 1):.0f} %)")
    return 0 if rows else 2


if __name__ == "__main__":
    sys.exit(main())
