"""A unit test starts no process and does not wait: what it asks is answered by this process, in milliseconds.

A test that needs a real program (git, a shell, a stand-in for `sacct`) says so with the marker `starts_processes`; it
runs with `make test`, not with `make check`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

LONGEST_SLEEP_S = 0.2
_EVENTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
_SCHEDULERS = ("sacct", "squeue", "scontrol", "sbatch", "kubectl")
_guarded = [False]


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _guarded[0] and event in _EVENTS:
        _guarded[0] = False  # the failure's own report may start what it needs
        pytest.fail(f"a unit test started a process ({event} {arguments[:2]}): mark it starts_processes", pytrace=True)


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _no_scheduler_of_this_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triage asks `sacct` where there is one; what this machine's would say is no part of a test."""
    real = shutil.which

    def which(name: Any, mode: int = os.F_OK | os.X_OK, path: Any = None) -> Any:
        found = real(name, mode, path)
        return None if found and str(found).startswith("/usr/") and os.path.basename(found) in _SCHEDULERS else found

    monkeypatch.setattr(shutil, "which", which)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _guarded[0] = item.get_closest_marker("starts_processes") is None
    real = time.sleep

    def sleep(seconds: float) -> None:
        if seconds > LONGEST_SLEEP_S:
            pytest.fail(f"a unit test slept {seconds:g} s: use a simulated clock, or mark it starts_processes")
        real(seconds)

    if _guarded[0]:
        time.sleep = sleep
    yield
    time.sleep = real
    _guarded[0] = False
