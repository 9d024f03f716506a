"""The outbox: told once, in order, whatever a channel does and wherever the process is killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from trackwalker.watch import memory
from trackwalker.watch.config import Config, Route
from trackwalker.watch.delivery.outbox import FILE, Outbox
from trackwalker.watch.notify.base import CannotKnowError, InDoubtError, Letter, NotSentError, Receipt, RejectedError
from trackwalker.watch.notify.channels import Quiet
from trackwalker.watch.notify.message import Attachment, Message

NOON = 1_790_000_000.0 - 1_790_000_000.0 % 86_400 + 12 * 3600  # a day's noon, UTC
PLOT = Attachment(name="tgs.png", media_type="image/png", data=b"\x89PNG")


class Killed(BaseException):
    """What a kill is to the code around it: nothing after it runs."""


@dataclass
class FakeNotifier:
    """A service in memory: what it took, and what it does next (an exception to raise before or after taking)."""

    idempotent: bool = False
    attaches: frozenset[str] = frozenset({"image/png"})
    taken: list[Letter] = field(default_factory=list)
    before: list[BaseException | None] = field(default_factory=list)
    after: list[BaseException | None] = field(default_factory=list)
    can_find: bool = True

    def send(self, letter: Letter) -> Receipt:
        if self.before and (trouble := self.before.pop(0)) is not None:
            raise trouble
        self.taken.append(letter)
        if self.after and (trouble := self.after.pop(0)) is not None:
            raise trouble
        return {"n": len(self.taken)}

    def find(self, letter: Letter) -> Receipt | None:
        if not self.can_find:
            raise CannotKnowError("nobody knows")
        for number, taken in enumerate(self.taken, 1):
            if taken.message.key == letter.message.key:
                return {"n": number}
        return None

    def close(self) -> None:
        pass

    @property
    def keys(self) -> list[str]:
        return [letter.message.key for letter in self.taken if letter.attachment is None]


@dataclass
class FakeChannel:
    notifier: FakeNotifier = field(default_factory=FakeNotifier)
    quiet: Quiet | None = None
    kind: str = "fake"

    def open(self) -> FakeNotifier:
        return self.notifier


def config(routes: tuple[Route, ...] = (), **channels: FakeChannel) -> Config:
    return Config.model_construct(channels=channels, routes=routes, receive=None, policy=None, resume=None)


def message(key: str = "m1", **values: Any) -> Message:
    said = {"thread": "incident-1", "severity": "warning", "kind": "hang", "title": "rank 3 hangs", "time": NOON}
    return Message(key=key, **{**said, **values})


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


@pytest.fixture
def opened(tmp_path: Path, channel: FakeChannel) -> Callable[..., Outbox]:
    """Open the same outbox again and again, as a watcher that is restarted."""
    return lambda **more: Outbox(tmp_path, config(**{"team": channel, **more}), now=NOON)


def test_a_message_is_told_once_however_often_it_is_put(opened: Callable[..., Outbox], channel: FakeChannel) -> None:
    outbox = opened()
    assert outbox.put(message(), NOON)
    assert not outbox.put(message(title="the same key, other words"), NOON)
    outbox.deliver(NOON)
    outbox.deliver(NOON + 1)
    again = opened()
    assert not again.put(message(), NOON + 2)
    again.deliver(NOON + 3)
    assert channel.notifier.keys == ["m1"]
    assert again.waiting() == 0


def test_what_was_put_before_a_kill_is_told_after_it(opened: Callable[..., Outbox], channel: FakeChannel) -> None:
    opened().put(message(attachments=(PLOT,)), NOON)
    opened().deliver(NOON)
    assert channel.notifier.keys == ["m1"]
    assert channel.notifier.taken[1].attachment == 0
    assert channel.notifier.taken[1].message.attachments[0].data == PLOT.data


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_kill_while_sending_neither_loses_nor_repeats(
    opened: Callable[..., Outbox], channel: FakeChannel, when: str, idempotent: bool
) -> None:
    channel.notifier.idempotent = idempotent
    setattr(channel.notifier, when, [Killed()])
    outbox = opened()
    outbox.put(message(), NOON)
    with pytest.raises(Killed):
        outbox.deliver(NOON)
    again = opened()
    again.deliver(NOON + 10)
    assert set(channel.notifier.keys) == {"m1"}
    # A service that takes the same message once is simply sent it again; any other is asked first.
    assert len(channel.notifier.keys) == (2 if idempotent and when == "after" else 1)
    assert again.waiting() == 0


def test_where_nobody_can_know_it_is_sent_again_and_says_so(
    opened: Callable[..., Outbox], channel: FakeChannel
) -> None:
    channel.notifier.can_find = False
    channel.notifier.after = [InDoubtError("timed out")]
    outbox = opened()
    outbox.put(message(), NOON)
    outbox.deliver(NOON)
    outbox.deliver(NOON + 10)
    assert [letter.again for letter in channel.notifier.taken] == [False, True]


def test_a_doubt_survives_trouble_while_it_is_settled(opened: Callable[..., Outbox], channel: FakeChannel) -> None:
    notifier = channel.notifier
    notifier.after = [InDoubtError("timed out")]
    outbox = opened()
    outbox.put(message(), NOON)
    outbox.deliver(NOON)
    finding, notifier.find = notifier.find, lambda letter: _raise(NotSentError("network down"))  # type: ignore[method-assign]
    outbox.deliver(NOON + 10)
    notifier.find = finding  # type: ignore[method-assign]
    opened().deliver(NOON + 100)
    assert notifier.keys == ["m1"]


def _raise(error: Exception) -> Any:
    raise error


def test_a_failure_is_tried_again_later_and_later(opened: Callable[..., Outbox], channel: FakeChannel) -> None:
    channel.notifier.before = [NotSentError("cannot be reached") for _ in range(5)]
    outbox = opened()
    outbox.put(message(), NOON)
    tried, now = [], NOON
    while outbox.waiting():
        left = len(channel.notifier.before)
        outbox.deliver(now)
        if len(channel.notifier.before) < left:
            tried.append(now)
        now += 0.5
    gaps = [b - a for a, b in pairwise(tried)]
    assert len(tried) == 5
    assert all(later > earlier for earlier, later in pairwise(gaps))
    assert channel.notifier.keys == ["m1"]


def test_a_service_that_says_how_long_is_left_alone_that_long_even_after_a_restart(
    opened: Callable[..., Outbox], channel: FakeChannel
) -> None:
    channel.notifier.before = [NotSentError("slow down", after=100.0)]
    outbox = opened()
    outbox.put(message("m1"), NOON)
    outbox.put(message("m2", thread="incident-2"), NOON)
    outbox.deliver(NOON)
    again = opened()
    again.deliver(NOON + 99)
    assert channel.notifier.keys == []
    again.deliver(NOON + 101)
    assert channel.notifier.keys == ["m1", "m2"]


def test_a_refused_message_is_not_tried_again_and_another_channel_hears_of_it(
    opened: Callable[..., Outbox], channel: FakeChannel
) -> None:
    channel.notifier.before = [RejectedError("Slack refused the message: 401")]
    other = FakeChannel()
    outbox = opened(other=other)
    outbox.put(message(), NOON)
    for later in range(5):
        outbox.deliver(NOON + 1000 * later)
    assert channel.notifier.keys == []
    assert [(m.key, name, why) for m, name, why in outbox.dead()] == [("m1", "team", "Slack refused the message: 401")]
    assert [letter.message.kind for letter in other.notifier.taken] == ["hang", "notifier"]
    assert "team" in other.notifier.taken[1].message.title


def test_one_channel_in_trouble_does_not_hold_up_another(opened: Callable[..., Outbox], channel: FakeChannel) -> None:
    channel.notifier.before = [RuntimeError("a bug with a token in its words: s3cr3t")]  # type: ignore[list-item]
    other = FakeChannel()
    outbox = opened(other=other)
    outbox.put(message(), NOON)
    assert outbox.deliver(NOON) == 1
    assert other.notifier.keys == ["m1"]
    assert outbox.channels()["team"]["trouble"] == "team failed with RuntimeError"


def test_an_incident_is_one_thread_and_a_retry_keeps_its_order(
    opened: Callable[..., Outbox], channel: FakeChannel
) -> None:
    channel.notifier.before = [NotSentError("not now")]
    outbox = opened()
    outbox.put(message("opened"), NOON)
    outbox.put(message("verdict"), NOON)
    outbox.put(message("over", severity="info", resolves=True), NOON)
    outbox.deliver(NOON)
    opened().deliver(NOON + 60)
    assert channel.notifier.keys == ["opened", "verdict", "over"]
    assert [letter.first for letter in channel.notifier.taken] == [None, {"n": 1}, {"n": 1}]


def test_routes_choose_by_severity_kind_and_job(tmp_path: Path) -> None:
    pager, team, mine = FakeChannel(), FakeChannel(), FakeChannel()
    routes = (
        Route(severity=("critical",), to=("pager",)),
        Route(severity=("warning", "critical"), kinds=("hang", "slow*"), to=("team",)),
        Route(jobs=("80*",), to=("mine",)),
    )
    outbox = Outbox(tmp_path, config(routes, pager=pager, team=team, mine=mine), now=NOON)
    outbox.put(message("a", severity="critical", thread="1"), NOON)
    outbox.put(message("b", kind="slow-step", thread="2"), NOON)
    outbox.put(message("c", kind="end", severity="info", job="8043", thread="3"), NOON)
    outbox.deliver(NOON)
    assert (pager.notifier.keys, team.notifier.keys, mine.notifier.keys) == (["a"], ["a", "b"], ["c"])
    outbox.put(message("d", severity="info", resolves=True, thread="1"), NOON)
    outbox.deliver(NOON)
    # Who was woken hears that it is over, though it is only "info".
    assert (pager.notifier.keys, team.notifier.keys, mine.notifier.keys) == (["a", "d"], ["a", "b", "d"], ["c"])


def test_a_patient_route_tells_only_what_is_still_open(tmp_path: Path) -> None:
    pager, team = FakeChannel(), FakeChannel()
    routes = (Route(to=("team",)), Route(to=("pager",), after_minutes=15))
    outbox = Outbox(tmp_path, config(routes, pager=pager, team=team), now=NOON)
    outbox.put(message("short", thread="1"), NOON)
    outbox.put(message("long", thread="2"), NOON)
    outbox.deliver(NOON)
    outbox.put(message("over", thread="1", resolves=True), NOON + 60)
    outbox.deliver(NOON + 60)
    assert pager.notifier.keys == []
    outbox.deliver(NOON + 901)
    assert pager.notifier.keys == ["long"]
    assert team.notifier.keys == ["short", "long", "over"]
    assert outbox.waiting() == 0


def test_quiet_hours_hold_what_is_not_critical_and_tell_it_as_one(tmp_path: Path) -> None:
    quiet = Quiet.model_validate({"from": "22:00", "to": "07:00", "timezone": "Europe/Berlin"})
    channel = FakeChannel(quiet=quiet)
    night, morning = NOON + 13 * 3600, NOON + 18 * 3600  # 01:00 and 06:00 UTC: 07:00 and later in Berlin
    outbox = Outbox(tmp_path, config(team=channel), now=NOON)
    outbox.put(message("w1", title="job 1 is slow", thread="1", time=night), night)
    outbox.put(message("w2", title="job 2 hangs", thread="2", time=night), night)
    outbox.put(message("w3", title="over", severity="info", resolves=True, thread="2", time=night), night)
    outbox.put(message("c1", severity="critical", thread="3", time=night), night)
    outbox.deliver(night)
    assert channel.notifier.keys == ["c1"]
    again = Outbox(tmp_path, config(team=channel), now=NOON)
    again.deliver(morning)
    again.deliver(morning + 1)
    assert len(channel.notifier.taken) == 2
    told = channel.notifier.taken[1].message
    assert told.title == "3 messages from the quiet hours, 1 incident still open"
    assert told.severity == "warning"
    assert "WARNING: job 1 is slow" in told.text
    assert "RESOLVED: over" in told.text
    again.put(message("later", thread="1", time=morning), morning + 2)
    again.deliver(morning + 2)
    assert channel.notifier.taken[2].first == {"n": 2}  # the thread of job 1 goes on under the summary


def test_one_held_message_comes_as_itself(tmp_path: Path) -> None:
    quiet = Quiet.model_validate({"from": "22:00", "to": "07:00"})
    channel = FakeChannel(quiet=quiet)
    outbox = Outbox(tmp_path, config(team=channel), now=NOON)
    outbox.put(message(), NOON + 11 * 3600)
    outbox.deliver(NOON + 12 * 3600)
    assert channel.notifier.keys == []
    outbox.deliver(NOON + 19 * 3600 + 60)
    assert channel.notifier.keys == ["m1"]


def test_secrets_leave_neither_to_a_channel_nor_to_the_disk(
    opened: Callable[..., Outbox], channel: FakeChannel, tmp_path: Path
) -> None:
    outbox = opened()
    log = "HF_TOKEN=hunter2hunter2 and later hunter2hunter2, https://bob:pa55word@git/x \x1b[31mred\x1b[0m"
    note = Attachment(name="../log.txt", media_type="text/plain", data=b"WANDB_API_KEY=0123456789abcdef")
    outbox.put(message(text=log, title="see hunter2hunter2", facts={"line": log}, attachments=(note,)), NOON)
    outbox.deliver(NOON)
    told = channel.notifier.taken[0].message
    everything = f"{told.title}{told.text}{told.facts}{told.attachments}" + (tmp_path / FILE).read_text()
    for secret in ("hunter2", "pa55word", "0123456789abcdef", "\x1b"):
        assert secret not in everything
    assert "/" not in told.attachments[0].name
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_a_file_in_doubt_or_refused_does_not_repeat_the_message(
    opened: Callable[..., Outbox], channel: FakeChannel
) -> None:
    channel.notifier.after = [None, InDoubtError("timed out"), RejectedError("too large")]
    outbox = opened()
    outbox.put(message(attachments=(PLOT, PLOT)), NOON)
    outbox.deliver(NOON)
    outbox.deliver(NOON + 500)
    assert [letter.attachment for letter in channel.notifier.taken] == [None, 0, 1]
    assert outbox.waiting() == 0
    assert outbox.dead() == []


def test_a_channel_that_left_the_settings_is_not_waited_for(tmp_path: Path, channel: FakeChannel) -> None:
    outbox = Outbox(tmp_path, config(team=channel), now=NOON)
    outbox.put(message(), NOON)
    later = Outbox(tmp_path, config(), now=NOON)
    later.deliver(NOON)
    assert later.waiting() == 0
    assert [why for _, _, why in later.dead()] == ["the channel is no longer in the settings"]


def test_a_torn_or_foreign_journal_loses_only_what_is_torn(
    opened: Callable[..., Outbox], channel: FakeChannel, tmp_path: Path
) -> None:
    opened().put(message("whole"), NOON)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"v":1,"op":"done","key":"unknown","channel":"team"}\n{"v":1,"op":"put","mess')
    outbox = opened()
    outbox.put(message("after"), NOON)
    opened().deliver(NOON)
    assert channel.notifier.keys == ["whole", "after"]


def test_a_long_journal_is_rewritten_and_still_knows_what_was_told(
    opened: Callable[..., Outbox], channel: FakeChannel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = opened()
    for number in range(12):
        outbox.put(message(f"m{number}", text="x" * 300), NOON)
    outbox.deliver(NOON)
    channel.notifier.before = [NotSentError("not now")]
    outbox.put(message("waits", thread="incident-1"), NOON)
    outbox.deliver(NOON)
    outbox.close()
    size = (tmp_path / FILE).stat().st_size
    monkeypatch.setattr(memory, "LONG", 1000)
    again = opened()
    assert (tmp_path / FILE).stat().st_size < size
    assert not again.put(message("m7"), NOON)
    again.deliver(NOON + 60)
    assert channel.notifier.keys[-1] == "waits"
    assert len(channel.notifier.keys) == 13
    assert channel.notifier.taken[-1].first == {"n": 1}


def test_the_first_message_of_an_incident_is_illustrated_and_a_restart_does_without(
    opened: Callable[..., Outbox], channel: FakeChannel
) -> None:
    channel.notifier.after = [None, Killed()]
    outbox = opened()
    outbox.illustrate = lambda told: (PLOT,)
    outbox.put(message("opened"), NOON)
    outbox.put(message("verdict"), NOON)
    with pytest.raises(Killed):
        outbox.deliver(NOON)
    again = opened()
    again.illustrate = lambda told: ()  # its log is gone
    again.deliver(NOON + 10)
    assert [(letter.message.key, letter.attachment) for letter in channel.notifier.taken] == [
        ("opened", None),
        ("opened", 0),
        ("verdict", None),
    ]
    assert again.waiting() == 0
