"""`… maxtext CONFIG key=value …`: MaxText's own training program, one process, with our hook around it.

Runs from an installed trackwalker (`python -u -m trackwalker.trainers.maxtext`) and from the agent's zipapp
(`python3 -u agent.pyz maxtext`), which is all there is of us in an image.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from trackwalker.trainers.maxtext.hook import install
from trackwalker.trainers.maxtext.place import Place, Words, choose_dump, find_place, for_maxtext, prepare_meeting
from trackwalker.trainers.maxtext.traces import separate_traces
from trackwalker.trainers.progress import Progress, warn
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


OPT_OUT = "MAXTEXT_FAST_EXIT"


def exit_code(stop: BaseException) -> int:
    """What Python would exit with; what it would print is printed."""
    if isinstance(stop, SystemExit):
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    traceback.print_exception(type(stop), stop, stop.__traceback__)
    return 130 if isinstance(stop, KeyboardInterrupt) else 1


def leave(code: int, place: Place, commit: Callable[[], None], env: Mapping[str, str] = os.environ) -> int:
    """End the process once nothing is under way that has to be kept; returns where the ordinary end was asked for."""
    if env.get(OPT_OUT, "1").lower() in ("0", "false"):
        return code
    if code == 0:
        _settle(commit)
        _part(place)
    elif place.world == 1:
        return code  # nobody waits for this end
    # A process that failed would wait for the others to shut down, and they for its next collective. It goes at once,
    # and is seen to be the first.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _settle(commit: Callable[[], None]) -> None:
    """Wait for saves in the background: MaxText does not when it ends for want of data."""
    try:
        commit()
    except Exception as error:
        warn(f"the last checkpoint may be incomplete: {' '.join(str(error).split()) or type(error).__name__}")


def _part(place: Place) -> None:
    """All processes leave together: the first holds the service that the others would miss."""
    if place.world == 1:
        return
    try:
        distributed: Any = importlib.import_module("jax.distributed")
        distributed.shutdown()
    except Exception as error:  # the run is over and was a success
        warn(f"the processes did not part in order: {' '.join(str(error).split())}")


if __name__ == "__main__":
    sys.exit(main())
