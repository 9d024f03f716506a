"""What the daemon starts for telling: the deliverer, the chats, the alerts that come in."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.watch.channels import TelegramChannel
from trackwalker.watch.config import Config
from trackwalker.watch.heartbeat import Heartbeat
from trackwalker.watch.illustrate import Illustrator
from trackwalker.watch.outbox import Outbox
from trackwalker.watch.receive import AlertReceiver


class Post:
    """The threads around an outbox; none of them can end the watcher, and the watcher waits for none of them."""

    def __init__(self, outbox: Outbox, config: Config, workspace: Path, folder: Path) -> None:
        self._outbox, self._stop = outbox, threading.Event()
        outbox.illustrate = Illustrator(workspace).draw
        self._heart = Heartbeat(ping.url.read(), 60.0 * ping.every_minutes) if (ping := config.heartbeat) else None
        self._threads = [self._thread("deliver", self._deliver)]
        self._receiver: AlertReceiver | None = None
        if config.receive is not None:
            try:
                self._receiver = AlertReceiver(config.receive.port, config.receive.token.read(), outbox.put, time.time)
            except OSError as e:
                where = f"127.0.0.1:{config.receive.port}"
                raise UsageError(f"cannot listen for alerts on {where}: {e.strerror}; choose another port") from None
        for name, channel in config.channels.items():
            if isinstance(channel, TelegramChannel) and channel.users:
                self._threads.append(self._thread(f"chat-{name}", self._chat(name, channel, config, workspace, folder)))

    def waiting(self, wait: Callable[[float], bool]) -> Callable[[float], bool]:
        """The daemon's way to wait; where a heartbeat is set up, it shows that the daemon's loop comes round."""
        return self._heart.around(wait, time.time) if self._heart is not None else wait

    def start(self) -> None:
        """Begin to deliver, to listen and to answer."""
        if self._receiver is not None:
            self._receiver.start()
        for thread in self._threads:
            thread.start()

    def close(self, patience_s: float = 5.0) -> None:
        """Stop; what is not told yet stays in the outbox."""
        self._stop.set()
        if self._receiver is not None:
            self._receiver.close()
        self._threads[0].join(patience_s)  # a chat may be in the middle of a long poll: it is not waited for

    def _deliver(self) -> None:
        while not self._stop.is_set():
            pause = 1.0
            try:
                self._outbox.deliver()
                if self._heart is not None:
                    self._heart.beat(time.time())
            except Exception as e:  # a full disk may pass; a watcher that has stopped telling must not go unnoticed
                print(f"trackwalker: messages wait: {type(e).__name__}", file=sys.stderr, flush=True)
                pause = 30.0
            self._stop.wait(pause)

    def _chat(
        self, name: str, channel: TelegramChannel, config: Config, workspace: Path, folder: Path
    ) -> Callable[[], None]:
        from trackwalker.agent.policy import state_folder
        from trackwalker.watch.acting import Desk  # the readers of jobs are large: only a watcher that answers has them
        from trackwalker.watch.notify.telegram import TelegramApi
        from trackwalker.watch.telegram_chat import TelegramChat

        desk = Desk(workspace, config.policy, state_folder())
        chat = TelegramChat(
            TelegramApi(channel.token.read(), channel.url), name, channel.chat, channel.users, self._outbox,
            folder / f"telegram-{name}.json", desk.hear, config.secrets(),
        )  # fmt: skip
        return lambda: chat.listen(self._stop)

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=work, name=name, daemon=True)
