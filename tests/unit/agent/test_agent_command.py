"""`trackwalker mcp`: a server that would not be safe does not start; an approval needs a person."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from trackwalker.agent.policy import Approvals, this_person
from trackwalker.cli import app
from trackwalker.job.journal import read

TOKEN = "a-token-of-a-test-0123456789"  # noqa: S105


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("TRACKWALKER_MCP_TOKEN", raising=False)
    return tmp_path / "trackwalker" / "agent"


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["trackwalker", "mcp", *words])
    with pytest.raises(SystemExit) as end:
        app.main()
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--http", "0"], "HTTP needs a token"),
        (["--http", "0", "--token-file", "open"], "others can read"),
        (["--http", "0", "--token-file", "weak"], "too easy"),
        (["--http", "0", "--token-file", "none"], "cannot read the token file"),
        (["--token-file", "weak"], "--token-file is for --http"),
        (["--actions"], "actions need both"),
        (["--policy", "weak"], "actions need both"),
        (["--actions", "--policy", "none.yml"], "cannot read the policy file"),
        (["--workspace", "none"], "no workspace"),
        (["--audit", "weak/audit"], "cannot write the audit log"),
    ],
)
def test_a_server_that_would_not_be_safe_does_not_start(
    options: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "outputs").mkdir()
    for name, text, mode in (("open", TOKEN, 0o644), ("weak", "abc", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    assert call(monkeypatch, *options) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.out == ""


class Terminal(io.StringIO):
    """An input that a person sits at."""

    def isatty(self) -> bool:
        return True


def test_an_approval_is_given_by_a_person_who_has_seen_it(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    approvals = Approvals(state / "approvals")
    nonce = approvals.ask("cancel", {"job": "8308\x1b[2J"}, "mcp", [this_person()])
    assert call(monkeypatch, "approve", "--json") == 0
    assert [w["approval"] for w in json.loads(capsys.readouterr().out)["waiting"]] == [nonce]

    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))  # an agent's shell
    assert call(monkeypatch, "approve", nonce) == 2
    assert "at a terminal" in capsys.readouterr().err
    for word, confirmed in (("no", False), ("", False), ("yes", True)):
        monkeypatch.setattr(sys, "stdin", Terminal(f"{word}\n"))
        assert call(monkeypatch, "approve", nonce.lower()) == 0
        said = capsys.readouterr().out
        assert "job: 8308" in said
        assert "\x1b" not in said
        assert approvals.look(nonce).confirmed is confirmed
    assert [(r["who"], r["tool"]) for r in read(state / "audit.jsonl").items] == [(this_person(), "approve")]
    assert call(monkeypatch, "approve") == 0
    assert capsys.readouterr().out == "nothing waits for an approval\n"
