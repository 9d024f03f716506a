"""What a message looks like in each channel, and that nothing of a log becomes markup, a header or an endless text."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import zlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from trackwalker.report.charts.png import line_plot
from trackwalker.watch.notify import alertmanager, email, slack, telegram
from trackwalker.watch.notify.base import Letter
from trackwalker.watch.notify.http import retry_after
from trackwalker.watch.notify.message import Attachment, Message, presentable
from trackwalker.watch.notify.webhook import document, sign, signing_key

EVIL = "<!channel> *bold* [x](http://evil) <b>&amp; _it_\r\nBcc: all@example.org\x07"


def message(**values: object) -> Message:
    said = {"key": "k", "thread": "t", "severity": "critical", "kind": "hang", "title": "rank 3 hangs", "time": 1e9}
    return Message.model_validate({**said, **values})


def test_a_telegram_text_is_bold_by_position_and_fits() -> None:
    said = telegram._text(Letter(presentable(message(title="🔥 hang", text="😀" * 5000))))
    assert telegram.units(said["text"]) <= 4096
    (bold,) = said["entities"]
    start = said["text"].encode("utf-16-le")[2 * bold["offset"] : 2 * (bold["offset"] + bold["length"])]
    assert start.decode("utf-16-le") == "CRITICAL: 🔥 hang"
    assert "parse_mode" not in said


def test_one_endless_line_can_be_sent() -> None:
    said = telegram._text(Letter(presentable(message(text="x" * 1_000_000))))
    assert telegram.units(said["text"]) <= 4096
    assert said["text"].endswith("…")


def test_slack_shows_log_text_as_text() -> None:
    said = slack._words(Letter(presentable(message(title=EVIL, text=EVIL + "y" * 20_000))))
    assert "<!channel>" not in said["text"]
    assert {block["text"]["type"] for block in said["blocks"]} == {"plain_text"}
    assert all(0 < len(block["text"]["text"]) <= 3000 for block in said["blocks"])
    assert len(said["blocks"]) <= 50


def test_no_header_is_injected_into_a_mail() -> None:
    mailer = email.Email("localhost", 25, "Bot <bot@example.org>", ["a@example.org"], "none")
    mail = mailer._compose(Letter(presentable(message(title=EVIL, text=EVIL))))
    assert mail["Bcc"] is None
    assert "\n" not in str(mail["Subject"])
    assert mail["Message-ID"] == mailer._compose(Letter(message(title="other words")))["Message-ID"]


def test_an_alert_has_valid_names_whatever_a_fact_is_called() -> None:
    labels = alertmanager._labels(message(kind="job-end", job="8043"))
    assert labels["alertname"] == "TrackwalkerJobEnd"
    assert [alertmanager._word(w) for w in ("exit code", "2nd", "größe", "")] == ["exit_code", "_2nd", "gr__e", "fact"]


def test_the_signature_is_the_documented_one() -> None:
    key = signing_key("whsec_" + base64.b64encode(b"a key").decode())
    assert key == b"a key"
    assert signing_key("plain words") == b"plain words"
    expected = base64.b64encode(hmac.new(key, b'msg_1.1700000000.{"a":1}', hashlib.sha256).digest()).decode()
    assert sign(key, "msg_1", 1_700_000_000, b'{"a":1}') == f"v1,{expected}"


def test_a_webhook_gets_everything_as_json() -> None:
    said = json.loads(json.dumps(document(message(attachments=(Attachment(name="a", media_type="b", data=b"\xff"),)))))
    assert said["schema"] == "trackwalker.message/1"
    assert base64.urlsafe_b64decode(said["attachments"][0]["data"]) == b"\xff"


@pytest.mark.parametrize(
    ("header", "body", "low", "high"),
    [
        ("12", None, 12, 12),
        ("-5", None, 0, 0),
        ("1e9", None, 21_600, 21_600),
        ("nonsense", None, None, None),
        ("nan", None, None, None),
        (None, {"parameters": {"retry_after": 33}}, 33, 33),
        (None, {"parameters": 7}, None, None),
    ],
)
def test_how_long_to_wait_is_read_from_every_form(
    header: str | None, body: object, low: float | None, high: float | None
) -> None:
    found = retry_after(httpx.Headers({"Retry-After": header} if header else {}), body)
    if low is None or high is None:
        assert found is None
    else:
        assert found is not None
        assert low <= found <= high


def test_how_long_to_wait_may_be_a_date() -> None:
    in_a_while = format_datetime(datetime.now(UTC) + timedelta(seconds=900))
    found = retry_after(httpx.Headers({"Retry-After": in_a_while}), None)
    assert found is not None
    assert 600 <= found <= 901


def test_a_message_with_too_much_is_cut_and_one_without_title_has_its_kind() -> None:
    told = presentable(message(title="\x1b[0m", facts={f"fact {n}": "v" * 5000 for n in range(100)}, text="z" * 10**6))
    assert told.title == "hang"
    assert len(told.facts) == 40
    assert sum(map(len, told.facts.values())) <= 40 * 500
    assert len(told.text) <= 20_000


def test_a_plot_is_a_png_that_shows_a_line() -> None:
    raw = line_plot([float(n) for n in range(5000)], [100.0 + n % 7 for n in range(4999)] + [float("nan")])
    assert raw is not None
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", raw[16:24])
    at, pixels = 8, b""
    while at < len(raw):
        (size,) = struct.unpack(">I", raw[at : at + 4])
        name, data = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + size]
        assert struct.unpack(">I", raw[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + data)
        pixels += data if name == b"IDAT" else b""
        at += 12 + size
    rows = zlib.decompress(pixels)
    assert len(rows) == height * (1 + 3 * width)
    assert rows.count(bytes((20, 90, 170))) > 500
    assert line_plot([1.0], [2.0]) is None
    assert line_plot([1.0, 2.0], [float("nan"), float("inf")]) is None
