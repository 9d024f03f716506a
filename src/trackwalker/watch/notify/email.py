"""E-mail over SMTP: one Message-ID per message and References per incident, so that mail programs thread it."""

from __future__ import annotations

import smtplib
import socket
import ssl
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from typing import Literal

from trackwalker.report.text import clip, one_line
from trackwalker.watch.notify.base import InDoubtError, Letter, Notifier, NotSentError, Receipt, RejectedError
from trackwalker.watch.notify.http import hide
from trackwalker.watch.notify.message import Message, heading, plain_text, short_id

Security = Literal["starttls", "tls", "none"]
_TIMEOUT_S = 20.0


class Email(Notifier):
    """One mail server, one sender, some recipients."""

    # Files travel inside. A mailbox cannot be asked, but the same Message-ID is the same mail: it is sent again.

    def __init__(
        self, host: str, port: int, sender: str, to: list[str], security: Security, user: str = "", password: str = ""
    ) -> None:
        self._server = (host, port)
        self._sender, self._to, self._security = sender, to, security
        self._user, self._password = user, password

    def send(self, letter: Letter) -> Receipt:
        """The message with its files in one mail."""
        mail = self._compose(letter)
        handed_over = False
        try:
            server = self._connect()
            try:
                handed_over = True
                lost = server.send_message(mail, self._sender, self._to)
            finally:
                server.close()  # without QUIT: a goodbye that fails must not make a taken mail doubtful
        except smtplib.SMTPResponseException as e:
            raise self._sorted(e.smtp_code, e.smtp_error) from None
        except smtplib.SMTPRecipientsRefused as e:
            code, why = next(iter(e.recipients.values()))
            raise self._sorted(code, why) from None
        except (OSError, smtplib.SMTPException) as e:
            words = self._words(f"{type(e).__name__}: {e}")
            if handed_over:
                raise InDoubtError(f"the mail server did not confirm ({words})") from None
            raise NotSentError(f"the mail server cannot be reached ({words})") from None
        if lost:
            raise RejectedError(f"the mail server took it for some, but refused {', '.join(sorted(lost))}")
        return {"message_id": mail["Message-ID"]}

    def _connect(self) -> smtplib.SMTP:
        host, port = self._server
        if self._security == "tls":
            safe = ssl.create_default_context()
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=_TIMEOUT_S, context=safe)
        else:
            server = smtplib.SMTP(host, port, timeout=_TIMEOUT_S)
        try:
            if self._security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if self._user:
                server.login(self._user, self._password)
        except BaseException:
            server.close()
            raise
        return server

    def _compose(self, letter: Letter) -> EmailMessage:
        message = letter.message
        mail = EmailMessage()
        mail["Subject"] = clip(f"[trackwalker] {heading(message)}", 180)
        mail["From"] = _address(self._sender)
        mail["To"] = [_address(to) for to in self._to]
        mail["Date"] = format_datetime(datetime.fromtimestamp(message.time, UTC))
        mail["Message-ID"] = self._id(message.key)
        mail["Auto-Submitted"] = "auto-generated"  # no vacation replies, please
        if letter.first and "message_id" in letter.first:
            mail["In-Reply-To"] = mail["References"] = str(letter.first["message_id"])
        mail.set_content(_words(message))
        for file in message.attachments:
            kind, _, sub = file.media_type.partition("/")
            mail.add_attachment(file.data, maintype=kind, subtype=sub, filename=file.name)
        return mail

    def _id(self, key: str) -> str:
        domain = parseaddr(self._sender)[1].rpartition("@")[2] or socket.gethostname()
        return f"<{short_id(key)}@{domain}>"

    def _sorted(self, code: int, why: bytes | str) -> NotSentError | RejectedError:
        text = why.decode("utf-8", "replace") if isinstance(why, bytes) else why
        words = f"the mail server said {code} {self._words(text)}".rstrip()
        return NotSentError(words) if 400 <= code < 500 else RejectedError(words)

    def _words(self, text: str) -> str:
        return clip(one_line(hide(text, [self._password] if self._password else [])), 160)


def _words(message: Message) -> str:
    return f"{heading(message)}\n\n{plain_text(message)}\n".replace("\n\n\n", "\n\n")


def _address(text: str) -> Address:
    name, address = parseaddr(text)
    return Address(name, addr_spec=address)
