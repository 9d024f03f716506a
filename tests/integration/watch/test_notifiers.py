"""Each channel against a local server that speaks its service's API, through everything such a service does."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from stations import ANSWERED, KINDS, Station, message, station

from trackwalker.report.charts.png import line_plot
from trackwalker.watch.config import Config
from trackwalker.watch.delivery.outbox import FILE, Outbox
from trackwalker.watch.notify import http
from trackwalker.watch.notify.message import Attachment

NOW = time.time()
PLOT = line_plot([0.0, 1.0, 2.0], [3.0, 4.0, 3.5]) or b""


@pytest.fixture(params=KINDS)
def each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Station]:
    with station(request.param, tmp_path) as made:
        yield made


def open_outbox(made: Station, folder: Path) -> Outbox:
    return Outbox(folder / "outbox", Config.model_validate({"channels": {"it": made.settings}}), now=NOW)


def settle(outbox: Outbox, since: float = NOW) -> None:
    """Deliver until nothing waits, with a clock that runs fast."""
    for later in range(40):
        outbox.deliver(since + 10.0 * later)
        if not outbox.waiting():
            return


def test_a_message_arrives_and_is_seen_once(each: Station, tmp_path: Path) -> None:
    outbox = open_outbox(each, tmp_path)
    outbox.put(message("m1", NOW, text="no step for 61 s\nlast step 381", facts={"rank": "3"}), NOW)
    assert outbox.deliver(NOW) == 1
    assert each.seen() == {"title m1": 1}


@pytest.mark.parametrize("fault", [429, 503, "drop", "garbage", "hang"])
def test_trouble_before_it_was_taken_is_waited_out(
    each: Station, tmp_path: Path, fault: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if each.kind == "email":
        fault = {429: 451, 503: 421}.get(fault, "drop") if isinstance(fault, int) else "drop"
    if fault == "garbage" and each.kind not in ANSWERED:
        pytest.skip("its answer is a status only")
    monkeypatch.setattr(http, "TIMEOUT", 0.3)
    outbox = open_outbox(each, tmp_path)
    outbox.put(message("m0", NOW, thread="earlier", title="earlier"), NOW)
    settle(outbox)
    each.service.faults.append(fault)
    outbox.put(message("m1", NOW), NOW + 400)
    settle(outbox, NOW + 400)
    titles = each.seen()
    assert sum("title m1" in title for title in titles) == 1
    assert outbox.dead() == []


@pytest.mark.parametrize("fault", ["take-drop", "take-500"])
def test_an_answer_that_is_lost_does_not_make_it_come_twice(each: Station, tmp_path: Path, fault: str) -> None:
    if each.kind == "email":
        fault = "take-drop"
    outbox = open_outbox(each, tmp_path)
    outbox.put(message("m0", NOW, thread="earlier", title="earlier"), NOW)
    settle(outbox)
    each.service.faults.append(fault)
    outbox.put(message("m1", NOW), NOW + 400)
    settle(outbox, NOW + 400)
    expected = 2 if each.kind in ("slack-webhook", "pagerduty") else 1  # a webhook cannot be asked; see below
    if each.kind == "pagerduty":
        assert len(each.service.alerts) == expected  # two incidents, each one alert
    else:
        assert each.seen()["title m1"] == expected
    if each.kind == "slack-webhook":
        assert "sent again" in each.service.messages[-1]["blocks"][0]["text"]["text"]


@pytest.mark.parametrize("wrong", [401, 403])
def test_a_refusal_is_not_tried_again(each: Station, tmp_path: Path, wrong: int) -> None:
    each.service.faults.extend([535 if each.kind == "email" else wrong] * 3)
    outbox = open_outbox(each, tmp_path)
    outbox.put(message("m1", NOW), NOW)
    settle(outbox)
    assert each.seen() == {}
    assert len(each.service.faults) == 2
    ((_, channel, why),) = outbox.dead()
    assert channel == "it"
    assert str(535 if each.kind == "email" else wrong) in why


def test_a_wrong_secret_is_a_refusal_that_does_not_show_it(
    each: Station, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if each.kind == "alertmanager":
        pytest.skip("an Alertmanager takes alerts from anybody")
    caplog.set_level(logging.DEBUG)
    right = each.secret
    wrong = right.replace("never", "wrong").replace("bmV2", "d3Jv")
    wrong = wrong if wrong != right else right[:-4] + "0000"
    (tmp_path / f"{each.kind}.secret").write_text(wrong)
    outbox = open_outbox(each, tmp_path)
    outbox.put(message("m1", NOW), NOW)
    settle(outbox)
    assert outbox.dead()
    assert each.seen() == {}
    said = f"{outbox.dead()}{outbox.channels()}{caplog.text}{(tmp_path / 'outbox' / FILE).read_text()}"
    assert wrong not in said
    assert wrong.rpartition("/")[2] not in said


@pytest.mark.parametrize("fault", [None, 401, 500, "drop"])
def test_no_secret_is_in_logs_errors_or_the_outbox(
    each: Station, tmp_path: Path, fault: int | str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    each.service.faults.append(535 if each.kind == "email" and fault == 401 else fault)
    outbox = open_outbox(each, tmp_path)
    outbox.put(message("m1", NOW, text=f"a log line with {each.secret} in it"), NOW)
    outbox.deliver(NOW)
    said = f"{outbox.dead()}{outbox.channels()}{caplog.text}{(tmp_path / 'outbox' / FILE).read_text()}"
    assert each.secret not in said
    assert each.secret.rpartition("/")[2] not in said


def test_an_incident_is_one_thread_and_ends(each: Station, tmp_path: Path) -> None:
    outbox = open_outbox(each, tmp_path)
    plot = Attachment(name="tgs.png", media_type="image/png", data=PLOT)
    outbox.put(message("opened", NOW, attachments=(plot,)), NOW)
    outbox.put(message("verdict", NOW), NOW)
    outbox.put(message("over", NOW, severity="info", resolves=True), NOW)
    outbox.deliver(NOW)
    check = _THREADS[each.kind]
    check(each.service)
    assert outbox.waiting() == 0


def test_the_test_command_says_in_one_line_what_a_channel_answers(tmp_path: Path) -> None:
    with station("telegram", tmp_path) as made:
        settings = tmp_path / "watch.yaml"
        settings.write_text(yaml.safe_dump({"channels": {"it": made.settings}}))
        argv = [sys.executable, "-m", "trackwalker", "watch", "test", "it", "--config", str(settings)]
        good = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
        assert (good.returncode, good.stdout) == (0, "channel 'it' (telegram) took a test message\n")
        assert made.seen() == {"test message": 1}
        (tmp_path / "telegram.secret").write_text(made.secret[:-4] + "XXXX")
        bad = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
        assert (bad.returncode, bad.stdout) == (2, "")
        assert "401 Unauthorized" in bad.stderr
        assert len(bad.stderr.splitlines()) == 1
        assert "XXXX" not in bad.stderr


def _telegram(service: object) -> None:
    opened, plot, verdict, over = service.told  # type: ignore[attr-defined]
    assert opened["reply_to"] is None
    assert plot["photo"] == PLOT
    assert [m["reply_to"] for m in (plot, verdict, over)] == [opened["message_id"]] * 3
    assert over["text"].startswith("RESOLVED: title over")


def _slack(service: object) -> None:
    opened, verdict, over = service.messages  # type: ignore[attr-defined]
    assert "thread_ts" not in opened
    assert [m["thread_ts"] for m in (verdict, over)] == [opened["ts"]] * 2
    (file,) = service.files  # type: ignore[attr-defined]
    assert (file["thread_ts"], file["channel_id"], file["data"]) == (opened["ts"], "C0123", PLOT)


def _slack_webhook(service: object) -> None:
    assert len(service.messages) == 3  # type: ignore[attr-defined]


def _pagerduty(service: object) -> None:
    assert list(service.alerts.values()) == ["resolved"]  # type: ignore[attr-defined]
    assert service.opened == 1  # type: ignore[attr-defined]


def _alertmanager(service: object) -> None:
    (alert,) = service.alerts.values()  # type: ignore[attr-defined]
    assert alert["labels"]["severity"] == "critical"  # of the first: the labels name the alert
    assert alert["endsAt"] == alert["startsAt"]  # both are the time of these messages: it is over


def _webhook(service: object) -> None:
    opened, verdict, over = service.messages.values()  # type: ignore[attr-defined]
    assert {m["thread"] for m in (opened, verdict, over)} == {"8043-hang-1"}
    assert opened["attachments"][0]["media_type"] == "image/png"
    assert over["resolves"] is True


def _email(service: object) -> None:
    opened, verdict, over = service.mails  # type: ignore[attr-defined]
    assert opened["In-Reply-To"] is None
    assert {m["In-Reply-To"] for m in (verdict, over)} == {opened["Message-ID"]}
    (plot,) = opened.iter_attachments()
    assert plot.get_content() == PLOT


_THREADS = {
    "telegram": _telegram, "slack": _slack, "slack-webhook": _slack_webhook, "pagerduty": _pagerduty,
    "alertmanager": _alertmanager, "webhook": _webhook, "email": _email,
}  # fmt: skip
