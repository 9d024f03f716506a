"""Pages of the causes that a log names by itself: what their lines look like, what they leave open, what to do next."""

from __future__ import annotations

from functools import cache

from trackwalker.diagnose.playbook import Playbook, PlaybookAction, Test, load_playbooks
from trackwalker.job.cause_names import cause_name
from trackwalker.job.causes import about, known
from trackwalker.logs.signatures import Signature, load

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
