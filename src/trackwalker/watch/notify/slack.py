"""Slack: a bot (threads, files, messages that can be looked for) or an incoming webhook (text only)."""

from __future__ import annotations

from typing import Any

from trackwalker.report.text import clip
from trackwalker.watch.notify.base import CannotKnowError, InDoubtError, Letter, NotSentError, Receipt, RejectedError
from trackwalker.watch.notify.http import Http, OverHttp
from trackwalker.watch.notify.message import Attachment, heading, plain_text

API = "https://slack.com/api"
_EVENT = "trackwalker_message"
_TEXT = 11_000  # of Slack's 40,000; three blocks of text at most
_BLOCK = 2900  # of Slack's 3,000
_SKEW_S = 600.0  # by which two clocks may differ
_AGAIN = "(sent again: it is not known whether the first one arrived)\n"
_LATER = frozenset({"ratelimited", "rate_limited", "service_unavailable", "fatal_error", "internal_error"})
_CANNOT_READ = frozenset({"missing_scope", "not_in_channel", "channel_not_found", "not_allowed_token_type"})


class SlackBot(OverHttp):
    """`chat.postMessage` with a bot token; the message's key travels as metadata and is what is looked for."""

    attaches = frozenset({"image/png", "image/svg+xml", "text/plain"})
    idempotent = False

    def __init__(self, token: str, channel: str, url: str = API) -> None:
        self._http = Http("Slack", url, [token])
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._channel = channel

    def send(self, letter: Letter) -> Receipt:
        """One message in the incident's thread, or one file under it."""
        if letter.attachment is not None:
            return self._upload(letter, letter.message.attachments[letter.attachment])
        message = letter.message
        request: dict[str, Any] = {
            "channel": self._channel,
            **_words(letter),
            "unfurl_links": False,
            "metadata": {"event_type": _EVENT, "event_payload": {"key": message.key}},
        }
        if letter.first and "ts" in letter.first:
            request["thread_ts"] = letter.first["ts"]
            request["reply_broadcast"] = message.resolves or message.severity == "critical"
        said = self._call("chat.postMessage", json=request)
        if not isinstance(said.get("ts"), str):
            raise self._http.in_doubt("confirmed a message without saying which")
        return {"ts": said["ts"], "channel": str(said.get("channel", self._channel))}

    def find(self, letter: Letter) -> Receipt | None:
        """Read what stands in the channel or the thread since it was first tried."""
        if letter.attachment is not None:
            raise CannotKnowError("Slack's files carry no key")
        oldest = f"{max(letter.begun - _SKEW_S, 0.0):.6f}"
        query: dict[str, Any] = {"oldest": oldest, "include_all_metadata": "true", "limit": "200"}
        channel, method = self._channel, "conversations.history"
        if letter.known:
            channel = str(letter.known[-1].get("channel", channel))  # a name was answered with its id
        if letter.first and "ts" in letter.first:
            method, query["ts"] = "conversations.replies", letter.first["ts"]
        for _ in range(10):  # pages
            try:
                said = self._call(method, may_repeat=True, data={"channel": channel, **query})
            except InDoubtError as e:
                raise NotSentError(str(e), e.after) from None
            except RejectedError as e:
                if any(word in str(e) for word in _CANNOT_READ):
                    raise CannotKnowError("the bot may not read the channel") from None
                raise
            for entry in said.get("messages") or []:
                payload = (entry.get("metadata") or {}).get("event_payload") or {}
                if payload.get("key") == letter.message.key:
                    return {"ts": entry["ts"], "channel": channel}
            cursor = (said.get("response_metadata") or {}).get("next_cursor")
            if not cursor:
                return None
            query["cursor"] = cursor
        raise CannotKnowError("the channel has too many new messages to search")

    def _call(self, method: str, *, may_repeat: bool = False, **request: Any) -> dict[str, Any]:
        status, said, _ = self._http.post(
            f"{self._url}/{method}", headers=self._headers, may_repeat=may_repeat, **request
        )
        if not isinstance(said, dict) or "ok" not in said:
            if 400 <= status < 500:
                raise self._http.refused(status, "")
            raise self._http.in_doubt("gave an answer that cannot be read")
        if said["ok"] is not True:
            error = str(said.get("error", "unknown"))
            if error in _LATER:
                raise (
                    InDoubtError(f"Slack answered {error}") if "rate" not in error else NotSentError(f"Slack: {error}")
                )
            raise self._http.refused(status, error)
        return said

    def _upload(self, letter: Letter, file: Attachment) -> Receipt:
        """Slack's three steps: ask for a place, put the bytes there, announce the file in the thread."""
        place = self._call(
            "files.getUploadURLExternal", may_repeat=True, data={"filename": file.name, "length": str(len(file.data))}
        )
        if not all(isinstance(place.get(field), str) for field in ("upload_url", "file_id")):
            raise NotSentError("Slack gave no place for a file")
        status, _, _ = self._http.post(place["upload_url"], content=file.data, may_repeat=True)
        if status != 200:
            raise self._http.refused(status, "the file")
        start = letter.first or letter.own or {}
        self._call(
            "files.completeUploadExternal",
            json={
                "files": [{"id": place["file_id"], "title": file.name}],
                "channel_id": str(start.get("channel", self._channel)),
                **({"thread_ts": start["ts"]} if "ts" in start else {}),
            },
        )
        return {"file": place["file_id"]}


class SlackWebhook(OverHttp):
    """An incoming webhook: its URL is the secret, its answer is `ok`, and nothing can be looked for."""

    idempotent = False

    def __init__(self, url: str) -> None:
        self._http = Http("Slack", url, [url, url.split("://", 1)[-1].partition("/")[2]])
        self._url = url

    def send(self, letter: Letter) -> Receipt:
        """One message; a webhook has no threads, so the title of the incident repeats."""
        status, said, _ = self._http.post(self._url, json=_words(letter))
        if status != 200:
            raise self._http.refused(status, "check the webhook's URL")
        if said != "ok":
            raise self._http.in_doubt("gave an answer that cannot be read")
        return {}

    def find(self, letter: Letter) -> Receipt | None:
        """A webhook is one way."""
        raise CannotKnowError("an incoming webhook cannot be asked")


def _words(letter: Letter) -> dict[str, Any]:
    """Blocks of plain text: nothing in a log becomes a mention, a link or markup."""
    title = f"{_AGAIN}{heading(letter.message)}" if letter.again else heading(letter.message)
    text = clip(plain_text(letter.message), _TEXT)
    parts = [text[i : i + _BLOCK] for i in range(0, len(text), _BLOCK)]
    blocks: list[dict[str, Any]] = [{"type": "section", "text": {"type": "plain_text", "text": title}}]
    blocks += [{"type": "section", "text": {"type": "plain_text", "text": part}} for part in parts if part.strip()]
    # `text` is what a phone's notification shows; it is parsed, so the three characters that can begin markup go.
    safe = title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": safe, "blocks": blocks}
