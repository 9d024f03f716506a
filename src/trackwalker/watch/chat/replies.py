"""Answers to short questions in a chat: verdicts, triage, the end of a log, a plot. Nothing here changes a job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.agent.workspace import Workspace
from trackwalker.diagnose.triage import triage
from trackwalker.errors import TrackwalkerError
from trackwalker.job.journal import open_at_last
from trackwalker.job.layout import Job
from trackwalker.job.redact import is_secret
from trackwalker.job.resolve import resolve
from trackwalker.launch.job_state import standing
from trackwalker.report.charts.png import line_plot
from trackwalker.report.text import clip, one_line
from trackwalker.watch.notify.message import Attachment

HELP = """I answer:
status [JOB]: how a job stands; without one, all that run
triage JOB: what happened, from its log
why is JOB slow: a diagnosis, with its evidence
tail [JOB] [LINES]: the end of its log
plot tgs|step|loss [JOB]: a picture
JOB is an id or its beginning; without one, the newest job is meant."""

_LIMIT_S = 240.0
_LINES, _MOST_LINES = 15, 60
_ID = re.compile(r"\b(?:k8s-[\w-]+|local_\w+|\d{2,})\b")
_NUMBER = re.compile(r"\b\d{1,3}\b")


# A job's course as a picture: `python -m trackwalker.watch.chat.replies JOB tgs` writes a PNG to its output.
QUANTITIES = {
    "tgs": "tokens/s/device over steps",
    "step": "step time in seconds over steps",
    "loss": "loss over steps",
}


def draw(job: str, quantity: str) -> bytes | None:
    """The PNG of one quantity over the steps; None where the job has not reported it."""
    found = triage(resolve(job, Path()))
    record, steps = found.record.steps, found.index.steps
    if quantity == "loss":
        return line_plot([float(s) for s in steps.step], [float(v) for v in steps.loss])
    values = record.tgs if quantity == "tgs" else record.seconds
    return line_plot([float(s) for s in record.step], [float(v) for v in values])


def main(argv: list[str]) -> int:
    """Write the picture; exit 1 where there is nothing to draw."""
    try:
        picture = draw(*argv)
    except TrackwalkerError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    if picture is None:
        return 1
    sys.stdout.buffer.write(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:3]))


@dataclass(frozen=True)
class Reply:
    """What to say; pictures go after it."""

    text: str
    attachments: tuple[Attachment, ...] = ()


def answer(text: str, workspace: Path) -> Reply:
    """Answer one question; what is wrong with it is an answer, too."""
    words = text.strip().lstrip("/").split()
    verb = words[0].lower().partition("@")[0] if words else "help"  # in groups Telegram writes /status@botname
    try:
        place = Workspace(workspace)
        if verb == "status":
            return _status(place, words[1:])
        if verb == "triage":
            return _triage(_job(place, text))
        if verb == "tail":
            return _tail(place, text)
        if verb == "plot":
            return _plot(_job(place, text), words[1].lower() if len(words) > 1 else "tgs")
        return Reply(HELP) if verb in ("help", "start") else _question(place, text)
    except TrackwalkerError as e:
        return Reply(str(e))


def _job(place: Workspace, text: str) -> Job:
    named = _ID.search(text)
    if named:
        return place.job(named[0])
    jobs, _ = place.jobs()
    if not jobs:
        raise TrackwalkerError("there is no job in this workspace")
    return place.job(jobs[0].id)


def _status(place: Workspace, words: list[str]) -> Reply:
    if words:
        job = place.job(words[0])
        return Reply(_sentence(job))
    jobs, _ = place.jobs()
    lines = [_sentence(job) for job in jobs[:10]]
    more = f"\nand {len(jobs) - 10} older ones" if len(jobs) > 10 else ""
    return Reply("\n".join(lines) + more if lines else "there is no job in this workspace")


def _sentence(job: Job) -> str:
    seen = standing(job)
    where = f" on {seen.nodes}" if seen.nodes and not seen.ended else ""
    return f"job {job.id} ({job.name}) {seen.meaning}{where}"


def _triage(job: Job) -> Reply:
    found = _ask(["triage", str(job.dir or job.log), "--json"])
    progress, primary = found["progress"], found["primary"]
    lines = [f"job {job.id}: {found['status']}", found["summary"]]
    if primary:
        who = f" on rank {primary['rank']}" if primary.get("rank") is not None else ""
        lines.append(f"{primary['cause']}{who}: {clip(one_line(primary['text']), 300)}")
    if progress.get("last_step") is not None:
        lines.append(f"step {progress['last_step']} of {progress.get('total_steps') or 'unknown'}")
    lines += [f"next {n}. {step}" for n, step in enumerate(found["next"][:3], 1)]
    return Reply("\n".join(lines))


def _question(place: Workspace, text: str) -> Reply:
    """Any other question: what `trackwalker ask` understands, answered without a model."""
    words = text.replace("/", " ").replace("~", " ")  # jobs are named by id here, never by a path
    try:
        said = _ask(["ask", "--no-model", "--json", "--workspace", str(place.root), "--", clip(words, 400)])
    except TrackwalkerError as e:
        return Reply(HELP if "not understood" in str(e) or "nothing was asked" in str(e) else str(e))
    lines = [*(f"({guess})" for guess in said["guesses"]), said["answer"]]
    lines += [f"evidence: {clip(one_line(item['says']), 240)}" for item in said["cited"][:3]]
    lines += [f"next {n}. {step}" for n, step in enumerate(said["next"][:3], 1)]
    return Reply("\n".join(lines))


def _tail(place: Workspace, text: str) -> Reply:
    job = _job(place, text)
    if job.log is None:
        return Reply(f"job {job.id} has no log yet")
    rest = _ID.sub("", text, count=1) if _ID.search(text) else text
    number = _NUMBER.search(rest)
    count = min(int(number[0]), _MOST_LINES) if number else _LINES
    with open_at_last(job.log, max(count, 1)) as file:
        lines = file.read(200_000).decode("utf-8", "replace").splitlines()
    return Reply(f"the last lines of job {job.id}:\n" + "\n".join(clip(line, 400) for line in lines))


def _plot(job: Job, quantity: str) -> Reply:
    if quantity not in QUANTITIES:
        return Reply(f"I can plot {', '.join(QUANTITIES)}: 'plot tgs {job.id}'")
    picture = picture_of(job, quantity)
    if picture is None:
        return Reply(f"job {job.id} has reported no {quantity} that could be drawn")
    return Reply(f"job {job.id}: {QUANTITIES[quantity]}", (picture,))


def _ask(words: list[str]) -> dict[str, Any]:
    try:
        said = json.loads(_run([sys.executable, "-m", "trackwalker", *words]))
    except ValueError:
        raise TrackwalkerError(f"no answer: 'trackwalker {words[0]}' said nothing that can be read") from None
    if not isinstance(said, dict):
        raise TrackwalkerError(f"no answer: 'trackwalker {words[0]}' said nothing that can be read")
    return said


def picture_of(job: Job, quantity: str, limit_s: float = _LIMIT_S) -> Attachment | None:
    """A plot of a job as PNG; None where there is nothing to draw."""
    argv = [sys.executable, "-m", "trackwalker.watch.chat.replies", str(job.dir or job.log), quantity]
    picture = _run(argv, limit_s)
    if not picture.startswith(b"\x89PNG"):
        return None
    return Attachment(name=f"{job.id}-{quantity}.png", media_type="image/png", data=picture)


def _run(argv: list[str], limit_s: float = _LIMIT_S) -> bytes:
    """In a process of its own: it may need minutes and gigabytes, and must end with all that it started."""
    env = {name: value for name, value in os.environ.items() if not is_secret(name)}
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise TrackwalkerError(f"no answer within {limit_s:.0f} s") from None
    if not out and process.returncode not in (0, 1):
        raise TrackwalkerError(clip(one_line(err.decode("utf-8", "replace")), 300) or "no answer")
    return out
