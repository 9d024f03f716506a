"""Telegram as a channel: listed people ask and get verdicts; wishes to act need the policy and a confirmation."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_run import Run, wait_for
from helpers import make_job, step_line
from message_services import TelegramService, WebhookService
from stations import message

from trackwalker.agent.policy import Approvals
from trackwalker.launch.code.bundle import build_agent
from trackwalker.watch.chat.acting import Desk
from trackwalker.watch.chat.replies import answer
from trackwalker.watch.chat.telegram_chat import TelegramChat
from trackwalker.watch.config import Config
from trackwalker.watch.delivery.outbox import Outbox
from trackwalker.watch.delivery.post import Heartbeat, Post
from trackwalker.watch.notify.telegram import TelegramApi

ANNA, STRANGER = 4711, 666


@pytest.fixture
def telegram() -> Iterator[TelegramService]:
    service = TelegramService()
    yield service
    service.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A job of upstream's that ran 30 steps and died of memory, with a secret in its log."""
    place = tmp_path / "outputs"
    _, log = make_job(place, "8043-JAX-llama2-70b")
    steps = "".join(f"0: {step_line(n)}\n" for n in range(30))
    words = (
        "0: HF_TOKEN=hunter2hunter2\n0: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.\n"
    )
    log.write_text(log.read_text() + steps + words)
    return place


@pytest.fixture
def talk(telegram: TelegramService, workspace: Path, tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Say something in the chat; what the bot wrote since. Each call is a watcher that was started anew."""
    made: list[Outbox] = []
    seen = 0

    def say(
        text: str, user: int = ANNA, policy: Path | None = None, answers: object = None, **more: object
    ) -> list[str]:
        nonlocal seen
        telegram.says(user, text, **more)  # type: ignore[arg-type]
        outbox = Outbox(tmp_path / "watch", Config())
        made.append(outbox)
        desk = Desk(workspace, policy, tmp_path / "state")
        chat = TelegramChat(
            TelegramApi(telegram.TOKEN, telegram.url), "oncall", telegram.chat, (ANNA,), outbox,
            tmp_path / "telegram.json", answers or desk.hear, ["hunter3hunter3"],  # type: ignore[arg-type]
        )  # fmt: skip
        chat.poll(0)
        told = telegram.told[seen:]
        seen = len(telegram.told)
        return [m.get("text", "photo") for m in told]

    yield say
    for outbox in made:
        outbox.close()


def test_questions_are_answered_with_what_the_tools_say(talk: Callable[..., list[str]]) -> None:
    (status,) = talk("/status@track_bot 8043")
    assert status.startswith("job 8043 (JAX-llama2-70b)")
    (triage,) = talk("triage 8043")
    assert "job 8043: failed" in triage
    assert "oom-gpu" in triage
    (why,) = talk("why is 8043 slow?")
    assert "oom-gpu" in why
    assert "evidence: " in why
    (tail,) = talk("tail 8043 2")
    assert "RESOURCE_EXHAUSTED" in tail
    assert "hunter2" not in tail
    assert "HF_TOKEN=***" in tail
    caption, picture = talk("plot tgs")
    assert (caption, picture) == ("job 8043: tokens/s/device over steps", "photo")
    assert talk("hello")[0].startswith("I answer:")


def test_a_question_about_no_job_or_a_path_is_answered_in_one_line(workspace: Path) -> None:
    assert answer("triage 9999", workspace).text.startswith("no job '9999'")
    assert "../" not in answer("tail ../../etc/passwd", workspace).text
    assert answer("plot colours 8043", workspace).text.startswith("I can plot tgs")
    assert answer("status", workspace / "none").text.startswith("no workspace")


def test_only_listed_people_are_heard(talk: Callable[..., list[str]]) -> None:
    assert talk("status", user=STRANGER) == []
    assert talk("status", chat=-2002) == []  # somewhere else, even from Anna
    assert talk("status", age=4000.0) == []  # asked while nobody listened
    assert talk("status", chat=STRANGER, kind="private") == []
    assert len(talk("status", chat=ANNA, kind="private")) == 1


def test_a_question_is_answered_once_across_restarts_and_after_a_crash(talk: Callable[..., list[str]]) -> None:
    assert len(talk("status")) == 1
    assert len(talk("tail")) == 1  # a new watcher: the old question is not answered again

    def crash(text: str, who: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk("cancel 8043", answers=crash)
    assert len(talk("status")) == 1  # only this one


def test_a_failing_answer_does_not_end_the_conversation_or_tell_secrets(talk: Callable[..., list[str]]) -> None:
    def fail(text: str, who: str) -> None:
        raise RuntimeError("hunter3hunter3")

    assert talk("status", answers=fail) == ["no answer: RuntimeError"]


def test_without_a_policy_nothing_is_done(talk: Callable[..., list[str]]) -> None:
    for wish in ("cancel 8043", "kill 8043", "submit 70b", "confirm ABCD-EFGH"):
        (said,) = talk(wish)
        assert "actions need a policy file" in said


def test_a_wish_needs_the_policy_and_a_confirmation(
    talk: Callable[..., list[str]], workspace: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"

    def allow(text: str) -> None:
        policy.write_text(f"schema: trackwalker.policy/1\n{text}")
        os.chmod(policy, 0o600)

    allow("actions: {}\napprovers: []\n")
    assert "does not let telegram:4711" in talk("cancel 8043", policy=policy)[0]
    allow("actions: {exclude-nodes: ['telegram:4711']}\napprovers: []\n")
    (asked,) = talk("exclude node001 8043 it drops its link", policy=policy)
    nonce = re.search(r"confirm (\w{4}-\w{4})", asked)
    assert nonce is not None
    assert "node001" in asked
    assert "not an approver" in talk(f"confirm {nonce[1]}", policy=policy)[0]
    allow("actions: {exclude-nodes: ['telegram:4711']}\napprovers: ['telegram:4711']\n")
    assert "is not an approval" in talk("confirm maybe", policy=policy)[0]
    (done,) = talk(f"confirm {nonce[1]}", policy=policy)
    assert done.startswith("done: Leave node001 out")
    assert "never asked for, or has been used" in talk(f"confirm {nonce[1]}", policy=policy)[0]
    ledger = "".join(
        p.read_text() for p in workspace.rglob("*") if p.is_file() and "node001" in p.read_text("utf-8", "replace")
    )
    assert "approved by telegram:4711" in ledger
    audit = [json.loads(line) for line in (tmp_path / "state" / "audit.jsonl").read_text().splitlines()]
    assert {(line["who"], line["way"]) for line in audit} == {("telegram:4711", "telegram")}
    assert [line["outcome"] for line in audit].count("refused") == 1


def test_what_an_agent_asked_for_is_shown_before_it_is_confirmed(
    talk: Callable[..., list[str]], tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("schema: trackwalker.policy/1\napprovers: ['telegram:4711']\n")
    os.chmod(policy, 0o600)
    approvals = Approvals(tmp_path / "state" / "approvals")
    nonce = approvals.ask("cancel", {"workspace": "w", "job": "8043"})
    (shown,) = talk(f"confirm {nonce}", policy=policy)
    assert "mcp asks for 'cancel'" in shown
    assert '"job": "8043"' in shown
    assert not approvals.look(nonce).confirmed
    assert talk(f"confirm {nonce} yes", policy=policy) == ["confirmed: mcp may now cancel, once"]
    assert approvals.look(nonce).confirmed_by == "telegram:4711"


def test_a_job_of_ones_own_is_cancelled_after_the_confirmation(
    talk: Callable[..., list[str]], workspace: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "schema: trackwalker.policy/1\nactions: {cancel: ['telegram:4711']}\napprovers: ['telegram:4711']\n"
    )
    os.chmod(policy, 0o600)
    run = Run(workspace, build_agent(tmp_path / "agent.pyz"), ["print('up'); import time; time.sleep(300)"], 5.0)
    try:
        wait_for(lambda: ": up\n" in run.text, 60.0)
        run.up()
        assert "runs" in talk("status local_1_1_ab", policy=policy)[0]
        (asked,) = talk("cancel local_1_1_ab", policy=policy)
        assert run.agent.poll() is None
        nonce = asked.split("confirm ")[1].split()[0]
        assert talk(f"confirm {nonce}", policy=policy)[0].startswith("done: Cancel job local_1_1_ab")
        assert run.ends(60.0) != 0
        assert run.left_over() == []
    finally:
        run.agent.terminate()
        run.agent.wait(60)


def test_the_chat_and_the_outbox_share_one_bot(telegram: TelegramService, workspace: Path, tmp_path: Path) -> None:
    """The threads of a watcher: an alert goes out while a question is answered, and both are told once."""
    secret = tmp_path / "token"
    secret.write_text(telegram.TOKEN)
    os.chmod(secret, 0o600)
    channel = {
        "kind": "telegram",
        "token": {"file": str(secret)},
        "chat": telegram.chat,
        "users": [ANNA],
        "url": telegram.url,
    }
    config = Config.model_validate({"channels": {"oncall": channel}})
    outbox = Outbox(tmp_path / "watch", config)
    post = Post(outbox, config, workspace, tmp_path / "watch")
    post.start()
    try:
        telegram.says(ANNA, "status")
        outbox.put(message("m1", time.time(), kind="slow", job="8043"))
        wait_for(lambda: any(m.get("text", "").startswith("job 8043") for m in telegram.told), 60.0)
        wait_for(lambda: outbox.waiting() == 0, 60.0)
    finally:
        post.close()
        outbox.close()
    alert = next(m for m in telegram.told if m.get("text", "").startswith("CRITICAL: title m1"))
    (plot,) = [m for m in telegram.told if "photo" in m]  # drawn from the job's log
    assert plot["reply_to"] == alert["message_id"]
    assert len(telegram.told) == 3


def test_a_watcher_that_hangs_is_as_silent_as_a_dead_one(tmp_path: Path) -> None:
    service = WebhookService()
    service.serve = lambda path, headers, body: (200, "OK")  # type: ignore[method-assign]
    now = 1000.0
    try:
        heart = Heartbeat(f"{service.url}/ping/neverShown", 60.0)
        wait = heart.around(lambda seconds: False, lambda: now)
        assert not heart.beat(now)  # the loop has not come round yet
        wait(1.0)
        assert heart.beat(now + 1)
        assert not heart.beat(now + 30)  # not due
        service.faults.append(500)
        assert not heart.beat(now + 62)  # made up for by the next
        now += 125
        wait(1.0)
        assert heart.beat(now)
        assert not heart.beat(now + 300)  # the loop is stuck
    finally:
        service.close()
    assert len(service.requests) == 3
