"""The parts of skills that repeat what the engine executes: made from playbooks and signatures, never by hand."""

from __future__ import annotations

from functools import cache

from trackwalker.diagnose.causes.playbook import Playbook, PlaybookAction, Test, load_playbooks
from trackwalker.diagnose.causes.states import states
from trackwalker.job.causes import about, cause_name, known
from trackwalker.logs.failures.signatures import Harmless, Signature, load
from trackwalker.logs.failures.signatures import load as load_signatures

_WRITTEN = "Generated from {what}."
_NAMED = (
    "Causes that a line of the log names by itself: [before training](log-causes-early.md), [others](log-causes.md)."
)
_SYMPTOMS = {
    "stall": "steps stopped",
    "slow": "a phase below the job's own full speed",
    "failed": "an exit code, or an error in the log",
    "heartbeat": "the coordination service declared tasks dead",
    "cancelled": "somebody or something ended it",
    "loss": "the loss is no number, or up for good",
    "blip": "one or two slow steps",
    "uneven": "many single slow steps",
    "saves": "saves very long or growing",
    "unfinished-start": "no step at all",
    "short": "success with steps left",
    "none": "no trouble",
}
_TIERS = {
    0: "before the job ran",
    1: "set-up of a node or a container",
    2: "says itself what broke",
    3: "an error of the program",
    4: "a wrapper, an abort, a bare traceback",
    5: "ended from outside, or still waiting",
    7: "a sign beside a failure, never the failure itself",
    9: "worth saying, never the failure",
}


# Pages of the causes that a log names by itself: what their lines look like, what they leave open, what to do next.
_MOST_LINES = 4  # of each signature: an example says more than a list


@cache
def all_books() -> dict[str, Playbook]:
    """A page for every cause: its playbook, or what the log's signatures know of it."""
    books = {book.id: book for book in load_playbooks()}
    return {cause: books.get(cause) or log_book(cause) for cause in sorted({*books, *known()})}


def log_book(cause: str) -> Playbook:
    """The page of a cause that has no playbook of its own."""
    mine = [s for s in load().by_id.values() if s.cause == cause or cause in (b.cause for b in s.becomes.values())]
    mine.sort(key=lambda s: (s.id != cause, s.cause != cause, s.order))  # what is named after it says most about it
    steps = list(dict.fromkeys(step for s in mine for step in s.next))
    return Playbook(
        id=cause,
        title=cause_name(cause),
        symptoms=["failed"],
        tests=[Test(id="log-says", role="require", signature=[cause])],
        summary=f"The log names the cause: {cause_name(cause)}.",
        actions=[PlaybookAction(do="next-step", why=step, risk="none", needs_approval=False) for step in steps],
        about=about(cause),
        body="\n\n".join([f"# {cause_name(cause)}", _how_it_looks(cause, mine), *_left_open(mine)]),
    )


def _how_it_looks(cause: str, mine: list[Signature]) -> str:
    told = about(cause)
    where = " Whoever prints it alone is where the trouble sits." if told is not None and told.about_host else ""
    lines = [f"`{_text(pattern)}`" for s in mine for pattern in s.any[:_MOST_LINES]]
    if not lines:
        return f"**How it looks.** No line names it: it is concluded from the other evidence of a job.{where}"
    return f"**How it looks.** A line of the log names it: {', '.join(lines[: 3 * _MOST_LINES])}.{where}"


def _left_open(mine: list[Signature]) -> list[str]:
    told = list(dict.fromkeys(s.proves_not for s in mine if s.proves_not))
    return [f"**Pitfalls.** What such a line does not prove: {' / '.join(told)}."] if told else []


def _text(pattern: object) -> str:
    """A pattern in a word or two; one that is a code has a name of its own."""
    return str(getattr(pattern, "name", None) or getattr(pattern, "has", pattern)).replace("`", "'").strip()


def pages() -> dict[str, str]:
    """Every generated page by its path inside the folder of skills."""
    books = load_playbooks()
    signatures = load_signatures()
    home, triage = "tsdb-diagnosis/references", "job-log-triage/references"
    made = {f"{home}/playbook-{b.id}.md": playbook_page(b) for b in books}
    made[f"{home}/playbooks.md"] = playbook_index(books)
    alone = [b for b in all_books().values() if b not in books]
    for name, early in (("log-causes-early", True), ("log-causes", False)):
        made[f"{home}/{name}.md"] = log_causes_page([b for b in alone if _is_early(b) == early], early)
    made |= {f"{triage}/{name}.md": text for name, text in signature_pages(list(signatures.by_id.values())).items()}
    made[f"{triage}/harmless.md"] = harmless_page(list(signatures.harmless.values()))
    return made


def playbook_index(books: list[Playbook]) -> str:
    """Which causes there are, and which symptom calls each."""
    out = ["# Playbooks by symptom", "", _WRITTEN.format(what="the playbooks"), ""]
    for symptom, means in _SYMPTOMS.items():
        called = [b for b in books if symptom in b.symptoms]
        if called:
            out += [f"## {symptom}: {means}", "", "| cause | what it is | if found |", "|---|---|---|"]
            out += [f"| [{b.id}](playbook-{b.id}.md) | {_cell(b.title)} | {b.outcome} |" for b in called]
            out.append("")
    return "\n".join([*out, _NAMED, ""])


def _is_early(book: Playbook) -> bool:
    return book.about is not None and book.about.group == "before training"


def log_causes_page(books: list[Playbook], early: bool) -> str:
    """The causes without a playbook, which the log names by itself, each in a few lines."""
    out = [
        f"# Causes that the log names{', before training' if early else ''}",
        "",
        _WRITTEN.format(what="the log signatures"),
        "",
    ]
    for book in books:
        out += [f"## {book.id}: {_cell(book.title)}", "", *(_cell(part) for part in book.body.split("\n\n")[1:])]
        out += [f"Next: {'; '.join(action.why for action in book.actions)}."] if book.actions else []
        out.append("")
    return "\n".join(out)


def playbook_page(book: Playbook) -> str:
    """One cause: what calls it, what it needs, how it is tested, what follows, what people should know."""
    metrics = sorted({m for t in (*book.tests, *book.screen) for m in t.metrics})
    out = [f"# {book.id}", "", f"{book.title}. {_WRITTEN.format(what=f'playbook `{book.id}`')}", ""]
    rows = {
        "called by": ", ".join(book.symptoms),
        "if found": book.outcome + (" (delivers the blow: root only when nothing else was wrong)" * book.mechanism),
        "metrics it needs": ", ".join(f"`{m}`" for m in metrics) or "none: log and journals are enough",
        "state": book.state,
        "can come of it": ", ".join(sorted(states().reaches(book.state))) if book.state else "",
    }
    out += [f"- {key}: {value}" for key, value in rows.items() if value]
    out += ["", "## Tests", ""] + [line for test in book.tests for line in _test(test)]
    if book.screen:
        out += ["", "## Asked of a run without a slow phase", ""] + [line for t in book.screen for line in _test(t)]
    if book.actions:
        out += ["", "## Actions", "", "| do | why | risk | a person must agree |", "|---|---|---|---|"]
        out += [
            f"| {a.do} | {_cell(a.why)} | {_cell(a.risk)} | {'yes' if a.needs_approval else 'no'} |"
            for a in book.actions
        ]
    return "\n".join([*out, "", "## What people know", "", _without_title(book.body), ""])


def _test(test: Test) -> list[str]:
    group = f" (one of group `{test.group}`)" if test.group else ""
    accuses = ", names the culprits" if test.accuses else ""
    if test.query:
        window = test.window + (f" against {test.against}" if test.against else "")
        with_ = "".join(f", {key} {value}" for key, value in test.with_.items())
        return [
            f"- **{test.id}**: {test.role}{group}{accuses}. Window {window}, detector {test.detector}{with_}.",
            f"  `{test.query}`",
        ]
    asked = f"fact `{test.fact}`" if test.fact else f"log lines of {', '.join(test.signature or [])}"
    return [f"- **{test.id}**: {test.role}{group}{accuses}. Asks {asked}."]


def signature_pages(signatures: list[Signature]) -> dict[str, str]:
    """The failure classes of the log, nearest to the cause first; an index, and one page for each tier."""
    tiers = sorted({s.order for s in signatures})
    index = ["# Failure classes by tier", "", _WRITTEN.format(what="the log signatures"), ""]
    index += ["A lower tier is nearer to the cause. Within a tier the earliest line wins.", ""]
    index += ["| tier | means | classes |", "|---|---|---|"]
    made = {}
    for tier in tiers:
        mine = [s for s in signatures if s.order == tier]
        name, means = f"signatures-tier-{tier}", _TIERS[tier]
        index.append(f"| [{tier}]({name}.md) | {means} | {', '.join(s.id for s in mine)} |")
        page = [f"# Tier {tier}: {means}", "", _WRITTEN.format(what="the log signatures"), ""]
        for s in mine:
            page += [
                f"- **{s.id}** (cause `{s.cause}`)" + (f". Does not prove: {s.proves_not}" if s.proves_not else "")
            ]
            page += [f"  Next: {'; '.join(s.next)}."] if s.next else []
        made[name] = "\n".join([*page, ""])
    return {"signatures": "\n".join([*index, ""]), **made}


def harmless_page(harmless: list[Harmless]) -> str:
    """What looks like a failure and is none."""
    out = ["# Lines that look like failures and are none", "", _WRITTEN.format(what="the log signatures"), ""]
    out += ["| id | why | for example |", "|---|---|---|"]
    for h in harmless:
        first = h.any[0]
        out.append(f"| {h.id} | {_cell(h.why)} | `{_cell(first if isinstance(first, str) else first.has)}` |")
    return "\n".join([*out, ""])


def _without_title(body: str) -> str:
    return body.split("\n", 1)[1].strip() if body.startswith("# ") and "\n" in body else body


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
