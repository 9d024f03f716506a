"""Scores triage on a folder of logs that nobody here has read: python bench/blind_logs.py DIR [--to FILE] [--about TEXT] [--show]

DIR holds *.log and answers.json: `file`, `class` and `also_class`, and either `cause`, `also`, `decidable` (a failure
with a known cause) or `rank`, `host`, `forbidden` (a message in invented words, whose true answer has no name).
Prints counts only, so that a set can be scored before anybody looks at it; --to writes what was said of each case, never
the texts; --after keeps the first sight that FILE holds and only replaces its count of after_repairs. --show prints the
misses. A cause outside `cause` and `also` is a wrong name unless it is one of the generic ones.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from trackwalker.diagnose.triage import triage
from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.logs.failures.signatures import load

GENERIC = (None, "unclassified", "unknown-death", "python-exception")
Row = dict[str, Any]


def judge(log: Path, answer: Row) -> Row:
    """What triage says of one log, beside what its author says."""
    try:
        answered = triage(Job(log.stem, log, None))
    except TrackwalkerError:
        answered = None
    primary = answered.primary if answered else None
    ended_well = answered is not None and answered.status in ("completed", "soft-success")
    said = primary.cause if primary else "healthy" if ended_well else None
    kind = (primary.kind if primary else "") or ("program" if said == "python-exception" else "")
    classes = [c for c in (answer["class"], *answer.get("also_class", ())) if c]
    row: Row = {"case": log.stem, "source": answer.get("source"), "trainer": answer.get("trainer"), "form": answer.get("form")}  # noqa: E501  # fmt: skip
    row = {key: value for key, value in row.items() if value} | {"class": classes}
    if "cause" in answer:
        accept = [_cause(c) for c in (answer["cause"], *answer.get("also", ())) if c]
        row |= {"accept": accept, "decidable": answer["decidable"]}
    else:
        accept = list(answer.get("fits", ()))
        row |= {
            "rank_right": (primary.rank if primary else None) == answer["rank"],
            "host_right": (primary.host if primary else None) == answer["host"],
            "forbidden": said in answer.get("forbidden", ()),
        }
    return row | {
        "said": said, "said_class": kind, "right": said in accept, "class_right": kind in classes,
        "specific_wrong": said not in GENERIC and said not in accept,
    }  # fmt: skip


def _cause(name: str) -> str:
    """What the verdict calls it: an author may have written the name of a failure class instead."""
    known = load().by_id.get(name)
    return known.cause if known else name


def count(rows: list[Row]) -> dict[str, int]:
    """The figures the goals are set in."""
    if "decidable" not in rows[0]:
        keys = {"rank": "rank_right", "host": "host_right", "class": "class_right", "specific_name": "specific_wrong"}
        return {name: sum(r[key] for r in rows) for name, key in keys.items()} | {
            "forbidden": sum(r["forbidden"] for r in rows), "of": len(rows),
        }  # fmt: skip
    decidable, rest = [r for r in rows if r["decidable"]], [r for r in rows if not r["decidable"]]
    missed = [r for r in rows if not r["right"]]
    return {
        "decidable": len(decidable), "right": sum(r["right"] for r in decidable),
        "specific_wrong": sum(r["specific_wrong"] for r in rows),
        "undecidable": len(rest),
        "abstain_with_class": sum(r["class_right"] and not r["specific_wrong"] for r in rest),
        "not_named": len(missed), "not_named_with_class": sum(r["class_right"] for r in missed),
        "class_right": sum(r["class_right"] for r in rows), "of": len(rows),
    }  # fmt: skip


def met(figures: dict[str, int]) -> bool:
    """Whether the goals of that kind of set are reached."""
    if "rank" in figures:
        enough = min(figures["rank"], figures["host"]) >= 0.9 * figures["of"]
        return enough and figures["class"] >= 0.7 * figures["of"] and not figures["specific_name"]
    named = figures["right"] >= 0.9 * figures["decidable"] and figures["specific_wrong"] <= 0.02 * figures["of"]
    return named and figures["abstain_with_class"] >= 0.8 * figures["undecidable"]


def good(row: Row) -> bool:
    """Whether there is nothing to say against an answer."""
    if "decidable" in row:
        return bool(row["right"] or (not row["decidable"] and row["class_right"] and not row["specific_wrong"]))
    return bool(row["rank_right"] and row["host_right"] and row["class_right"] and not row["specific_wrong"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, help="write the answers of first sight there")
    parser.add_argument("--after", type=Path, help="write only the count after repairs there")
    parser.add_argument("--about", default="", help="the first field of the file")
    parser.add_argument("--show", action="store_true", help="each case that is not right")
    options = parser.parse_args()
    answers = json.loads((options.folder / "answers.json").read_text(encoding="utf-8"))
    rows = [judge(options.folder / answer["file"], answer) for answer in answers]
    figures = count(rows)
    if options.to:
        if options.to.exists():
            parser.error(f"{options.to} exists: there is only one first sight")
        _write(options.to, {"about": options.about, "first_sight": figures, "cases": rows})
    if options.after:
        _write(options.after, json.loads(options.after.read_text(encoding="utf-8")) | {"after_repairs": figures})
    for row in rows:
        if options.show and not good(row):
            print(json.dumps(row))
    print(json.dumps(figures), "goals met" if met(figures) else "goals missed")
    return 0 if met(figures) else 1


def _write(path: Path, told: dict[str, Any]) -> None:
    first = ("about", "notes", "first_sight", "after_repairs")
    kept = {key: told[key] for key in first if told.get(key)}
    path.write_text(json.dumps(kept | {"cases": told["cases"]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
