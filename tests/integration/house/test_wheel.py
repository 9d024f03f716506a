"""The wheel: what is in it, what is not, and that it works where only it is installed, on every Python it names."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import trackwalker

ROOT = Path(__file__).parents[3]
HATCHLING = Path(sys.executable).with_name("hatchling")
pytestmark = pytest.mark.skipif(not HATCHLING.exists(), reason="pip install hatchling")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    argv = [str(HATCHLING), "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(out.glob("*.whl"))


def call(python: Path | str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [str(python), "-m", "trackwalker", *words]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        argv, env={**own, "COLUMNS": "80", **env}, capture_output=True, text=True, timeout=300, check=False
    )


def test_what_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = email.message_from_string(
            archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
        )
    assert [name for name in names if "/lab/" in name] == []
    assert len(names) <= 900, "what is new that a user does not need?"
    for needed in (
        "py.typed",
        "playbooks/healthy.md",
        "playbooks/causes.yml",
        "skills/tsdb-diagnosis/SKILL.md",
        "web/static/app.js",
    ):
        assert f"trackwalker/{needed}" in names
    assert {"all", "tiny", "ray", "agent", "web"} <= set(about.get_all("Provides-Extra") or ())
    assert "Programming Language :: Python :: 3.13" in (about.get_all("Classifier") or ())


def unpacked(archive: Path, folder: Path) -> dict[str, str]:
    """First on the path: what an installation would import."""
    with zipfile.ZipFile(archive) as held:
        held.extractall(folder)
    return {"PYTHONPATH": str(folder), "TRACKWALKER_SCENARIOS": ""}


@pytest.fixture(scope="module")
def only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The wheel's own package alone; what is compiled of it is compiled once."""
    return unpacked(wheel, tmp_path_factory.mktemp("installed"))


def test_without_the_lab_its_commands_say_how_to_get_it(only: dict[str, str]) -> None:
    for words in (["lab", "simulate", "--list"], ["lab", "score"], ["lab"], ["demo"]):
        done = call(sys.executable, *words, **only)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
        assert "pip install trackwalker-lab" in done.stderr
    assert "Usage: trackwalker tsdb query" in call(sys.executable, "tsdb", "query", "-h", **only).stdout


def test_skills_of_the_wheel_are_installed_whole(only: dict[str, str], tmp_path: Path) -> None:
    done = call(sys.executable, "skills", "install", "--project", str(tmp_path), **only)
    assert done.returncode == 0, done
    pages = {p.name for p in tmp_path.rglob("references/*.md")}
    assert {"playbook-healthy.md", "log-causes.md", "signatures.md", "harmless.md", "anatomy.md"} <= pages
    assert call(sys.executable, "skills", "check", **only).returncode == 0


def test_with_the_labs_own_wheel_it_works(wheel: Path, tmp_path: Path) -> None:
    argv = [str(HATCHLING), "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(argv, cwd=ROOT / "lab", check=True, capture_output=True, timeout=120)
    archive = next((tmp_path / "dist").glob("trackwalker_lab-*.whl"))
    with zipfile.ZipFile(archive) as held, zipfile.ZipFile(wheel) as product:
        names = {n for n in held.namelist() if ".dist-info/" not in n}
        assert names & set(product.namelist()) == set()
        assert not any(n.endswith(".pyc") for n in names)
        about = held.read(next(n for n in held.namelist() if n.endswith("/METADATA"))).decode()
    assert f"Version: {trackwalker.__version__}\n" in about
    assert f"Requires-Dist: trackwalker=={trackwalker.__version__}\n" in about
    both = unpacked(wheel, tmp_path / "installed") | unpacked(archive, tmp_path / "installed")
    done = call(sys.executable, "lab", "simulate", "oom-gpu", "--out", str(tmp_path / "x"), **both)
    assert done.returncode == 0, done
    workspace = str(tmp_path / "x" / "outputs")
    assert "GPU out of memory" in call(sys.executable, "triage", "-w", workspace, **both).stdout


def other_pythons() -> list[Path]:
    """Pythons of pyenv that the metadata names, the newest of each."""
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    found = Path.home() / ".pyenv" / "versions"
    return [newest for name in named if (newest := max(found.glob(f"{name}.*/bin/python"), default=None))]


@pytest.mark.long(reason="a fresh environment for each Python, filled from a package index: minutes")
@pytest.mark.parametrize("python", other_pythons(), ids=lambda p: p.parents[1].name)
def test_it_works_where_only_it_is_installed(wheel: Path, python: Path, tmp_path: Path) -> None:
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    here = tmp_path / "venv" / "bin" / "python"
    filled = subprocess.run([here, "-m", "pip", "install", "-q", wheel], check=False, capture_output=True, timeout=600)
    if filled.returncode != 0:
        pytest.skip("no package index answers")
    # A job to look at, from this checkout: the lab is a wheel of its own.
    made = call(sys.executable, "lab", "simulate", "gpu-thermal-throttle", "--nodes", "4", "--out", str(tmp_path / "x"))
    assert made.returncode == 0, made
    workspace = str(tmp_path / "x" / "outputs")
    for words, says in (
        (["version"], "trackwalker "),
        (["--help-all"], "Usage: trackwalker tsdb query"),
        (["jobs", "-w", workspace], "cancelled"),
        (["triage", "-w", workspace], "CANCELLED"),
        (["diagnose", "-w", workspace], "A GPU overheats and clocks down"),
        (["changed", "-w", workspace], "hw_gpu_temperature_celsius rose"),
        (["ask", "which host is slow?", "-w", workspace], "GPU thermal throttling"),
        (["perf", "show", "-w", workspace], "s a step"),
        (["plan", "llama2-70b", "-N", "8", "--gpu", "MI355X", "-w", workspace], "OK: settings are valid; fits"),
        (["skills", "list"], "tsdb-diagnosis"),
        (["completion", "bash"], "_trackwalker"),
    ):
        done = call(here, *words)
        assert done.returncode == 0, done
        assert says in done.stdout
    missing = call(here, "run", "tiny", "-w", str(tmp_path / "none"))
    assert (missing.returncode, "pip install 'trackwalker[tiny]'" in missing.stderr) == (2, True)
