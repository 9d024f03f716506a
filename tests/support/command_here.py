"""A command of ours in the test's own process: the same words and environment, without a fresh Python for each call.

A Python that reads all modules costs half a second to a second of CPU; tests that call ten commands in a row are about
what the commands say. What a shell sees of the program itself is for the tests that start it.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from trackwalker.cli.app import main


def call_here(env: Mapping[str, str], *words: str, cwd: Path | None = None) -> CompletedProcess[str]:
    """Exit code, output and errors of `trackwalker WORDS` in this environment."""
    argv = ["trackwalker", *words]
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(env):
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", argv)
        if cwd is not None:
            patch.chdir(cwd)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                code: object = 0
            except SystemExit as ended:
                code = ended.code or 0
    told = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return CompletedProcess(argv, int(str(code)), *told)
