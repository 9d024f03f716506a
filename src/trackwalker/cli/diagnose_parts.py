"""The parts of a diagnosis on their own: the brief verdict, and the questions that were asked."""

from __future__ import annotations

import json

from trackwalker.agent.answers import as_text
from trackwalker.agent.verdicts import verdict_answer
from trackwalker.diagnose.asked import Asked, Diagnosis, state_of
from trackwalker.diagnose.verdict import Verdict
from trackwalker.errors import UsageError
from trackwalker.report.text import clip, json_visible, one_line

_MOST_NAMED = 8


def print_brief(diagnosis: Diagnosis, as_json: bool) -> None:
    """The verdict below 3 kB, as an agent gets it; in words unless JSON is asked for."""
    answer = verdict_answer(diagnosis.verdict, diagnosis.asked, diagnosis.damage, "brief")
    text = as_text(answer)
    if as_json:
        print(json_visible(text))
        return
    for name, held in json.loads(text).items():
        if isinstance(held, list):
            print(f"{name}:")
            for each in held:
                print(f"  - {one_line(each if isinstance(each, str) else _words(each))}")
        else:
            print(f"{name}: {one_line(held if isinstance(held, str) else _words(held))}")


def print_tests(asked: Asked, job: str, as_json: bool) -> None:
    """Every question with its answer; what was not asked, and why."""
    if as_json:
        print(json_visible(json.dumps(asked.to_dict(job), indent=1, ensure_ascii=False)))
        return
    for examination in asked.examined():
        print(f"{examination.playbook.id}: {state_of(examination)}")
        for result in examination.results:
            row = asked.row(result)
            names = row.get("names", [])
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            who = f" ({', '.join(names[:_MOST_NAMED])}{more})" if names else ""
            where = "; ".join(str(row[k]) for k in ("asked_of", "window", "fires_when") if k in row)
            lacks = f"; missing: {', '.join(row['missing'][:_MOST_NAMED])}" if "missing" in row else ""
            print(f"  {row['answer']:8}{row['role']:8} {row['test']}{one_line(who)}: {one_line(where + lacks)}")
    for book in asked.uncalled:
        print(f"not asked: {book.id}: {asked.why_uncalled(book)}")


def print_evidence(verdict: Verdict, asked: str, as_json: bool) -> None:
    """Pieces of evidence by their numbers, in full: what they say, their values, and where these come from."""
    known = {item.id: item for item in verdict.evidence}
    wanted = list(known) if asked == "all" else [name.strip() for name in asked.split(",") if name.strip()]
    if missing := [name for name in wanted if name not in known]:
        last = f"e1 to {verdict.evidence[-1].id}" if known else "none"
        raise UsageError(f"no evidence '{clip(one_line(missing[0]), 40)}' in this verdict: it has {last}")
    if as_json:
        found = [known[name].model_dump() for name in wanted]
        print(json_visible(json.dumps({"job": verdict.job.id, "evidence": found}, indent=1, ensure_ascii=False)))
        return
    for item in (known[name] for name in wanted):
        print(f"{item.id}  {one_line(item.says)}\n    {item.kind}: {one_line(item.source)}")
        for name, value in item.values.items():
            print(f"    {one_line(name)}: {value:g}")


def _words(held: object) -> str:
    if isinstance(held, dict):
        return "; ".join(f"{k}: {_words(v)}" for k, v in held.items())
    if isinstance(held, list):
        return ", ".join(_words(v) for v in held)
    return clip(str(held), 400)
