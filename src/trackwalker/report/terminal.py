"""The verdict in a terminal: what a tired on-call engineer can act on, in 80 to 100 columns."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trackwalker.diagnose.verdict import Cause, Evidence, Verdict
from trackwalker.job.causes import cause_label, cause_name
from trackwalker.report import words
from trackwalker.report.changed import deviation_line, less_than_most
from trackwalker.report.commands import command_of, drain_of, first_look
from trackwalker.report.text import clip, one_line
from trackwalker.report.words import lacking

_WIDEST = 100
_DEVIATIONS = 6  # rows; `trackwalker changed` and the JSON have more
_SENTENCE, _WHY = 400, 240  # characters of the first screen's sentence, and of why an action is recommended
_SAYS, _SOURCE = 480, 240  # characters of one evidence item; the HTML report holds the rest
_STYLES = {
    "incident": "bold red",
    "expected": "bold cyan",
    "healthy": "bold green",
    "insufficient-evidence": "bold yellow",
}
_ASCII = str.maketrans({"→": "->", "…": "...", "±": "+/-", "·": "-", "—": "-", "–": "-"})


@dataclass
class _Page:
    """Prints indented lines and labelled rows; every string passes through here as plain text, never as markup."""

    console: Console
    evidence: dict[str, Evidence]
    told: set[str] = field(default_factory=set)

    def text(self, value: str, style: str = "") -> Text:
        value = one_line(value)
        if self.console.options.ascii_only:  # an old locale must not turn a report into a UnicodeEncodeError
            value = value.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        return Text(value, style=style, overflow="fold")

    def put(self, body: Text | Table, indent: int = 0) -> None:
        self.console.print(Padding(body, (0, 0, 0, indent), expand=False), width=min(self.console.width, _WIDEST))

    def command(self, value: str, indent: int) -> None:
        """A command to copy: never broken into lines, however narrow the terminal is."""
        self.console.print(Text.assemble(" " * indent, self.text(value, "bold")), soft_wrap=True)

    def heading(self, title: str) -> None:
        self.console.print()
        self.put(Text(title.upper(), style="bold"))

    def rows(self, rows: list[tuple[Text, Text]], indent: int, label: int) -> None:
        if not rows:
            return
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=label, overflow="fold")
        grid.add_column(ratio=1, overflow="fold")
        for left, right in rows:
            grid.add_row(left, right)
        self.put(grid, indent)

    def facts(self, facts: list[tuple[str, str]], indent: int = 4, label: int = 10) -> None:
        self.rows([(self.text(name, "dim"), self.text(value)) for name, value in facts], indent, label)

    def cited(self, ids: list[str], indent: int = 4) -> None:
        """Each evidence item in full the first time, by its id afterwards."""
        rows: list[tuple[Text, Text]] = []
        for key in ids:
            item = self.evidence.get(key)
            if item is None:
                rows.append((self.text(clip(key, 20)), self.text("not in this verdict", "dim")))
            elif key in self.told:
                rows.append((self.text(clip(key, 20)), self.text("see above", "dim")))
            else:
                self.told.add(key)
                rows.append((self.text(clip(key, 20)), self.text(clip(one_line(item.says), _SAYS))))
                rows.append((Text(""), self.text(clip(one_line(item.source), _SOURCE), "dim")))
        self.rows(rows, indent, 10)


def render(verdict: Verdict, console: Console, target: str = "", verbose: bool = False) -> None:
    """Print the verdict; colours only where the console has them, and nothing depends on them.

    The first screen (24 lines of 80 columns) says what, where and what to do next; the evidence follows. `target` is
    how the reader named the job, for the commands to copy; `verbose` adds why each hypothesis was ruled out.
    """
    page = _Page(console, {item.id: item for item in reversed(verdict.evidence)})
    rest = _head(page, verdict)
    _actions(page, verdict, target or shlex.quote(one_line(verdict.job.id)))
    if rest:
        page.heading("In full")
        page.put(page.text(clip(rest, 1200)), 2)
    _causes(page, verdict)
    if page.told:
        named = target or shlex.quote(one_line(verdict.job.id))
        first = next(item.id for item in verdict.evidence if item.id in page.told)
        page.put(page.text("All values of a piece of evidence:", "dim"), 4)
        page.command(f"trackwalker diagnose {named} --evidence {first}", 5)
    _deviations(page, verdict)
    _tested(page, verdict, verbose)
    if progress := words.verdict_facts(verdict):
        page.heading("Progress")
        page.facts(progress, indent=2, label=15)
    if failures := [check for check in verdict.data_quality if not check.ok]:
        page.heading("Data quality: failed checks")
        for check in failures:
            hosts = f" ({words.names(check.hosts)})" if check.hosts else ""
            says = f": {clip(one_line(check.says), _SAYS)}" if check.says else ""
            page.put(page.text(f"{check.check.replace('-', ' ')}{hosts}{says}"), 2)


def _head(page: _Page, verdict: Verdict) -> str:
    """Outcome, one sentence, where; returns what of the summary has no room here."""
    outcome = page.text(words.OUTCOMES[verdict.outcome].upper(), _STYLES[verdict.outcome])
    parts = (f"job {one_line(verdict.job.id)} ({verdict.status})", words.job_size(verdict))
    page.put(Text.assemble(outcome, "  ", page.text(", ".join(part for part in parts if part))))
    if window := words.window(verdict):
        page.put(page.text(window, "dim"))
    page.console.print()
    sentence, rest = words.first_sentence(one_line(verdict.summary), _SENTENCE)
    page.put(page.text(sentence, "bold"))
    if verdict.outcome != "healthy":
        page.console.print()
        page.facts([("Where", words.where(verdict))], indent=0, label=6)
    return rest


def _causes(page: _Page, verdict: Verdict) -> None:
    roots = verdict.roots
    if roots:
        title = "What it is (normal)" if verdict.outcome == "expected" else "Root cause"
        page.heading(title if len(roots) == 1 or verdict.outcome == "expected" else f"{len(roots)} root causes")
        for cause in roots:
            _cause(page, cause)
    elif verdict.outcome != "healthy":
        page.heading("Root cause")
        page.put(page.text("None is proven by what was collected."), 2)
    groups = (("Also wrong", ("contributing", "masked")), ("Mechanism and consequences", ("mechanism", "consequence")))
    for title, roles in groups:
        if found := [cause for role in roles for cause in verdict.causes if cause.role == role]:
            page.heading(title)
            for cause in found:
                _cause(page, cause)


def _cause(page: _Page, cause: Cause) -> None:
    style = "bold red" if cause.role == "root" and not cause.cause.startswith("expected") else "bold"
    title = words.cause_title(cause.cause)
    role = "" if cause.role == "root" else f", {cause.role}"
    said = f"({one_line(cause.cause)}{role}, {words.confidence(cause.confidence)})"
    page.put(Text.assemble(page.text(title, style), "  ", page.text(said)), 2)
    page.facts(words.cause_facts(cause))
    page.cited(cause.evidence)


def _deviations(page: _Page, verdict: Verdict) -> None:
    if not verdict.deviations:
        return
    page.heading("What deviates")
    for row in verdict.deviations[:_DEVIATIONS]:
        by = f"explained by {cause_name(row.explained_by)}" if row.explained_by else "nothing explains it"
        page.put(page.text(deviation_line(row, by, beside=less_than_most(row, verdict.deviations))), 2)
    if len(verdict.deviations) > _DEVIATIONS:
        page.put(
            page.text(f"{len(verdict.deviations) - _DEVIATIONS} more: trackwalker changed {verdict.job.id}", "dim"), 2
        )


def _tested(page: _Page, verdict: Verdict, verbose: bool) -> None:
    if verdict.ruled_out:
        page.heading("Ruled out")
        if verbose:
            for item in verdict.ruled_out:
                says = [clip(one_line(page.evidence[key].says), 160) for key in item.evidence if key in page.evidence]
                why = page.text(f": {'; '.join(says)}" if says else "", "dim")
                page.put(Text.assemble(page.text(cause_label(item.cause)), why), 2)
        else:
            names = ", ".join(cause_name(item.cause) for item in verdict.ruled_out)
            page.put(page.text(f"{names} (-v says why)"), 2)
    if verdict.untestable:
        page.heading("Could not be tested")
        for gap in verdict.untestable:
            missing = words.names(lacking(gap.missing)) or "what would decide it"
            page.put(page.text(f"{cause_label(gap.cause)}: not measured: {missing}"), 2)


def _actions(page: _Page, verdict: Verdict, target: str) -> None:
    page.heading("Do next")
    if not verdict.actions:
        page.put(page.text("Nothing is recommended. To look further:"), 2)
        page.command(first_look(verdict, target), 5)
    shown = set()
    for position, action in enumerate(verdict.actions, 1):
        head = Text.assemble(f"{position}. ", page.text(words.action_title(action), "bold"))
        if action.needs_approval:
            head.append("  [needs approval]", style="yellow")
        page.put(head, 2)
        command = command_of(action, verdict, target)
        if drain := drain_of(action, verdict):
            page.command(drain, 5)
            if "--exclude=" in command:
                page.put(page.text(f"then start again without {'it' if len(action.hosts) == 1 else 'them'}:"), 5)
        if command not in shown:  # several actions may begin alike
            shown.add(command)
            page.command(command, 5)
        if why := words.action_why(action):
            page.put(page.text(clip(why, _WHY)), 5)
