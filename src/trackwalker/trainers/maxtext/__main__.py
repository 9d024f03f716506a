"""`… maxtext CONFIG key=value …`: MaxText's own training program, one process, with our hook around it.

Runs from an installed trackwalker (`python -u -m trackwalker.trainers.maxtext`) and from the agent's zipapp
(`python3 -u agent.pyz maxtext`), which is all there is of us in an image.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

from trackwalker.trainers.maxtext.ending import exit_code, leave
from trackwalker.trainers.maxtext.hook import install
from trackwalker.trainers.maxtext.place import Words, choose_dump, find_place, for_maxtext, prepare_meeting
from trackwalker.trainers.maxtext.traces import separate_traces
from trackwalker.trainers.progress import Progress
from trackwalker.trainers.stacks import listen

_TRAINERS = ("maxtext.trainers.pre_train.train", "MaxText.train")


def main() -> int:
    """Run MaxText's own training program under the hook; 2 where it is not installed."""
    module = next((name for name in _TRAINERS if _there(name)), None)
    if module is None:
        print(f"config-error: MaxText is not installed for {sys.executable}: pip install maxtext", file=sys.stderr)
        return 2
    place, words = find_place(os.environ), Words(sys.argv[1:])
    choose_dump(place, words, os.environ)  # before anything imports JAX
    prepare_meeting(place, words, os.environ)
    separate_traces(place)
    progress = Progress(os.environ.get("TRACKWALKER_PROGRESS", ""), place.rank, os.environ.get("TRACKWALKER_HOST", ""))
    listen(os.environ.get("TRACKWALKER_PROGRESS", ""))
    hook = install(progress)
    sys.argv[1:] = for_maxtext(words, module.partition(".")[0])
    code = _train(module)
    if code == 0:
        progress.record("done")
    progress.close()
    return leave(code, place, hook.commit)


def _train(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as stop:  # MaxText always ends with SystemExit
        return exit_code(stop)
    return 0


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


if __name__ == "__main__":
    sys.exit(main())
