"""Plugins: dropped in, run, contained, named; upstream's contract."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trackwalker.job.processes import read_stat
from trackwalker.node.exporter.plugins import PluginCollector, PluginError, PluginFolder, parse_exposition
from trackwalker.node.exporter.server import Exporter

pytestmark = pytest.mark.starts_processes


def script(folder: Path, text: str, name: str = "a_metrics_plugin.sh", mode: int = 0o755) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def plugin(path: Path, seconds: float = 5.0) -> tuple[PluginCollector, list[str]]:
    said: list[str] = []
    return PluginCollector(path, "node7", seconds, said.append), said


def test_what_it_prints_becomes_samples(tmp_path: Path) -> None:
    path = script(tmp_path, 'echo "# TYPE my_fans gauge"\necho "my_fans{host=\\"$1\\",fan=\\"0\\"} 1200"\n', mode=0o644)
    (family,) = plugin(path)[0].collect()
    assert (family.name, family.samples) == ("my_fans", [({"host": "node7", "fan": "0"}, 1200.0, None)])


def test_any_language(tmp_path: Path) -> None:
    path = script(tmp_path, "#!/usr/bin/env python3\nprint('x_total 3 1500')\n", "b_metrics_plugin.py")
    (family,) = plugin(path)[0].collect()
    assert family.samples == [({}, 3.0, 1.5)]


def test_exit_99_means_never_again(tmp_path: Path) -> None:
    marker = tmp_path / "runs"
    path = script(tmp_path, f"echo x >> {marker}; exit 99\n")
    collector, said = plugin(path)
    assert collector.collect() == []
    assert collector.collect() == []
    assert marker.read_text().count("x") == 1
    assert "never" in said[0]


def test_state_comes_back_and_a_state_alone_repeats(tmp_path: Path) -> None:
    text = """
case "$_PLUGIN_STATE" in
  "") echo "x 1"; echo "# STATE one" ;;
  one) echo "# STATE two" ;;
  two) echo "# STATE __NONE__|gone" ;;
  *) echo "# STATE $_PLUGIN_STATE" ;;
esac
"""
    collector, _ = plugin(script(tmp_path, text))
    values = [[f.samples[0][1] for f in collector.collect()] for _ in range(4)]
    assert values == [[1.0], [1.0], [], []]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("echo 'x 1'; echo oops >&2; exit 3\n", "exit code 3: oops"),
        ("printf 'x 1\\ny 2'\n", "cut off"),
        ("echo 'x 1'; echo 'Traceback: what'\n", "not a"),
        ("echo 'x one'\n", "not a number"),
        ("echo 'x{a=b} 1'\n", "bad labels"),
    ],
)
def test_a_bad_plugin_publishes_nothing_and_is_named_once(tmp_path: Path, text: str, complaint: str) -> None:
    collector, said = plugin(script(tmp_path, text))
    for _ in range(2):
        with pytest.raises(PluginError):
            collector.collect()
    assert len(said) == 1
    assert complaint in said[0]
    assert "a_metrics_plugin.sh" in said[0]


def test_a_hanging_plugin_is_ended_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    collector, said = plugin(script(tmp_path, f"echo 'x 1'\nsleep 300 & echo $! > {child}\nwait\n"), seconds=0.5)
    begin = time.monotonic()
    with pytest.raises(PluginError):
        collector.collect()
    assert time.monotonic() - begin < 3
    assert "no answer" in said[0]
    pid = int(child.read_text())
    deadline = time.monotonic() + 3
    while (stat := read_stat(pid)) is not None and stat.state != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_files_come_and_go_while_running(tmp_path: Path) -> None:
    exporter = Exporter("n", [])
    folder = PluginFolder(tmp_path / "plugins", "n", exporter, lambda text: None, interval_s=0.1)
    folder.look()  # the folder need not exist
    (tmp_path / "plugins").mkdir()
    path = script(tmp_path / "plugins", "echo 'x 1'\n")
    script(tmp_path / "plugins", "echo 'y 1'\n", "readme.txt")
    script(tmp_path / "plugins", "echo 'z 1'\n", "not_executable_metrics_plugin.py", mode=0o644)
    folder.look()
    assert [f.name for f in exporter.families() if not f.name.startswith("hw_")] == ["x"]
    path.write_text("echo 'w 22'\n")  # an edited plugin goes live
    folder.look()
    assert [f.name for f in exporter.families() if not f.name.startswith("hw_")] == ["w"]
    path.unlink()
    folder.look()
    assert [f.name for f in exporter.families() if not f.name.startswith("hw_")] == []


def test_escapes_survive() -> None:
    (family,) = parse_exposition('x{a="q\\"uo\\\\te\\n",b=""} NaN\n')
    assert family.samples[0][0] == {"a": 'q"uo\\te\n', "b": ""}
