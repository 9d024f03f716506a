"""`trackwalker watch`: notice trouble within a minute, keep the evidence, tell someone."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.errors import UsageError
from trackwalker.watch.notify.message import Message, heading, plain_text
from trackwalker.watch.service import Service, look_once, try_channel

SCHEMA = "trackwalker.watch/1"
FOUND = 1


def watch(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]…", help="Jobs to watch; or: test CHANNEL.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All jobs of the workspace, also those that come.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Look once, tell what is wrong, and end.")] = False,
    settings: Annotated[
        Path | None,
        typer.Option("--config", envvar="TRACKWALKER_WATCH", help="Channels, routes, resume policy (YAML)."),
    ] = None,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Watch jobs, and tell what goes wrong with them, with evidence and verdict; no job is changed.

    Tells it on the terminal, and wherever the settings say. Runs until it is stopped (Ctrl-C, SIGTERM), or until the
    named jobs are over. What it has noticed and reported is in WORKSPACE/.watch, so it can be killed and started again
    at any time. Only a `resume:` policy in the settings lets it start anything.

    Exit codes: 0 stopped, or nothing is wrong (--once); 1 something is wrong (--once); 2 no such job or settings.
    """
    named = list(jobs or [])
    if named[:1] == ["test"]:
        return _test(named[1:], settings)
    if bool(named) == everything:
        raise UsageError("say which jobs to watch, or --all")
    say = _say_json if as_json else _say
    if once:
        report = look_once(workspace, named, settings, say if not as_json else lambda message: None, _warn)
        if as_json:
            print(json.dumps({"schema": SCHEMA, "jobs": report}, indent=1))
        else:
            for each in report:
                step = f", step {each['step']}" if each["step"] is not None else ""
                print(f"job {each['job']} ({each['name']}): {each['state']}{step}, {len(each['incidents'])} incidents")
            if not report:
                print(f"nothing to watch: no job in {workspace} is waiting or running")
        return FOUND if any(each["incidents"] for each in report) else 0
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with Service(workspace, named, settings, say, _warn) as service:
        service.run(stop)
    return 0


def _test(words: list[str], settings: Path | None) -> int:
    if len(words) != 1 or settings is None:
        raise UsageError("usage: trackwalker watch test CHANNEL --config FILE")
    print(try_channel(settings, words[0]))
    return 0


def _warn(text: str) -> None:
    print(f"trackwalker: {text}", file=sys.stderr, flush=True)


def _say(message: Message) -> None:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(message.time))
    body = "".join(f"\n    {line}" for line in plain_text(message).splitlines() if line)
    print(f"{at} {heading(message)}{body}", flush=True)


def _say_json(message: Message) -> None:
    said = message.model_dump(mode="json", exclude={"attachments"})
    sys.stdout.write(json.dumps({"schema": SCHEMA, **said}) + "\n")
    sys.stdout.flush()
