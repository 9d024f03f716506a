"""The channels as the settings file names them; each opens its notifier."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trackwalker.errors import UsageError
from trackwalker.job.private import read_private
from trackwalker.watch.notify import alertmanager, email, pagerduty, slack, telegram, webhook
from trackwalker.watch.notify.base import Notifier


# Where a secret is kept: named in the settings, read when it is needed, never written anywhere.
class Secret(BaseModel):
    """Where a secret is kept: a file that only its owner reads, or an environment variable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path | None = None
    env: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_only(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        # The value is not repeated: it is the secret itself.
        raise ValueError("a secret is not written into this file: give {file: PATH} or {env: NAME}")

    @model_validator(mode="after")
    def _one_place(self) -> Secret:
        if (self.file is None) == (self.env is None):
            raise ValueError("give either 'file' or 'env'")
        if self.file is not None and not self.file.expanduser().is_absolute():
            raise ValueError("write the whole path of the file: a watcher may be started anywhere")
        return self

    def read(self) -> str:
        """The secret; one clear error where it is missing, empty, or not ours alone to read and write."""
        if self.env is not None:
            value = os.environ.get(self.env, "").strip()
            if not value:
                raise UsageError(f"the environment variable {self.env} is not set; the watcher's settings ask for it")
            return value
        path = (self.file or Path()).expanduser()
        try:
            value = read_private(path).strip()
        except PermissionError as e:
            raise UsageError(f"the secret in {path} is not taken: {e.strerror}") from None
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"the secret in {path} cannot be read: {type(e).__name__}") from None
        if not value or "\n" in value:
            raise UsageError(f"{path} should hold one line with the secret")
        return value


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    stays_open: ClassVar[bool] = False  # a message is an alert there until another one ends it


class Quiet(_Part):
    """Hours in which only critical messages pass; the others are told as one summary when they end."""

    start: str = Field(alias="from", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    end: str = Field(alias="to", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    timezone: str = "UTC"

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"unknown time zone '{value}'; write it like Europe/Berlin") from None
        return value

    def until(self, now: float) -> float | None:
        """When the quiet hours that hold now end; None outside of them."""
        zone = ZoneInfo(self.timezone)
        local = datetime.fromtimestamp(now, UTC).astimezone(zone)
        minute = local.hour * 60 + local.minute
        start, end = _minutes(self.start), _minutes(self.end)
        inside = start <= minute < end if start < end else minute >= start or minute < end
        if start == end or not inside:
            return None
        day = local.date() + timedelta(days=1 if minute >= end else 0)
        return datetime(day.year, day.month, day.day, end // 60, end % 60, tzinfo=zone).timestamp()


def _minutes(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


class _ForPeople(_Part):
    quiet: Quiet | None = None  # programs and pagers have rules of their own


class TelegramChannel(_ForPeople):
    """A Telegram chat; `users` may also ask questions there."""

    kind: Literal["telegram"]
    token: Secret
    chat: int | str
    topic: int | None = None
    users: tuple[int, ...] = ()  # numbers, not names: a name can be taken over
    url: str = telegram.API

    @model_validator(mode="after")
    def _known_chat(self) -> TelegramChannel:
        if self.users and not isinstance(self.chat, int):
            raise ValueError("'users' can ask only in a chat that is given by its number")
        return self

    def open(self) -> Notifier:
        """The channel, ready to send."""
        return telegram.Telegram(telegram.TelegramApi(self.token.read(), self.url), self.chat, self.topic)


class SlackChannel(_ForPeople):
    """A Slack channel: a bot (token and channel) or an incoming webhook, whose URL is a secret."""

    kind: Literal["slack"]
    token: Secret | None = None
    channel: str = ""
    webhook: Secret | None = None
    url: str = slack.API

    @model_validator(mode="after")
    def _one_way(self) -> SlackChannel:
        if (self.token is None) == (self.webhook is None) or (self.token is not None and not self.channel):
            raise ValueError("give 'token' and 'channel' of a bot, or 'webhook'")
        return self

    def open(self) -> Notifier:
        """The channel, ready to send."""
        if self.token is not None:
            return slack.SlackBot(self.token.read(), self.channel, self.url)
        return slack.SlackWebhook(self.webhook.read() if self.webhook else "")


class PagerDutyChannel(_Part):
    """A PagerDuty service by its Events v2 integration key."""

    stays_open = True
    kind: Literal["pagerduty"]
    key: Secret
    url: str = pagerduty.URL

    def open(self) -> Notifier:
        """The channel, ready to send."""
        return pagerduty.PagerDuty(self.key.read(), self.url)


class AlertmanagerChannel(_Part):
    """An Alertmanager, for sites that route alerts there already."""

    stays_open = True
    kind: Literal["alertmanager"]
    url: str
    token: Secret | None = None
    keep_hours: float = Field(default=24.0, gt=0)

    def open(self) -> Notifier:
        """The channel, ready to send."""
        return alertmanager.Alertmanager(self.url, self.token.read() if self.token else "", self.keep_hours)


class WebhookChannel(_Part):
    """A receiver of your own; every request is signed with the secret."""

    kind: Literal["webhook"]
    url: str
    secret: Secret

    def open(self) -> Notifier:
        """The channel, ready to send."""
        return webhook.Webhook(self.url, self.secret.read())


class EmailChannel(_ForPeople):
    """E-mail through an SMTP server."""

    kind: Literal["email"]
    host: str
    port: int = 587
    security: email.Security = "starttls"
    sender: str
    to: list[str] = Field(min_length=1)
    user: str = ""
    password: Secret | None = None

    def open(self) -> Notifier:
        """The channel, ready to send."""
        password = self.password.read() if self.password else ""
        return email.Email(self.host, self.port, self.sender, self.to, self.security, self.user, password)


Channel = Annotated[
    TelegramChannel | SlackChannel | PagerDutyChannel | AlertmanagerChannel | WebhookChannel | EmailChannel,
    Field(discriminator="kind"),
]
