"""A unit test starts no process and does not wait: what it asks is answered by this process, in milliseconds.

A test that needs a real program (git, a shell, a stand-in for `sacct`) says so with the marker `starts_processes`, one
whose subject is time with `real_clock`; they run with `make test`, not with `make check`.
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


class UnitRules:
    """A pytest plug-in that holds every test with the marker `unit` to them."""

    def __init__(self) -> None:
        self._guarding = False
        sys.addaudithook(self._refuse)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if item.get_closest_marker("unit") is None:
            yield
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "sleep", _short_sleep(time.sleep))
            patch.setattr(shutil, "which", _without_schedulers(shutil.which))
            self._guarding = True
            yield
            self._guarding = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """What is taken down here may be another test's: a session's fixtures end with its last test."""
        self._guarding = False

    def _refuse(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._guarding and event in _EVENTS:
            self._guarding = False  # the failure's own report may start what it needs
            pytest.fail(f"a unit test started a process ({event} {arguments[:2]}): mark it starts_processes")


def _short_sleep(real: Any) -> Any:
    def sleep(seconds: float) -> None:
        if seconds > LONGEST_SLEEP_S:
            pytest.fail(f"a unit test slept {seconds:g} s: use a simulated clock, or mark it real_clock")
        real(seconds)

    return sleep


def _without_schedulers(real: Any) -> Any:
    """Triage asks `sacct` where there is one; what this machine's would say is no part of a test."""

    def which(name: Any, mode: int = os.F_OK | os.X_OK, path: Any = None) -> Any:
        found = real(name, mode, path)
        of_this_machine = found and str(found).startswith("/usr/") and os.path.basename(found) in _SCHEDULERS
        return None if of_this_machine else found

    return which
