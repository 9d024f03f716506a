"""What the watcher tells: one message of one incident, the same whichever channel carries it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trackwalker.job.scrub import Scrubber
from trackwalker.report.text import clean, clip, one_line

Severity = Literal["info", "warning", "critical"]
_TITLE, _TEXT, _FACT, _FACTS, _ATTACHMENTS = 200, 20_000, 500, 40, 4
_ATTACHED_BYTES = 2_000_000


class Attachment(BaseModel):
    """A small file that goes with a message; kept in the outbox with it, so that a restart can still send it."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    name: str
    media_type: str  # image/png, image/svg+xml, text/plain
    data: bytes = Field(max_length=_ATTACHED_BYTES)


class Message(BaseModel):
    """One thing to tell. Two messages with the same key are one message: it is told once."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    key: str = Field(min_length=1)
    thread: str = Field(min_length=1)  # the incident: its messages stand together wherever the channel has threads
    severity: Severity
    kind: str  # hang, slow, end, …: what routes go by
    title: str
    text: str = ""
    facts: dict[str, str] = {}
    attachments: tuple[Attachment, ...] = ()
    resolves: bool = False  # the incident of this thread is over
    time: float
    job: str = ""


def presentable(message: Message, secrets: Iterable[str] = ()) -> Message:
    """The message as it may leave: no secrets, no control characters, nothing endless."""
    scrub = Scrubber()
    for value in secrets:
        scrub.hide(value)
    message = _bounded(message)
    scrub.learn("\n".join([message.title, message.text, *(f"{n}={v}" for n, v in message.facts.items())]))

    def line(text: str, limit: int) -> str:
        return clip(one_line(scrub.clean(text)), limit)

    facts = {line(name, 60): line(value, _FACT) for name, value in message.facts.items()}
    return message.model_copy(
        update={
            "title": line(message.title, _TITLE) or message.kind,
            "text": clip(clean(scrub.clean(message.text)).strip(), _TEXT),
            "facts": {name: value for name, value in facts.items() if name and value},
            "attachments": tuple(_file(a, scrub) for a in message.attachments[:_ATTACHMENTS]),
            "job": line(message.job, 80),
        }
    )


def _bounded(message: Message) -> Message:
    """Far more than is shown, but no more: looking for secrets in a gigabyte is not this program's business."""
    facts = {name[:200]: value[: 8 * _FACT] for name, value in list(message.facts.items())[:_FACTS]}
    return message.model_copy(
        update={"title": message.title[: 8 * _TITLE], "text": message.text[: 8 * _TEXT], "facts": facts}
    )


def _file(attachment: Attachment, scrub: Scrubber) -> Attachment:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in attachment.name)[:80].lstrip(".") or "file"
    if attachment.media_type == "image/png":  # our own drawing: numbers and host names
        return attachment.model_copy(update={"name": name})
    text = scrub.clean(attachment.data.decode("utf-8", "replace"))
    return attachment.model_copy(update={"name": name, "data": text.encode("utf-8", "replace")[:_ATTACHED_BYTES]})


def heading(message: Message) -> str:
    """The first line: how bad, and what."""
    word = "RESOLVED" if message.resolves else message.severity.upper()
    return f"{word}: {message.title}"


def plain_text(message: Message) -> str:
    """Facts and text below the heading, for channels that show plain text."""
    facts = "\n".join(f"{name}: {value}" for name, value in message.facts.items())
    return "\n\n".join(part for part in (facts, message.text) if part)


def short_id(key: str) -> str:
    """A name for a key that fits anywhere: headers, file names, Message-IDs."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]
