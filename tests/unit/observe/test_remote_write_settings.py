"""The wish to send samples elsewhere: checked early, and no secret is ever repeated or stored where others read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from trackwalker.cli import app
from trackwalker.errors import UsageError
from trackwalker.observe.live import prometheus_config
from trackwalker.observe.remote_write import (
    AUTH_VARIABLE,
    URL_VARIABLE,
    Auth,
    from_environment,
    read_auth,
    remote_write,
)

URL = "https://store.example:8428/api/v1/write"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("store:8428", "is not an address"),
        ("ftp://store/write", "is not an address"),
        ("http://", "is not an address"),
        ("http://store:99999/write", "is not an address"),
        ("http://me:hunter2@store/write", "holds a user or password"),
        ("http://hunter2@store/write", "holds a user or password"),
        ("http://store/write?token=hunter2", "holds a secret behind"),
        ("http://store/write?a=b&api_key=hunter2", "holds a secret behind"),
    ],
)
def test_a_bad_address_is_refused_without_repeating_it(url: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as e:
        remote_write(url, None)
    assert "hunter2" not in str(e.value)


@pytest.mark.parametrize(
    ("text", "auth"),
    [
        ("bearer abc.def\n", Auth(None, "abc.def")),
        ("Bearer abc", Auth(None, "abc")),
        ("basic me:pass:word with space\n", Auth("me", "pass:word with space")),
    ],
)
def test_an_auth_file_is_one_line(text: str, auth: Auth, tmp_path: Path) -> None:
    (tmp_path / "auth").write_text(text)
    assert read_auth(tmp_path / "auth") == auth


@pytest.mark.parametrize("text", ["", "hunter2", "bearer", "basic hunter2", "bearer hunter2 more", "basic :hunter2"])
def test_any_other_auth_file_is_refused_without_repeating_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "auth").write_text(text)
    with pytest.raises(UsageError, match="one line is expected") as e:
        remote_write(URL, tmp_path / "auth")
    assert "hunter2" not in str(e.value)


@pytest.mark.parametrize(
    ("text", "key", "named"),
    [("bearer hunter2", "authorization", "credentials_file"), ("basic me:hunter2", "basic_auth", "password_file")],
)
def test_the_secret_goes_into_a_private_file_and_not_into_the_configuration(
    text: str, key: str, named: str, tmp_path: Path
) -> None:
    (tmp_path / "auth").write_text(text)
    wish = remote_write(URL, tmp_path / "auth")
    assert wish is not None
    section = wish.section(tmp_path)
    written = prometheus_config(tmp_path / "targets.json", tmp_path / "ray.json", section)
    assert "hunter2" not in written
    assert yaml.safe_load(written)["remote_write"][0]["url"] == URL
    secret = Path(section[key][named])
    assert secret.read_text() == "hunter2"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_the_recorder_hears_it_from_its_environment(tmp_path: Path) -> None:
    (tmp_path / "auth").write_text("bearer x")
    wish = remote_write(URL, tmp_path / "auth")
    assert wish is not None
    assert from_environment(wish.environment()) == wish
    assert set(wish.environment()) == {URL_VARIABLE, AUTH_VARIABLE}
    assert from_environment({}) is None
    with pytest.raises(UsageError, match="give the store's address"):
        from_environment({AUTH_VARIABLE: str(tmp_path / "auth")})


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--observe", "--remote-write", "http://me:hunter2@store/write"], "put them into a --remote-write-auth-file"),
        (["--remote-write", URL], "add --observe"),
    ],
)
def test_the_command_refuses_in_one_line_and_creates_nothing(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trackwalker", "run", "tiny", *words])
    with pytest.raises(SystemExit) as end:
        app.main()
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert complaint in err
    assert "hunter2" not in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
