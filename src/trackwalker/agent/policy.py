"""Who may do what: a policy file that names the actions, and an approval that a person gives for one of them.

A policy alone starts nothing. It says who may *ask* for an action; each single one, with its exact arguments, is then
confirmed by a person who is named as an approver. Both are needed wherever the wish comes from: MCP, Telegram, `ask`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trackwalker.errors import RefusedError, UsageError
from trackwalker.job.private import state_home
from trackwalker.job.trust import distrust_open
from trackwalker.job.whole import write_whole
from trackwalker.job.yaml_files import Strict

Action = Literal["submit", "cancel", "exclude-nodes", "stack-dump"]
EXPIRES_S = 600.0  # long enough to read and decide, too short to find a forgotten one
_LETTERS = "23456789ABCDEFGHJKMNPQRSTVWXYZ"  # nothing that looks like something else on a phone
_NONCE = re.compile(rf"[{_LETTERS}]{{4}}-[{_LETTERS}]{{4}}")


class Policy(BaseModel):
    """The policy file. Names are `mcp` (any MCP client), `user:NAME` (a terminal), `telegram:ID` (a chat)."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_: Literal["trackwalker.policy/1"] = Field(alias="schema")
    actions: dict[Action, list[str]] = {}  # who may ask; what is not named is refused
    approvers: list[str] = []  # who may confirm
    most_nodes: int = Field(default=8, ge=1)  # of one submitted job

    @field_validator("approvers")
    @classmethod
    def _people(cls, approvers: list[str]) -> list[str]:
        if strangers := [who for who in approvers if not who.startswith(("user:", "telegram:"))]:
            raise ValueError(f"{strangers[0]} cannot approve: name people, as user:NAME or telegram:ID")
        return approvers

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Read a policy file; one that others could have written is refused, as it would be theirs."""
        try:
            with path.open() as file:
                why, text = distrust_open(file.fileno(), path), file.read()
        except OSError as e:
            raise UsageError(f"cannot read the policy file {path}: {e.strerror}") from e
        except UnicodeDecodeError as e:
            raise UsageError(f"the policy file {path} is not text") from e
        if why:
            raise UsageError(f"the policy file {path} could have been written by others: {why}")
        try:
            return cls.model_validate(yaml.load(text, Loader=Strict))  # noqa: S506 - a safe one
        except yaml.YAMLError as e:
            raise UsageError(f"the policy file {path} is not YAML: {' '.join(str(e).split())}") from e
        except ValidationError as e:
            first = e.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "file"
            raise UsageError(f"the policy file {path}: {where}: {first['msg']}") from e

    def allowed(self, action: str, who: str) -> bool:
        """Whether `who` may ask for the action; an approval is needed all the same."""
        return any(name == action and who in asking for name, asking in self.actions.items())

    def may_approve(self, who: str) -> bool:
        """Whether `who` may confirm what was asked for."""
        return who in self.approvers


@dataclass(frozen=True)
class Approval:
    """One action that was asked for with exactly these arguments; a person confirms it, and it is used once."""

    nonce: str
    action: str
    args: dict[str, Any]
    asked_by: str
    expires: float
    confirmed_by: str = ""
    approvers: tuple[str, ...] = ()  # who may confirm, as the policy of the asking process says

    @property
    def confirmed(self) -> bool:
        """Whether a person has said yes."""
        return bool(self.confirmed_by)


class Approvals:
    """Approvals in a folder of the user's own, so that the asking process and the confirming one can be two."""

    def __init__(self, folder: Path, expires_s: float = EXPIRES_S) -> None:
        self._folder, self._expires_s = folder, expires_s

    def ask(self, action: str, args: Mapping[str, Any], who: str = "mcp", approvers: Iterable[str] = ()) -> str:
        """Write the wish down and return the nonce by which a person confirms it."""
        with self._locked():
            self._remove_expired()
            for known in self.pending():  # asking again is not a second wish
                if (known.action, known.asked_by) == (action, who) and _digest(known.args) == _digest(args):
                    return known.nonce
            letters = [secrets.choice(_LETTERS) for _ in range(8)]
            nonce = f"{''.join(letters[:4])}-{''.join(letters[4:])}"
            self._write(Approval(nonce, action, dict(args), who, time.time() + self._expires_s, "", tuple(approvers)))
        return nonce

    def pending(self) -> list[Approval]:
        """What waits for a person, the oldest first."""
        if not self._folder.is_dir():
            return []
        found = [self._read(path.stem) for path in self._folder.glob("*.json") if _NONCE.fullmatch(path.stem)]
        alive = [a for a in found if a is not None and not a.confirmed and a.expires > time.time()]
        return sorted(alive, key=lambda a: a.expires)

    def look(self, nonce: str) -> Approval:
        """What a nonce stands for, without saying yes to it."""
        approval = self._read(_canonical(nonce))
        if approval is None:
            raise RefusedError(f"no approval '{_shown(nonce)}': it was never asked for, or has been used")
        if approval.expires <= time.time():
            raise RefusedError(f"approval {approval.nonce} has expired: ask for the action again")
        return approval

    def confirm(self, nonce: str, who: str) -> Approval:
        """A person says yes; without known approvers, whether they may is for the caller's policy (`may_approve`)."""
        with self._locked():
            approval = self.look(nonce)
            if approval.confirmed:
                raise RefusedError(f"approval {approval.nonce} was already confirmed by {approval.confirmed_by}")
            if approval.approvers and who not in approval.approvers:
                raise RefusedError(f"{who} may not approve this: the policy names {', '.join(approval.approvers)}")
            confirmed = replace(approval, confirmed_by=who)
            self._write(confirmed)
        return confirmed

    def take(self, nonce: str, action: str, args: Mapping[str, Any]) -> Approval:
        """Use a confirmed approval up; anything but the confirmed action and arguments is refused."""
        with self._locked():  # of two callers only one can use it up
            approval = self.look(nonce)
            if approval.action != action or _digest(approval.args) != _digest(args):
                raise RefusedError(f"approval {approval.nonce} was given for something else: ask for this action anew")
            if not approval.confirmed:
                raise RefusedError(f"approval {approval.nonce} is not confirmed yet: a person has to say yes first")
            self._path(approval.nonce).unlink()
        return approval

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _path(self, nonce: str) -> Path:
        return self._folder / f"{nonce}.json"

    def _read(self, nonce: str) -> Approval | None:
        try:
            return Approval(**json.loads(self._path(nonce).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _write(self, approval: Approval) -> None:
        path = self._path(approval.nonce)
        write_whole(path, json.dumps(asdict(approval)), mode=0o600)

    def _remove_expired(self) -> None:
        for path in self._folder.glob("*.json"):
            approval = self._read(path.stem)
            if approval is None or approval.expires <= time.time():
                path.unlink(missing_ok=True)


def state_folder() -> Path:
    """Where approvals and the audit log of this user are; not in a workspace, which others may share."""
    return state_home() / "agent"


def this_person() -> str:
    """The person at this terminal, as policies name them: by the user id, as the environment can say anything."""
    try:
        return f"user:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:  # a container without an entry for it
        return f"user:{os.getuid()}"


def _canonical(nonce: str) -> str:
    """A nonce as a person types it; anything else is no file name of ours."""
    text = nonce.strip().upper()
    text = f"{text[:4]}-{text[4:]}" if "-" not in text else text
    if not _NONCE.fullmatch(text):
        raise RefusedError(f"'{_shown(nonce)}' is not an approval: it looks like K7QF-2M9X")
    return text


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:40])


def _digest(args: Mapping[str, Any]) -> str:
    """The same for the same arguments only, in whatever order they were written."""
    return hashlib.sha256(json.dumps(dict(args), sort_keys=True, separators=(",", ":")).encode()).hexdigest()
