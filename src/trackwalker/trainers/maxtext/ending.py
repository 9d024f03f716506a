"""The end of a training process: JAX may need many minutes to tear down a large model, and nobody needs it to."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from trackwalker.trainers.maxtext.place import Place
from trackwalker.trainers.progress import warn

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
