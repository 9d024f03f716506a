"""Where a test run's time goes, by file: what it computed, what its children computed, what it only waited for.

Every run prints the slowest files and keeps the table (`build/test-durations/<name>.tsv`): the next second to save
is looked up, not guessed at. `starts` counts the programs that a file's tests started.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_KEY = "durations"
_SHOWN = 20
_PYTHON = re.compile(r"^python[\d.]*$")


@dataclass
class FileCost:
    """What the tests of one file cost, in seconds."""

    tests: int = 0
    wall: float = 0.0
    own_cpu: float = 0.0
    child_cpu: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
    starts: Counter[str] = field(default_factory=Counter)

    @property
    def waiting(self) -> float:
        """Seconds in which neither the test nor a child that ended was computing."""
        return max(0.0, self.wall - self.own_cpu - self.child_cpu)


class Durations:
    """A pytest plug-in: measures in the workers, adds up and prints in the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._files: dict[str, FileCost] = {}
        self._started: Counter[str] = Counter()
        self._measuring = False
        self._rerun: dict[str, str] = {}  # what failed the first time: a race that nobody sees is never repaired
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._measuring and event == "subprocess.Popen":
            self._started[_program(arguments[0], arguments[1])] += 1

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._before, self._began = os.times(), time.perf_counter()
        self._started.clear()
        self._measuring = True
        yield
        self._measuring = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and not hasattr(self._config, "workerinput"):
            told = [value for key, value in report.user_properties if key == _KEY]
            self._add(report.nodeid, json.loads(str(told[-1])) if told else {})
        if getattr(report, "outcome", "") == "rerun":
            crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
            self._rerun.setdefault(report.nodeid, " ".join(str(getattr(crash, "message", "")).split())[:300])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        if call.when == "teardown":
            now, before = os.times(), self._before
            told = {
                "wall": round(time.perf_counter() - self._began, 3),
                "own": round(now.user + now.system - before.user - before.system, 3),
                "child": round(
                    now.children_user + now.children_system - before.children_user - before.children_system, 3
                ),
                "starts": dict(self._started),
            }
            item.user_properties.append((_KEY, json.dumps(told)))
        yield

    def _add(self, nodeid: str, cost: dict[str, Any]) -> None:
        file, _, name = nodeid.partition("::")
        mine = self._files.setdefault(file, FileCost())
        wall = float(cost.get("wall", 0.0))
        mine.tests += 1
        mine.wall += wall
        mine.own_cpu += float(cost.get("own", 0.0))
        mine.child_cpu += float(cost.get("child", 0.0))
        mine.slowest = max(mine.slowest, (wall, name))
        mine.starts.update(cost.get("starts", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The slowest files, and which tests were run again."""
        if hasattr(self._config, "workerinput") or not self._files:
            return
        rows = sorted(self._files.items(), key=lambda row: -row[1].wall)
        if self._config.getoption("durations_table"):
            path = self._write(rows)
            terminalreporter.section(f"slowest files, seconds ({path})")
            for line in table(rows[:_SHOWN]):
                terminalreporter.write_line(line)
        told = f"run again because load may disturb them: {len(self._rerun)}"
        again = (f"\n  {nodeid}: {why}" for nodeid, why in sorted(self._rerun.items()))
        terminalreporter.write_line(told + "".join(again))

    def _write(self, rows: list[tuple[str, FileCost]]) -> Path:
        name = self._config.getoption("durations_table")
        path = Path("build") / "test-durations" / f"{name}.tsv"
        (self._config.rootpath / path).parent.mkdir(parents=True, exist_ok=True)
        (self._config.rootpath / path).write_text("\n".join(line.replace("  ", "\t") for line in table(rows)) + "\n")
        return path


def table(rows: list[tuple[str, FileCost]]) -> list[str]:
    """Lines of a table, slowest file first."""
    out = [f"{'wall':>6}  {'own':>6}  {'child':>6}  {'wait':>6}  {'tests':>5}  file: slowest test; what it starts"]
    for file, cost in rows:
        starts = ", ".join(f"{name} {n}" for name, n in cost.starts.most_common(4))
        slowest = f"{cost.slowest[1]} {cost.slowest[0]:.1f}"
        figures = f"{cost.wall:6.1f}  {cost.own_cpu:6.1f}  {cost.child_cpu:6.1f}  {cost.waiting:6.1f}  {cost.tests:5}"
        out.append(f"{figures}  {file}: {slowest}" + (f"; {starts}" if starts else ""))
    return out


def _program(executable: Any, argv: Any) -> str:
    """A program's name; of a Python the module or script that it runs."""
    words = [os.fsdecode(w) for w in argv] if isinstance(argv, list | tuple) else [os.fsdecode(argv)]
    name = os.path.basename(os.fsdecode(executable or words[0]))
    if not _PYTHON.match(name):
        return name
    if "-m" in words[:3]:
        return f"python -m {words[words.index('-m') + 1]}"
    return "python" if len(words) < 2 or words[1].startswith("-") else f"python {os.path.basename(words[1])}"
