"""Alertmanager's webhook comes in: once per firing and once per end, only with the token, only on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from trackwalker.watch.delivery.post import AlertReceiver, messages
from trackwalker.watch.notify.message import Message

NOW = 1_790_000_000.0
TOKEN = "am-token-neverShown"  # noqa: S105


def alert(status: str = "firing", **labels: str) -> dict[str, Any]:
    """One alert as the documentation of the webhook (version 4) shows it."""
    return {
        "status": status,
        "labels": {"alertname": "GpuXid", "severity": "critical", "host": "node-3", **labels},
        "annotations": {"summary": "XID 79", "description": "the GPU has fallen off the bus"},
        "startsAt": "2026-09-21T13:00:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z" if status == "firing" else "2026-09-21T13:10:00Z",
        "generatorURL": "http://prometheus.example/graph",
        "fingerprint": "9f86d081884c7d65",
    }


def document(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "4", "groupKey": '{}:{alertname="GpuXid"}', "truncatedAlerts": 0, "status": "firing",
        "receiver": "trackwalker", "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {},
        "externalURL": "http://alertmanager.example", "alerts": list(alerts),
    }  # fmt: skip


class Box:
    """An outbox in memory: a key is taken once."""

    def __init__(self) -> None:
        self.taken: dict[str, Message] = {}
        self.full = False

    def put(self, message: Message) -> bool:
        if self.full:
            raise OSError(28, "No space left on device")
        return self.taken.setdefault(message.key, message) is message


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def receiver(box: Box) -> Iterator[AlertReceiver]:
    made = AlertReceiver(0, TOKEN, box.put, lambda: NOW)
    made.start()
    yield made
    made.close()


def post(receiver: AlertReceiver, body: Any, token: str = TOKEN, path: str = "/alertmanager") -> httpx.Response:
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    with httpx.Client(trust_env=False) as client:
        url, headers = f"http://127.0.0.1:{receiver.port}{path}", {"Authorization": f"Bearer {token}"}
        return client.post(url, headers=headers, **content)


def test_an_alert_is_told_once_however_often_it_is_repeated(receiver: AlertReceiver, box: Box) -> None:
    for _ in range(3):
        assert post(receiver, document(alert())).status_code == 200
    assert post(receiver, document(alert("resolved"))).status_code == 200
    firing, over = box.taken.values()
    assert (firing.severity, firing.resolves, firing.title) == ("critical", False, "GpuXid on node-3: XID 79")
    assert firing.text == "the GPU has fallen off the bus"
    assert (over.thread, over.resolves) == (firing.thread, True)


def test_the_same_alert_at_another_time_is_another_incident() -> None:
    again = {**alert(), "startsAt": "2026-09-22T13:00:00Z"}
    one, two = messages(document(alert(), again), NOW)
    assert one.thread != two.thread


def test_our_own_alerts_do_not_come_back_as_new_ones() -> None:
    assert messages(document(alert(trackwalker_incident="8043-hang-1")), NOW) == []


def test_an_alert_without_anything_is_still_told() -> None:
    (told,) = messages({"alerts": [{"labels": {"alertname": "Odd", "severity": "P5"}}]}, NOW)
    assert (told.severity, told.title, told.time) == ("warning", "Odd", NOW)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"not json", 400), (b"[]", 400), (b'{"alerts": 3}', 400), (b'{"alerts": [7]}', 400), (b"[" * 9999, 400)],
)
def test_nonsense_is_refused_and_the_listener_lives_on(
    receiver: AlertReceiver, box: Box, body: bytes, status: int
) -> None:
    assert post(receiver, body).status_code == status
    assert post(receiver, document(alert())).status_code == 200
    assert len(box.taken) == 1


def test_without_the_token_or_at_another_path_nothing_is_taken(receiver: AlertReceiver, box: Box) -> None:
    assert post(receiver, document(alert()), token="guess").status_code == 401  # noqa: S106
    assert post(receiver, document(alert()), path="/").status_code == 404
    assert box.taken == {}


def test_what_could_not_be_kept_is_not_confirmed(receiver: AlertReceiver, box: Box) -> None:
    box.full = True
    assert post(receiver, document(alert())).status_code == 503
    box.full = False
    assert post(receiver, document(alert())).status_code == 200
    assert len(box.taken) == 1


def test_it_listens_on_this_machine_only(receiver: AlertReceiver) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", receiver.port), 5).close()
