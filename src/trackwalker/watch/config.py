"""The watcher's one settings file: channels, who gets what, quiet hours. Secrets are named in it, never written."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trackwalker.errors import UsageError
from trackwalker.watch.notify.channels import Channel, Secret
from trackwalker.watch.notify.message import Message, Severity
from trackwalker.watch.supervise.resume_policy import ResumePolicy, read_settings, validated


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Route(_Part):
    """Which messages go to which channels; what is left out means any."""

    severity: tuple[Severity, ...] = ("info", "warning", "critical")
    kinds: tuple[str, ...] = ("*",)
    jobs: tuple[str, ...] = ("*",)
    to: tuple[str, ...] = Field(min_length=1)
    after_minutes: float = Field(default=0.0, ge=0)  # only if the incident is still open then

    def takes(self, message: Message) -> bool:
        """Whether the message is one of these."""
        return (
            message.severity in self.severity
            and any(fnmatchcase(message.kind, kind) for kind in self.kinds)
            and any(fnmatchcase(message.job, job) for job in self.jobs)
        )


class Receive(_Part):
    """Where Alertmanager may send its alerts: a port of this machine only."""

    port: int = Field(ge=0, le=65535)
    token: Secret  # other users of a login node can reach its loopback, too


class Ping(_Part):
    """A dead man's switch: an address that is asked for as long as the watcher lives."""

    url: Secret  # whoever knows it can pretend that all is well
    every_minutes: float = Field(default=5.0, ge=0.1)


class Config(_Part):
    """The whole file."""

    channels: dict[str, Channel] = {}
    routes: tuple[Route, ...] = ()  # none: everything to every channel
    receive: Receive | None = None
    heartbeat: Ping | None = None
    policy: Path | None = None  # who may ask for actions in a chat; without one, nobody
    resume: ResumePolicy | None = None

    @model_validator(mode="after")
    def _channels_exist(self) -> Config:
        unknown = sorted({name for route in self.routes for name in route.to} - set(self.channels))
        if unknown:
            raise ValueError(f"routes name channels that do not exist: {', '.join(unknown)}")
        return self

    def destinations(self, message: Message) -> dict[str, float]:
        """The channels for a message, each with how many seconds it waits for the incident to end first."""
        if not self.routes:
            return dict.fromkeys(self.channels, 0.0)
        found: dict[str, float] = {}
        for route in self.routes:
            for name in route.to if route.takes(message) else ():
                found[name] = min(found.get(name, float("inf")), 60.0 * route.after_minutes)
        return found

    def secrets(self) -> list[str]:
        """Every secret that the file names and that is there: none of them may appear in a message."""
        found = []
        for part in [*self.channels.values(), self.receive, self.heartbeat]:
            for value in vars(part).values() if part is not None else ():
                if isinstance(value, Secret):
                    try:
                        found.append(value.read())
                    except UsageError:
                        continue
        return found


def load_config(path: Path) -> Config:
    """The settings of a YAML file; what is wrong with it in one line, without repeating its values."""
    config = validated(Config, read_settings(path) or {}, path)
    if config.policy is None:
        return config
    return config.model_copy(update={"policy": path.absolute().parent / config.policy.expanduser()})
