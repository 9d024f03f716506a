"""The watcher's settings: secrets are named, never written; what is wrong is one line that repeats no value."""

from __future__ import annotations

import os
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.watch.config import load_config
from trackwalker.watch.notify.channels import Quiet, Secret
from trackwalker.watch.service import try_channel

WHOLE = """
channels:
  oncall: {kind: telegram, token: {env: TG_BOT_TOKEN}, chat: -1001, users: [4711], quiet: {from: "22:00", to: "07:00"}}
  team: {kind: slack, token: {file: ~/slack.secret}, channel: C0123}
  old: {kind: slack, webhook: {env: SLACK_HOOK}}
  pager: {kind: pagerduty, key: {file: /etc/pd.secret}}
  am: {kind: alertmanager, url: "http://127.0.0.1:9093"}
  hook: {kind: webhook, url: "https://example.org/in", secret: {env: HOOK_SECRET}}
  mail: {kind: email, host: smtp.example.org, sender: bot@example.org, to: [oncall@example.org]}
routes:
  - {severity: [critical], to: [oncall, pager]}
  - {kinds: ["end*"], to: [team]}
receive: {port: 9099, token: {env: AM_TOKEN}}
policy: policy.yaml
resume: {budget: 2}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "watch.yaml"
    path.write_text(text)
    return path


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, WHOLE))
    assert list(config.channels) == ["oncall", "team", "old", "pager", "am", "hook", "mail"]
    assert config.resume is not None
    assert config.resume.budget == 2
    assert config.policy == tmp_path / "policy.yaml"  # beside the settings, wherever the watcher is started


def test_an_empty_file_has_no_channels(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")).channels == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("channels: {t: {kind: telegram, token: 123:AAsecret, chat: 1}}", "a secret is not written into this file"),
        ("channels: {t: {kind: telegram, token: {env: A, file: B}, chat: 1}}", "either 'file' or 'env'"),
        ("channels: {t: {kind: telegram, token: {file: token}, chat: 1}}", "write the whole path"),
        ("channels: {t: {kind: telegram, token: {env: A}, chat: '@x', users: [1]}}", "given by its number"),
        ("channels: {t: {kind: pigeon}}", "pigeon"),
        ("channels: {t: {kind: slack, token: {env: A}}}", "'token' and 'channel' of a bot, or 'webhook'"),
        ("channels: {p: {kind: pagerduty, key: {env: A}, quiet: {from: '22:00', to: '07:00'}}}", "quiet"),
        ("channels: {t: {kind: telegram, token: {env: A}, chat: 1, quiet: {from: '25:00', to: '07:00'}}}", "quiet"),
        ("routes: [{to: [nobody]}]", "channels that do not exist: nobody"),
        ("routes: [{to: []}]", "routes.0.to"),
        ("colour: red", "colour"),
        ("channels: [", "line 1 is not YAML"),
        ("- a list", "the file"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(written(tmp_path, text))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "AAsecret" not in str(caught.value)


def test_a_secret_comes_from_a_private_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    os.chmod(path, 0o600)
    assert Secret(file=path).read() == "s3cret"
    monkeypatch.setenv("TG_BOT_TOKEN", "other")
    assert Secret(env="TG_BOT_TOKEN").read() == "other"
    monkeypatch.delenv("TG_BOT_TOKEN")
    with pytest.raises(UsageError, match="TG_BOT_TOKEN is not set"):
        Secret(env="TG_BOT_TOKEN").read()
    os.chmod(path, 0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        Secret(file=path).read()
    with pytest.raises(UsageError, match="cannot be read"):
        Secret(file=tmp_path / "none").read()


@pytest.mark.parametrize(
    ("clock", "until"),
    [
        ("21:59", None), ("22:00", "07:00 next"), ("23:30", "07:00 next"), ("00:00", "07:00"), ("06:59", "07:00"),
        ("07:00", None), ("12:00", None),
    ],
)  # fmt: skip
def test_quiet_hours_pass_midnight(clock: str, until: str | None) -> None:
    quiet = Quiet.model_validate({"from": "22:00", "to": "07:00"})
    now = datetime.fromisoformat(f"2026-03-10T{clock}+00:00").timestamp()
    ends = quiet.until(now)
    day = 11 if until and until.endswith("next") else 10
    assert ends == (datetime(2026, 3, day, 7, tzinfo=UTC).timestamp() if until else None)


def test_quiet_hours_are_those_of_the_place() -> None:
    quiet = Quiet.model_validate({"from": "22:00", "to": "07:00", "timezone": "Asia/Tokyo"})
    assert quiet.until(datetime(2026, 3, 10, 14, tzinfo=UTC).timestamp()) is not None  # 23:00 there
    assert quiet.until(datetime(2026, 3, 10, 23, tzinfo=UTC).timestamp()) is None


def test_the_test_command_names_the_channels_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no channel 'tema' in .*: am, hook"):
        try_channel(written(tmp_path, WHOLE), "tema")


def test_the_settings_on_the_page_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "notifications.md").read_text()
    shown = page.split("## The settings file")[1].split("Everything is optional")[0]
    config = load_config(written(tmp_path, textwrap.dedent(shown.strip("\n"))))
    assert {channel.kind for channel in config.channels.values()} == {
        "telegram", "slack", "pagerduty", "email", "webhook", "alertmanager",
    }  # fmt: skip
