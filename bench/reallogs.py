"""How often triage names the confirmed cause: python bench/reallogs.py [DIR]

DIR holds *.log and labels.json ({"name": {"accept": [cause ids]}}). Prints expected against found and the share right.
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
        try:
            primary = triage(Job(name, log, None)).primary
        except TrackwalkerError:
            primary = None
        rows.append((name, label["accept"], primary.cause if primary else None))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
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
