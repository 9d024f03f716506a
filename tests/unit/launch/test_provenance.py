"""Where the code came from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trackwalker.launch.code import provenance as module
from trackwalker.launch.code.provenance import Provenance, git_summary, provenance, starred

pytestmark = pytest.mark.starts_processes


def git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=Tess T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    root.mkdir()
    (root / "train.py").write_text("lr = 1\n")
    (root / ".env").write_text("HF_TOKEN=first\n")
    git(root, "init", "-q", "-b", "topic")
    git(root, "add", "-f", ".")
    git(root, "commit", "-qm", "Start here")
    return root


def test_a_clean_tree(code: Path) -> None:
    found = provenance(code, image="rocm/x:1", image_digest="sha256:ab")
    assert found.commit == git(code, "rev-parse", "HEAD")
    assert found.branch == "## topic"
    assert found.last_commit.startswith(found.commit[:7] + " Start here (")
    assert found.last_commit.endswith("<Tess T>")
    assert "train.py" in found.last_commit_stat
    assert (found.dirty, found.patch, found.untracked, found.notes) == (False, "", [], [])
    assert (found.image, found.image_digest) == ("rocm/x:1", "sha256:ab")
    assert found.packages["pytest"] == pytest.__version__


def test_changes_are_kept_secrets_are_not(code: Path) -> None:
    (code / "train.py").write_text('lr = 2\nos.environ["HF_TOKEN"] = "hunter2"\napi_key: hunter3\n')
    (code / ".env").write_text("HF_TOKEN=hunter4\n")
    (code / "new file.py").write_text("x")
    found = provenance(code)
    assert found.dirty
    assert "+lr = 2" in found.patch
    assert "hunter" not in found.model_dump_json()
    assert found.changes.splitlines() == ["M\t.env", "M\ttrain.py"]
    assert found.untracked == ["new file.py"]
    assert found.notes == ["left out of the patch, their names say secret: .env"]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("export HF_TOKEN=abc", "export HF_TOKEN=***"),
        ('"api_key": "a b c",', '"api_key": "***",'),
        ("+  password: 'x y'", "+  password: '***'"),
        ("see hf_" + "a1" * 15, "see ***"),
        ("https://me:pw@host/x", "https://***@host/x"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", None),
        ("-----BEGIN PRIVATE KEY-----\ncut off before its end MIIE", None),
        ("key = jax.random.split(seed)", "key = jax.random.split(seed)"),
        ('os.environ["HF_TOKEN"] = "abc"', 'os.environ["HF_TOKEN"] = "***"'),
        ("--hf_token abc", "--hf_token ***"),
        ("Authorization: Bearer abcdef", "Authorization: Bearer ***"),
    ],
)
def test_secrets_are_starred(text: str, safe: str | None) -> None:
    assert "MIIE" not in starred(text)
    assert safe is None or starred(text) == safe


@pytest.mark.parametrize("text", ["tokenizer_path=meta-llama/X", "lr = 3e-4", "max_tokens: 4096", "a == b", "x := 3"])
def test_plain_text_stays(text: str) -> None:
    assert starred(text) == text


def test_reading_changes_nothing_in_the_repository(code: Path) -> None:
    (code / "train.py").touch()  # git would refresh its index
    before = (code / ".git" / "index").read_bytes(), sorted(p.name for p in (code / ".git").iterdir())
    provenance(code)
    assert ((code / ".git" / "index").read_bytes(), sorted(p.name for p in (code / ".git").iterdir())) == before


def test_a_large_patch_is_cut(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PATCH", 1000)
    (code / "train.py").write_text("".join(f"line {n}\n" for n in range(1000)))
    found = provenance(code)
    assert len(found.patch) <= 1000
    assert found.patch_cut > 5000
    assert f"[{found.patch_cut} more bytes]" in git_summary(found)


def test_nothing_to_ask_is_a_note(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = provenance(tmp_path / "nowhere", python="/no/such/python")
    assert found.commit == ""
    assert [note.split(":")[0] for note in found.notes] == ["git summary unavailable", "package inventory unavailable"]
    summary = git_summary(found)
    assert summary.splitlines()[1].startswith("[WARN] git summary unavailable")
    monkeypatch.setenv("PATH", "")
    assert provenance(code).notes == ["git summary unavailable: git is not installed"]


def test_a_repository_without_a_commit_is_a_note(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert provenance(tmp_path).notes[0].startswith("git summary unavailable")


def test_packages_of_another_interpreter(code: Path) -> None:
    assert provenance(code, python=sys.executable).packages["pytest"] == pytest.__version__


def test_the_summary_has_upstreams_form(code: Path) -> None:
    (code / "train.py").write_text("lr = 3\n")
    (code / "other.py").touch()
    rows = git_summary(provenance(code)).splitlines()
    titles = [row for row in rows if row.startswith(("[", "==="))]
    assert titles == [
        "=== GIT SUMMARY BEGIN ===",
        "[BRANCH]",
        "[LAST COMMIT]",
        "[LAST COMMIT DIFF --stat]",
        "[CHANGES --name-status]",
        "[DIFF]",
        "[UNTRACKED]",
        "=== GIT SUMMARY END ===",
    ]
    assert rows[rows.index("[UNTRACKED]") + 1] == "other.py"
    assert git_summary(Provenance()) == "=== GIT SUMMARY BEGIN ===\n=== GIT SUMMARY END ===\n"
