"""Telegram: the Bot API. It has no idempotency key, so a message in doubt is looked for in the chat."""

from __future__ import annotations

import json
from typing import Any

from trackwalker.watch.notify.base import (
    CannotKnowError,
    InDoubtError,
    Letter,
    Notifier,
    NotSentError,
    Receipt,
    RejectedError,
)
from trackwalker.watch.notify.http import Http
from trackwalker.watch.notify.message import heading, plain_text

API = "https://api.telegram.org"
LONGEST = 4096  # of a message, in UTF-16 units
_AGAIN = "(sent again: it is not known whether the first one arrived)\n"
_SEARCHED = 12  # message numbers after the last known one


class TelegramApi:
    """Calls of the Bot API. The token is part of every URL, so no URL ever reaches an error or a log."""

    def __init__(self, token: str, url: str = API) -> None:
        self._base = f"{url.rstrip('/')}/bot{token}"
        self._http = Http("Telegram", url, [token])

    def call(self, method: str, *, timeout: float | None = None, may_repeat: bool = False, **request: Any) -> Any:
        """The result of one method; RejectedError with Telegram's own words when it says no."""
        status, said, _ = self._http.post(f"{self._base}/{method}", timeout=timeout, may_repeat=may_repeat, **request)
        if not isinstance(said, dict) or "ok" not in said:
            raise self._http.in_doubt("gave an answer that cannot be read")
        if said["ok"] is not True:
            raise self._http.refused(status, str(said.get("description", "")))
        return said.get("result")

    def sent(self, method: str, **request: Any) -> dict[str, Any]:
        """The receipt of a method that sends something."""
        result = self.call(method, **request)
        number = result.get("message_id") if isinstance(result, dict) else None
        if not isinstance(number, int):
            raise self._http.in_doubt("confirmed a message without saying which")
        return {"message_id": number}

    def close(self) -> None:
        """End the connections."""
        self._http.close()


class Telegram(Notifier):
    """Messages to one chat; an incident's later messages answer its first one."""

    attaches = frozenset({"image/png", "image/svg+xml", "text/plain"})
    idempotent = False

    def __init__(self, api: TelegramApi, chat: int | str, topic: int | None = None) -> None:
        self._api = api
        self._to: dict[str, Any] = {"chat_id": chat, **({"message_thread_id": topic} if topic is not None else {})}

    def send(self, letter: Letter) -> Receipt:
        """`sendMessage`, or `sendPhoto` and `sendDocument` for a file."""
        if letter.attachment is None:
            silent = letter.message.severity == "info"
            request = {**self._to, **_text(letter), "disable_notification": silent, **_reply(letter.first)}
            return self._api.sent("sendMessage", json=request)
        file = letter.message.attachments[letter.attachment]
        what = "photo" if file.media_type == "image/png" else "document"  # a phone shows a PNG, an SVG it can only save
        reply = _reply(letter.own or letter.first)
        fields = {k: json.dumps(v) if isinstance(v, dict) else str(v) for k, v in {**self._to, **reply}.items()}
        fields["disable_notification"] = "true"
        return self._api.sent(
            f"send{what.capitalize()}", data=fields, files={what: (file.name, file.data, file.media_type)}
        )

    def find(self, letter: Letter) -> Receipt | None:
        """Look for it among the numbers that follow the last known message.

        Only a bot's own message can be edited. An edit that would change nothing finds it without touching it:
        "not modified" means ours, "can't be edited" somebody else's, "not found" nobody's.
        """
        known = {int(r["message_id"]) for r in letter.known if "message_id" in r}
        earlier = [int(r["message_id"]) for r in letter.before if "message_id" in r]
        if not earlier:
            raise CannotKnowError("no earlier message to search from")
        last = max(earlier)
        for number in range(last + 1, last + 1 + _SEARCHED):
            if number in known or not self._is_ours(number):
                continue
            if letter.attachment is None:  # sure about the words, too: whatever stood there, it is told now
                self._unchanged("editMessageText", {**_text(letter), "message_id": number})
            return {"message_id": number}
        return None

    def close(self) -> None:
        """End the connections."""
        self._api.close()

    def _is_ours(self, number: int) -> bool:
        return self._unchanged("editMessageReplyMarkup", {"message_id": number})

    def _unchanged(self, method: str, request: dict[str, Any]) -> bool:
        try:
            self._api.call(method, may_repeat=True, json={"chat_id": self._to["chat_id"], **request})
        except RejectedError as e:
            return "not modified" in str(e)
        except InDoubtError as e:  # an unreadable answer to a question is no reason for a new doubt
            raise NotSentError(str(e), e.after) from None
        return True


def _text(letter: Letter) -> dict[str, Any]:
    """Title and text; bold by position, so that no character of a log can become markup."""
    title = heading(letter.message)
    head = f"{_AGAIN}{title}" if letter.again else title
    text = fit(f"{head}\n{plain_text(letter.message)}".strip(), LONGEST)
    start = units(_AGAIN) if letter.again else 0
    return {
        "text": text,
        "entities": [{"type": "bold", "offset": start, "length": min(units(title), LONGEST - start)}],
        "link_preview_options": {"is_disabled": True},
    }


def _reply(to: Receipt | None) -> dict[str, Any]:
    if not to or "message_id" not in to:
        return {}
    return {"reply_parameters": {"message_id": to["message_id"], "allow_sending_without_reply": True}}


def units(text: str) -> int:
    """The length as Telegram counts it: an emoji is two."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def fit(text: str, limit: int) -> str:
    """At most `limit` units: one endless line is cut like any other text, and the cut is shown."""
    if units(text) <= limit:
        return text
    raw = text.encode("utf-16-le", "surrogatepass")[: 2 * (limit - 2)]
    return raw.decode("utf-16-le", "ignore").rstrip() + "\n…"
