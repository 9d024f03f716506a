"""kill -9 in the middle of every kind of delivery: each message is there, once, and no token is in sight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import yaml
from agent_run import wait_for
from stations import KINDS, Station, message, station

from trackwalker.watch.config import load_config
from trackwalker.watch.delivery.outbox import FILE, Outbox

CHILD = Path(__file__).parents[2] / "support" / "delivering_child.py"
WEBHOOK = "slack-webhook"  # one way: what is in doubt is sent again and says so


class Killer:
    """Kills the delivering program in its first request to each service: once before it is taken in, once after."""

    def __init__(self) -> None:
        self.child = 0
        self.started = threading.Event()
        self.kills: list[str] = []

    def before(self, kind: str) -> None:
        if self._strike(f"{kind}, before"):
            raise ConnectionAbortedError  # the service never sees the end of the request

    def after(self, kind: str) -> None:
        self._strike(f"{kind}, after")

    def _strike(self, point: str) -> bool:
        if point in self.kills:
            return False
        assert self.started.wait(30)
        self.kills.append(point)
        os.kill(self.child, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{self.child}").exists(), 30.0)
        return True


def test_every_message_arrives_once_though_the_watcher_is_killed_in_every_channel(tmp_path: Path) -> None:
    killer = Killer()
    with ExitStack() as stack:
        stations = [stack.enter_context(station(kind, tmp_path)) for kind in KINDS]
        settings = tmp_path / "watch.yaml"
        settings.write_text(yaml.safe_dump({"channels": {s.kind: s.settings for s in stations}}))
        outbox = Outbox(tmp_path / "outbox", load_config(settings))
        outbox.put(message("first", time.time(), thread="earlier"))
        outbox.deliver()  # Telegram is searched from a message that is known
        assert outbox.waiting() == 0
        outbox.put(message("opened", time.time()))
        outbox.put(message("over", time.time(), severity="info", resolves=True))
        outbox.close()
        for made in stations:
            made.service.before = partial(killer.before, made.kind)
            made.service.after = partial(killer.after, made.kind)
        argv = [sys.executable, str(CHILD), str(tmp_path / "outbox"), str(settings)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nursery:
            assert nursery.stdin is not None
            assert nursery.stdout is not None
            arguments = Path(f"/proc/{nursery.pid}/cmdline").read_text()
            for starts in range(1, 40):
                killer.started.clear()
                print(10 * starts, file=nursery.stdin, flush=True)
                killer.child = int(nursery.stdout.readline())
                killer.started.set()
                ended = os.waitstatus_to_exitcode(int(nursery.stdout.readline()))
                if ended == 0:
                    break
                assert ended == -signal.SIGKILL
            nursery.stdin.close()
        assert len(killer.kills) == 2 * len(KINDS) == starts - 1
        for made in stations:
            _check(made)
        journal = (tmp_path / "outbox" / FILE).read_text()
        for made in stations:
            assert made.secret not in journal
            assert made.secret not in arguments


def _check(made: Station) -> None:
    if made.kind == "pagerduty":
        assert sorted(made.service.alerts.values()) == ["open", "resolved"]
        assert made.service.opened == 2
    elif made.kind == "alertmanager":
        assert len(made.service.alerts) == 2
    elif made.kind == WEBHOOK:
        told = [m["blocks"][0]["text"]["text"] for m in made.service.messages]
        assert {t.rpartition(": ")[2] for t in told} == {"title first", "title opened", "title over"}
        assert [t.startswith("(sent again") for t in told].count(False) <= 3
    else:
        assert made.seen() == {"title first": 1, "title opened": 1, "title over": 1}
