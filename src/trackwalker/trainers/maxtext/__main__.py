"""`python -u -m trackwalker.trainers.maxtext <config.yml> key=value …`: MaxText's trainer, one process, hooked."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

from trackwalker.trainers.maxtext.hook import install
from trackwalker.trainers.progress import Progress

_TRAINERS = ("maxtext.trainers.pre_train.train", "MaxText.train")


def main() -> int:
    """Run MaxText's own training program under the hook; 2 where it is not installed."""
    module = next((name for name in _TRAINERS if _there(name)), None)
    if module is None:
        print(f"config-error: MaxText is not installed for {sys.executable}: pip install maxtext", file=sys.stderr)
        return 2
    path = os.environ.get("TRACKWALKER_PROGRESS", "")
    progress = Progress(path, int(os.environ.get("NODE_RANK") or 0), os.environ.get("TRACKWALKER_HOST", ""))
    hooked = bool(path) and install(progress)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    if hooked:
        progress.record("done")
    return 0


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


if __name__ == "__main__":
    sys.exit(main())
