"""The log viewer: a window into logs of any size, with what triage found beside it. Works by links alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from trackwalker.agent.workspace import Workspace, signature
from trackwalker.diagnose.saved import place_of
from trackwalker.diagnose.verdict import Verdict
from trackwalker.errors import EvidenceError, TrackwalkerError
from trackwalker.fleet.index import stamp
from trackwalker.job.causes import cause_label
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.job.redact import HIDDEN
from trackwalker.job.scrub import Scrubber
from trackwalker.logs.formats.workers import earlier_parts
from trackwalker.logs.scanning.index import rank_files
from trackwalker.logs.scanning.window import BLOCK, OpenLog
from trackwalker.report import words
from trackwalker.report.text import clip, one_line
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.logs.log_lines import Dress, Row, folded, is_key_body
from trackwalker.web.logs.log_place import Ask, Place, ask_from, counts_of, find, keep_of
from trackwalker.web.logs.log_search import Needle
from trackwalker.web.logs.log_times import times_of
from trackwalker.web.pages.render import in_thread, kept, page, text_of, workspace_of

_AT_ONCE = 64 << 20  # bytes: the findings of a larger log are asked for apart from the page
_MOST_FILES = 400  # in the list of the page; any other is reached by its rank
_MOST_FINDINGS = 60
_PLACE = re.compile(r"(?P<file>[^:]{1,400}):(?P<line>\d{1,12})")


@dataclass(frozen=True)
class Jump:
    """A line worth a look, and who says so."""

    file: str
    line: int
    what: str
    text: str
    role: str
    url: str


@dataclass(frozen=True)
class View:
    """Everything the template shows."""

    job: Job
    ask: Ask
    file: LogFile
    files: list[LogFile]
    rows: list[Row]
    groups: list[list[Row]]  # the same rows, those that say the same together where folding was asked for
    place: Place
    size: int
    lines: int | None  # None while they are being counted
    jumps: list[Jump] | None  # None: too much to read before the page is shown
    live: bool


def routes() -> list[Route]:
    """The log page, and the pieces that it fetches."""
    return [
        Route("/job/{id}/log", _page, name="log"),
        Route("/job/{id}/log/rows", _rows),
        Route("/job/{id}/log/findings", _findings),
        Route("/job/{id}/log/download", _download),
    ]


async def _page(request: Request) -> Response:
    ws, ask = workspace_of(request), ask_from(request.path_params["id"], dict(request.query_params))
    state = await in_thread(_state, ws, ask)
    if state is None:
        return HTMLResponse(await in_thread(_text, request, ask))
    return await kept(request, state, lambda: _text(request, ask))


def _text(request: Request, ask: Ask) -> str:
    view = _look(workspace_of(request), ask, request.query_params.get("findings") == "1")
    return text_of(request, "log.html.j2", v=view, ask=view.ask, more_files=max(len(view.files) - _MOST_FILES, 0))


def _state(ws: WebWorkspace, ask: Ask) -> tuple[object, ...] | None:
    """What the page is made of; None where the next look may show more: a log that grows, that is not counted to its
    end, or in which a search goes on."""
    job = ws.job(ask.job)
    path = pick(log_files(ws.agent, job), ask.file, ask.rank).path
    if ask.q or is_live(job.state) or path.stat().st_size - counts_of(path).counted >= BLOCK:
        return None
    return signature(job), ws.known_diagnosis(job) is not None, stamp(place_of(job)), stamp(path)


async def _rows(request: Request) -> Response:
    """The next or the previous lines for a page that is scrolled or followed."""
    ask = ask_from(request.path_params["id"], dict(request.query_params))
    view = await in_thread(_look, workspace_of(request), replace(ask, line=None), False)
    return page(request, "log_rows.html.j2", v=view, ask=view.ask)


async def _download(request: Request) -> Response:
    """The whole log as a file, its secrets starred as on the page."""
    asked = request.query_params
    ws, ask = workspace_of(request), ask_from(request.path_params["id"], {"file": asked.get("file", "")})
    job = await in_thread(ws.job, ask.job)
    file = pick(await in_thread(log_files, ws.agent, job), ask.file, None)
    scrubber = await in_thread(ws.agent.scrubber, job)
    name = re.sub(r"[^\w.-]+", "_", file.name)[-120:]
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(clean_parts(file.path, scrubber), headers=headers, media_type="text/plain; charset=utf-8")


async def _findings(request: Request) -> Response:
    ws, name = workspace_of(request), request.path_params["id"]
    found = await in_thread(lambda: jumps(ws, ws.job(name)))
    return page(request, "log_findings.html.j2", jumps=found, ask=Ask(name))


def _look(ws: WebWorkspace, ask: Ask, wants_findings: bool) -> View:
    job = ws.job(ask.job)
    ask = replace(ask, job=job.id)
    says = ""
    if ask.t is not None:
        ask, says = at_moment(ws, job, ask)
    files = log_files(ws.agent, job)
    file = pick(files, ask.file, ask.rank)
    small = job.log is not None and job.log.stat().st_size <= _AT_ONCE
    found = jumps(ws, job) if small or wants_findings else None
    here = [jump for jump in found or [] if jump.file in (file.name, file.path.name)]
    notes = {jump.line: jump.what for jump in reversed(here)}  # of two on one line the first counts
    counts = counts_of(file.path)
    with OpenLog(file.path) as log:
        wanted = keep_of(ask, file.rank)
        place = find(log, counts, ask, wanted)
        place = replace(place, says=says) if says and not place.says else place
        dress = Dress(ws.agent.scrubber(job), Needle(ask.q), notes)
        rows = dress.rows(log, counts, place.lines, wanted is None, place.current, ask.part)
        return View(
            job=job,
            ask=ask,
            file=file,
            files=files[:_MOST_FILES],
            rows=rows,
            groups=folded(rows) if ask.fold else [[row] for row in rows],
            place=place,
            size=log.size,
            lines=counts.lines(log),
            jumps=found,
            live=is_live(job.state),
        )


def at_moment(ws: WebWorkspace, job: Job, ask: Ask) -> tuple[Ask, str]:
    """The line of the main log that was written at a moment, and how that is known."""
    known = ws.known_diagnosis(job)
    when = f"{words.utc(ask.t or 0.0)} UTC"
    try:
        line = times_of(ws.triage(job), known.story if known is not None else None).line_at(ask.t or 0.0)
    except TrackwalkerError as e:
        return replace(ask, t=None), f"{when}: {e}; here is the end of the log."
    return replace(ask, t=None, file="", line=line), f"Written at about {when}, by the times of the steps around it."


def jumps(ws: WebWorkspace, job: Job) -> list[Jump]:
    """The lines that triage found and, where there is a verdict already, those it cites; the first cause first."""
    out: list[Jump] = []
    try:
        findings = ws.triage(job).roles.findings
    except TrackwalkerError:
        findings = []  # a log that triage cannot read is shown all the same
    for finding in findings:
        if finding.line > 0:
            text = finding.text or finding.why
            url = Ask(job.id, finding.file, line=finding.line).url
            name = cause_label(finding.cause)
            what = name if finding.count == 1 else f"{name}, {finding.count:,} times"
            out.append(Jump(finding.file, finding.line, one_line(what), clip(one_line(text), 160), finding.role, url))
    return [*out, *cited(ws, job)][:_MOST_FINDINGS]


def cited(ws: WebWorkspace, job: Job) -> list[Jump]:
    """The lines that the verdict cites; none while nobody has asked for a verdict."""
    known = ws.known_diagnosis(job)
    verdict: Verdict | None = known.verdict if known is not None else ws.saved_verdict(job)
    out = []
    for item in verdict.evidence if verdict is not None else []:
        if item.kind == "log" and (match := _PLACE.fullmatch(item.source)):
            file, line = match["file"], int(match["line"])
            text, url = clip(one_line(item.says), 160), Ask(job.id, file, line=line).url
            out.append(Jump(file, line, f"evidence {one_line(item.id)[:24]}", text, "evidence", url))
    return out


_PART = 1 << 20
_LONGEST = 16 << 20  # of a line that is looked at whole: what is longer is cut, and the cut is said


def clean_parts(path: Path, scrubber: Scrubber) -> Iterator[bytes]:
    """The log in parts."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(_PART):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                yield b"".join(_clean(line, scrubber) + b"\n" for line in whole.split(b"\n"))
            if len(rest) > _LONGEST:
                yield _clean(rest[:_LONGEST], scrubber) + b" [a line of more than 16 MB is cut here]\n"
                rest = b""
                while (block := file.read(_PART)) and b"\n" not in block:
                    pass
                rest = block.partition(b"\n")[2]
    if rest:
        yield _clean(rest, scrubber)


def _clean(line: bytes, scrubber: Scrubber) -> bytes:
    text = line.decode("utf-8", "surrogateescape")
    found = HIDDEN if is_key_body(text) else scrubber.clean(text)
    return line if found == text else found.encode("utf-8", "surrogateescape")


_RANK = re.compile(r"(\d{1,6})\.log$")
_SUFFIXES = (".log", ".out", ".err")
_MOST = 5000  # files of one folder


@dataclass(frozen=True)
class LogFile:
    """One log: its name within the job, and the rank it belongs to where it is one rank's."""

    name: str
    path: Path
    rank: int | None = None


def log_files(ws: Workspace, job: Job) -> list[LogFile]:
    """The main log first, then parts that were rotated away, the ranks' own logs and Ray's; links out are left out."""
    found: list[LogFile] = []
    if job.log is not None:
        found += [LogFile(path.name, path) for path in (job.log, *earlier_parts(job.log))]
    if job.dir is not None:
        found += [LogFile(path.name, path, rank) for rank, path in rank_files(job.dir).items()]
        own = [(int(match[1]), path) for path in _below(job.dir / "ranks") if (match := _RANK.fullmatch(path.name))]
        found += [LogFile(f"ranks/{path.name}", path, rank) for rank, path in sorted(own)]
        found += [LogFile(str(path.relative_to(job.dir)), path) for path in sorted(_below(job.dir / "ray_logs"))]
    return [each for each in found if each.path.is_file() and ws.inside(each.path)]


def pick(files: list[LogFile], name: str, rank: int | None) -> LogFile:
    """The log that is meant: by name, else the rank's own, else the main one."""
    if not files:
        raise EvidenceError("this job has no log yet: its launcher writes the first lines when it starts")
    if name:
        # Findings name a file without its folder.
        same = [f for f in files if f.name == name] or [f for f in files if f.path.name == name]
        if not same:
            raise EvidenceError(f"this job has no log '{clip(one_line(name), 80)}': the list on its log page has all")
        return same[0]
    own = [f for f in files if rank is not None and f.rank == rank]
    return own[0] if own else files[0]


def _below(folder: Path) -> list[Path]:
    """The logs below a folder, links to folders not followed."""
    found: list[Path] = []
    for parent, _, names in os.walk(folder):
        found += [Path(parent, name) for name in names if name.endswith(_SUFFIXES)]
        if len(found) > _MOST:
            break
    return found[:_MOST]
