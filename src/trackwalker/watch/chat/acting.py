"""Wishes to act, from a chat: the policy says who may ask, a nonce says what exactly, a person confirms it."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

from trackwalker.agent.actions import Office, cancel_job, exclude_nodes, stack_dump
from trackwalker.agent.audit import Audit, Caller
from trackwalker.agent.policy import Approval, Approvals, Policy
from trackwalker.agent.toolbox import Tool, Toolbox
from trackwalker.agent.workspace import Workspace
from trackwalker.errors import TrackwalkerError
from trackwalker.report.text import clip
from trackwalker.watch.chat.replies import Reply, answer

_VERBS: dict[str, tuple[str, Tool]] = {
    "cancel": ("cancel", cancel_job),
    "exclude": ("exclude-nodes", exclude_nodes),
    "stacks": ("stack-dump", stack_dump),
}
_TOOLS = dict(_VERBS.values())
_OTHER_WISHES = frozenset({"kill", "stop", "submit", "resubmit", "resume", "restart", "requeue", "drain", "delete"})
_OFF = "I only answer questions here: actions need a policy file ('policy:' in the watcher's settings)."
_USAGE = "I can 'cancel JOB', 'exclude NODE[,NODE] JOB reason', take 'stacks JOB', and 'confirm CODE'."


class Desk:
    """Answers questions, and takes wishes where a policy file allows it."""

    def __init__(self, workspace: Path, policy: Path | None, state: Path) -> None:
        self._workspace, self._policy = workspace, policy
        self._approvals, self._audit_log = Approvals(state / "approvals"), state / "audit.jsonl"

    def hear(self, text: str, who: str) -> Reply:
        """One message of one person."""
        words = text.strip().lstrip("/").split()
        verb = words[0].lower().partition("@")[0] if words else ""
        if verb in _OTHER_WISHES:
            return Reply(f"'{verb}' is not done from here. {_USAGE}" if self._policy else _OFF)
        if verb not in _VERBS and verb != "confirm":
            return answer(text, self._workspace)
        if self._policy is None:
            return Reply(_OFF)
        policy = Policy.load(self._policy)  # read each time: what was taken away is gone at once
        if verb == "confirm":
            return self._confirm(policy, words[1] if len(words) > 1 else "", who, "yes" in words[2:])
        action, tool = _VERBS[verb]
        args = _arguments(action, words[1:])
        if args is None:
            return Reply(_USAGE)
        said = self._call(policy, who, tool, args)
        nonce = re.search(r'"approval":\s*"([\w-]+)"', said)
        if nonce is None:
            return Reply(said)
        return Reply(
            f"{_words(action, args)}? To do it, an approver writes: confirm {nonce[1]}  (valid for ten minutes)"
        )

    def _confirm(self, policy: Policy, nonce: str, who: str, sure: bool) -> Reply:
        if not policy.may_approve(who):
            return Reply(f"{who} is not an approver of the policy: nothing was done")
        wish = self._approvals.look(nonce)
        from_here = wish.asked_by.startswith("telegram:") and wish.action in _TOOLS
        if not from_here and not sure:  # what is asked for here was shown here; anything else is shown first
            asks = f"{wish.asked_by} asks for '{wish.action}' with {clip(json.dumps(wish.args), 1500)}"
            return Reply(f"{asks}\nTo allow exactly that, once: confirm {wish.nonce} yes")
        with closing(Audit(self._audit_log)) as audit:
            what = {"approval": wish.nonce, "action": wish.action}
            audit.note(Caller(who, "telegram"), "approve", what, "begin")
            self._approvals.confirm(nonce, who)
            audit.note(Caller(who, "telegram"), "approve", what, "ok")
        if not from_here:
            return Reply(f"confirmed: {wish.asked_by} may now {wish.action}, once")
        args = {k: v for k, v in wish.args.items() if k != "workspace" and v != "-"}
        self._call(policy, wish.asked_by, _TOOLS[wish.action], {**args, "approval": wish.nonce})
        return Reply(f"done: {_wish(wish)}, confirmed by {who}")

    def _call(self, policy: Policy, who: str, tool: Tool, args: dict[str, object]) -> str:
        with closing(Workspace(self._workspace)) as place, closing(Audit(self._audit_log)) as audit:
            office = Office(place, policy, self._approvals, who)
            return Toolbox(place, audit, Caller(who, "telegram"), office).call(tool, **args)


def _arguments(action: str, words: list[str]) -> dict[str, object] | None:
    if action != "exclude-nodes":
        return {"job": words[0]} if len(words) == 1 else None
    if len(words) < 3:
        return None
    return {"hosts": words[0].split(","), "job": words[1], "why": " ".join(words[2:])}


def _words(action: str, args: dict[str, object]) -> str:
    if action == "exclude-nodes" and isinstance(args["hosts"], list):
        return f"Leave {', '.join(map(str, args['hosts']))} out of the next runs ({args['why']})"
    return f"Cancel job {args['job']}" if action == "cancel" else f"Take the stacks of job {args['job']}"


def _wish(wish: Approval) -> str:
    try:
        return _words(wish.action, wish.args)
    except KeyError:
        raise TrackwalkerError(f"approval {wish.nonce} was written by another version") from None
