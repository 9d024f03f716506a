"""Policy and approval: what is not named is refused, and a yes holds once, for a while, for exactly what was shown."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trackwalker.agent.policy import Approvals, Policy
from trackwalker.errors import RefusedError, UsageError

ARGS = {"job": "8308", "workspace": "outputs"}
TEXT = """
schema: trackwalker.policy/1
actions:
  cancel: [mcp, "telegram:4711"]
approvers: ["user:alice", "telegram:4711"]
"""


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "policy.yml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_what_a_policy_does_not_name_is_refused(tmp_path: Path) -> None:
    policy = Policy.load(write(tmp_path))
    assert policy.allowed("cancel", "mcp")
    assert policy.allowed("cancel", "telegram:4711")
    assert not policy.allowed("cancel", "telegram:1")
    assert not policy.allowed("submit", "mcp")
    assert not policy.allowed("no-such-action", "mcp")
    assert policy.may_approve("user:alice")
    assert not policy.may_approve("mcp")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("actions: {cancel: [mcp]}", "schema"),
        ("schema: trackwalker.policy/1\nactions: {format-disk: [mcp]}", "format-disk"),
        ("schema: trackwalker.policy/1\nallow-all: true", "allow-all"),
        ("schema: trackwalker.policy/1\napprovers: [mcp]", "mcp cannot approve"),
        ("[", "not YAML"),
        ("", "file"),
    ],
)
def test_a_policy_that_is_wrong_is_one_clear_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        Policy.load(write(tmp_path, text))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_that_others_can_write_is_not_ours(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.chmod(0o662)
    with pytest.raises(UsageError, match="written by others"):
        Policy.load(path)
    with pytest.raises(UsageError, match="cannot read"):
        Policy.load(tmp_path / "none.yml")


def test_an_approval_is_used_once_and_only_after_a_yes(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "a")
    nonce = approvals.ask("cancel", ARGS)
    assert approvals.ask("cancel", dict(reversed(ARGS.items()))) == nonce  # asking again is not a second wish
    assert [a.args for a in approvals.pending()] == [ARGS]
    with pytest.raises(RefusedError, match="not confirmed"):
        approvals.take(nonce, "cancel", ARGS)
    typed = nonce.replace("-", "").lower()  # as somebody types it on a phone
    assert approvals.confirm(typed, "user:alice").args == ARGS
    with pytest.raises(RefusedError, match="already confirmed"):
        approvals.confirm(nonce, "user:bob")
    assert approvals.take(nonce, "cancel", ARGS).confirmed_by == "user:alice"
    with pytest.raises(RefusedError, match="used"):
        approvals.take(nonce, "cancel", ARGS)


@pytest.mark.parametrize(
    ("action", "args"), [("submit", ARGS), ("cancel", {**ARGS, "job": "8309"}), ("cancel", {**ARGS, "force": True})]
)
def test_an_approval_is_bound_to_the_exact_arguments(tmp_path: Path, action: str, args: dict[str, object]) -> None:
    approvals = Approvals(tmp_path)
    nonce = approvals.ask("cancel", ARGS)
    approvals.confirm(nonce, "user:alice")
    with pytest.raises(RefusedError, match="something else"):
        approvals.take(nonce, action, args)


def test_an_approval_expires_before_and_after_the_yes(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path, expires_s=-1.0)
    nonce = approvals.ask("cancel", ARGS)
    assert approvals.pending() == []
    for use in (lambda: approvals.confirm(nonce, "user:alice"), lambda: approvals.take(nonce, "cancel", ARGS)):
        with pytest.raises(RefusedError, match="expired"):
            use()


def test_only_the_named_approvers_can_say_yes(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    nonce = approvals.ask("cancel", ARGS, "mcp", ["user:alice"])
    with pytest.raises(RefusedError, match="user:mallory may not approve"):
        approvals.confirm(nonce, "user:mallory")
    assert approvals.confirm(nonce, "user:alice").confirmed


@pytest.mark.parametrize("nonce", ["", "../../etc/passwd", "AAAA-AAA/", "K7QF-2M9X\n", "K7QF-2M9X", "\x1b[31m"])
def test_a_made_up_approval_is_refused_and_names_no_file(tmp_path: Path, nonce: str) -> None:
    with pytest.raises(RefusedError) as error:
        Approvals(tmp_path).confirm(nonce, "user:alice")
    assert str(error.value).isprintable()


def test_of_many_takers_one_gets_the_approval(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    nonce = approvals.ask("cancel", ARGS)
    approvals.confirm(nonce, "user:alice")

    def take(_: int) -> bool:
        try:
            return Approvals(tmp_path).take(nonce, "cancel", ARGS).confirmed
        except RefusedError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(16))) == 1


def test_approvals_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "approvals"
    nonce = Approvals(folder).ask("cancel", ARGS)
    assert os.stat(folder).st_mode & 0o077 == 0
    assert os.stat(folder / f"{nonce}.json").st_mode & 0o077 == 0
