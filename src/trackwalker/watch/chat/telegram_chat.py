"""Telegram as a channel: listed people ask, the watcher answers; a wish to act needs the policy and a confirmation.

A question is marked as read before it is answered: after a crash it is asked again by the person, never acted on twice.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError
from trackwalker.watch.chat.replies import Reply
from trackwalker.watch.delivery.outbox import Outbox
from trackwalker.watch.memory import rewrite
from trackwalker.watch.notify.message import Message, presentable
from trackwalker.watch.notify.telegram import LONGEST, TelegramApi, fit

_WAIT_S = 50  # of one long poll
_STALE_S = 600.0  # a question that waited longer was asked of a watcher that did not run
_LONGEST_PAUSE_S = 300.0
Answer = Callable[[str, str], Reply]  # the text and who asks ("telegram:4711")


class TelegramChat:
    """One bot that listens. Only listed users are heard, in the channel's chat or in private."""

    def __init__(
        self,
        api: TelegramApi,
        channel: str,
        chat: int | str,
        users: tuple[int, ...],
        outbox: Outbox,
        state: Path,
        answer: Answer,
        secrets: list[str],
    ) -> None:
        self._api, self._channel, self._chat, self._users = api, channel, chat, frozenset(users)
        self._outbox, self._state, self._answer, self._secrets = outbox, state, answer, secrets
        self._offset = _offset(state)

    def listen(self, stop: threading.Event) -> None:
        """Answer until stopped; trouble with Telegram is waited out."""
        pause = 1.0
        while not stop.is_set():
            try:
                self.poll()
                pause = 1.0
            except Exception as e:  # no answer of Telegram may end the conversation
                stop.wait(max(pause, getattr(e, "after", None) or 0.0))
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def poll(self, wait_s: int = _WAIT_S) -> int:
        """One long poll; how many questions were answered."""
        request = {"offset": self._offset, "timeout": wait_s, "allowed_updates": ["message"]}
        updates = self._api.call("getUpdates", json=request, timeout=wait_s + 10.0, may_repeat=True)
        answered = 0
        for update in updates if isinstance(updates, list) else []:
            number = update.get("update_id") if isinstance(update, dict) else None
            if not isinstance(number, int):
                continue
            self._remember(number + 1)
            message = update.get("message")
            if isinstance(message, dict) and (asked := self._question(message)) is not None:
                self._reply(message, *asked)
                answered += 1
        return answered

    def _question(self, message: dict[str, Any]) -> tuple[str, str] | None:
        """The text and who asks; None for everybody and everything else."""
        sender, chat, text = message.get("from") or {}, message.get("chat") or {}, message.get("text")
        here = chat.get("id") == self._chat
        if here and isinstance(message.get("message_id"), int):  # its number tells where ours will be
            self._outbox.note(self._channel, {"message_id": message["message_id"]})
        heard = sender.get("id") in self._users and not sender.get("is_bot")
        placed = here or (chat.get("type") == "private" and chat.get("id") == sender.get("id"))
        fresh = time.time() - float(message.get("date") or 0) < _STALE_S
        if not (heard and placed and fresh and isinstance(text, str) and text.strip()):
            return None
        return text[:1000], f"telegram:{sender['id']}"

    def _reply(self, message: dict[str, Any], text: str, who: str) -> None:
        chat = message["chat"]["id"]
        with contextlib.suppress(TrackwalkerError):
            self._api.call("sendChatAction", may_repeat=True, json={"chat_id": chat, "action": "typing"})
        try:
            said = self._answer(text, who)
        except Exception as e:  # one question must not end the conversation
            said = Reply(str(e) if isinstance(e, TrackwalkerError) else f"no answer: {type(e).__name__}")
        told = presentable(
            Message(
                key="reply", thread="reply", severity="info", kind="reply", title="reply", text=said.text,
                attachments=said.attachments, time=time.time(),
            ),
            self._secrets,
        )  # fmt: skip
        reply = {"message_id": message.get("message_id"), "allow_sending_without_reply": True}
        with contextlib.suppress(TrackwalkerError):  # an answer that does not arrive is asked for again by its reader
            self._sent(
                chat, "sendMessage", json={"chat_id": chat, "text": fit(told.text, LONGEST), "reply_parameters": reply}
            )
            for file in told.attachments:
                files = {"photo": (file.name, file.data, file.media_type)}
                self._sent(chat, "sendPhoto", data={"chat_id": str(chat), "disable_notification": "true"}, files=files)

    def _sent(self, chat: int | str, method: str, **request: Any) -> None:
        receipt = self._api.sent(method, **request)
        if chat == self._chat:
            self._outbox.note(self._channel, receipt)

    def _remember(self, offset: int) -> None:
        self._offset = offset
        rewrite(self._state, [json.dumps({"offset": offset}).encode()])


def _offset(state: Path) -> int:
    try:
        return int(json.loads(state.read_text())["offset"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
