"""A webhook of your own, signed: the receiver knows that it was us, when, and whether it has seen it before.

The headers are those of the Standard Webhooks specification, so that its libraries verify them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time

from trackwalker.watch.notify.base import Letter, Receipt
from trackwalker.watch.notify.http import Http, OverHttp
from trackwalker.watch.notify.message import Message, short_id

SCHEMA = "trackwalker.message/1"


class Webhook(OverHttp):
    """POST of one JSON object; `webhook-id` is the same however often it is sent."""

    def __init__(self, url: str, secret: str) -> None:
        self._http = Http("the webhook", url, [secret])
        self._url = url
        self._secret = signing_key(secret)

    def send(self, letter: Letter) -> Receipt:
        """The message with its files in one request; 409 says that the receiver has it already."""
        name = f"msg_{short_id(letter.message.key)}"
        content = json.dumps(document(letter.message), separators=(",", ":")).encode()
        when = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "webhook-id": name,
            "webhook-timestamp": str(when),
            "webhook-signature": sign(self._secret, name, when, content),
        }
        status, _, _ = self._http.post(self._url, content=content, headers=headers)
        if status >= 400 and status != 409:
            raise self._http.refused(status, "")
        return {"id": name}


def document(message: Message) -> dict[str, object]:
    """The message as JSON; files as base64."""
    return {"schema": SCHEMA, **message.model_dump(mode="json")}


def signing_key(secret: str) -> bytes:
    """The bytes of a secret: `whsec_` announces base64, anything else is taken as it is."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def sign(key: bytes, name: str, when: int, content: bytes) -> str:
    """`v1,` and the HMAC-SHA256 over id, time and body, as base64."""
    digest = hmac.new(key, f"{name}.{when}.".encode() + content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
