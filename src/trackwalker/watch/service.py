"""The watcher put together: memory, outbox, questions, diagnoses, and the threads that carry messages away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.watch.asking import Asker, Background
from trackwalker.watch.config import Config, load_config
from trackwalker.watch.daemon import Daemon
from trackwalker.watch.delivery.outbox import Outbox
from trackwalker.watch.delivery.post import Post
from trackwalker.watch.detect.verdicts import Diagnoses
from trackwalker.watch.jobs import Jobs
from trackwalker.watch.memory import FOLDER, ForgetfulError, Memory
from trackwalker.watch.notify.base import Letter
from trackwalker.watch.notify.message import Message, presentable

_THREADS = 4
_ONCE_S = 120.0

Say = Callable[[Message], None]
Warn = Callable[[str], None]


class Service:
    """One watcher of one workspace, for as long as the block lasts."""

    def __init__(self, workspace: Path, names: Sequence[str], settings: Path | None, say: Say, warn: Warn) -> None:
        self._config = load_config(settings) if settings is not None else Config()
        jobs = Jobs(workspace, names)
        if not workspace.is_dir():
            raise TrackwalkerError(f"the workspace {workspace} does not exist (set --workspace or JOB_WORKSPACE)")
        folder = workspace.absolute() / FOLDER
        self._say, self._secrets = say, self._config.secrets()
        self.memory = Memory(folder, time.time(), self._secrets)
        self.outbox = Outbox(folder, self._config)
        self._post = Post(self.outbox, self._config, workspace, folder)
        background = Background(_THREADS)
        self.daemon = Daemon(
            jobs,
            self.memory,
            self._put,
            Asker(background),
            background,
            Diagnoses(folder),
            policy=self._config.resume,
            warn=warn,
        )

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.close()
        self.outbox.close()

    def run(self, stop: threading.Event) -> None:
        """Watch until told to stop."""
        self._post.start()
        try:
            self.daemon.run(self._post.waiting(stop.wait))
        finally:
            self._post.close()

    def _put(self, message: Message) -> None:
        try:
            news = self.outbox.put(message)
        except OSError as e:
            raise ForgetfulError(f"cannot write the outbox: {e.strerror}") from e
        if news:  # else it was told before a restart
            self._say(presentable(message, self._secrets))


def look_once(
    workspace: Path, names: Sequence[str], settings: Path | None, say: Say, warn: Warn
) -> list[dict[str, Any]]:
    """Look until everything that is wrong was told, deliver it, and report; what goes on is said first."""
    told: list[Message] = []
    with Service(workspace, names, settings, told.append, warn) as service:
        deadline = time.monotonic() + _ONCE_S
        looks = 0
        while time.monotonic() < deadline:
            service.daemon.look(time.time())
            looks += 1
            if looks > 2 and not service.daemon.busy:
                break
            time.sleep(0.2)
        for message in sorted(told, key=lambda each: (each.kind == "ended", each.severity != "critical", each.time)):
            say(message)
        service.outbox.deliver()
        return service.daemon.report()


def try_channel(settings: Path, name: str) -> str:
    """Send a test message; the sentence says that it was taken, an error in one line says why not."""
    config = load_config(settings)
    if name not in config.channels:
        known = ", ".join(sorted(config.channels)) or "none is set up"
        raise UsageError(f"no channel '{name}' in {settings}: {known}")
    channel, now = config.channels[name], time.time()
    message = Message(
        key=f"test:{name}:{now:.3f}",
        thread=f"test:{name}:{now:.3f}",
        severity="info",
        kind="test",
        title="test message",
        text="Trackwalker can reach this channel.",
        time=now,
    )
    notifier = channel.open()
    try:
        receipt = notifier.send(Letter(message))
        if channel.stays_open:  # do not leave an open alert behind
            over = message.model_copy(update={"key": f"{message.key}:over", "resolves": True})
            notifier.send(Letter(over, first=receipt))
    finally:
        notifier.close()
    return f"channel '{name}' ({channel.kind}) took a test message"
