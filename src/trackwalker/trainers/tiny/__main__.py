"""`python -u -m trackwalker.trainers.tiny <config.yml> key=value …`: one process, one rank."""

from __future__ import annotations

import os
import sys
import traceback

from trackwalker.trainers.tiny.config import ConfigError, load
from trackwalker.trainers.tiny.runtime import Place, say


def main(arguments: list[str]) -> int:
    """Read the configuration, train, and give the exit status; 2 means the configuration is wrong."""
    try:
        config = load(arguments)
        place = Place.from_env(os.environ)
    except ConfigError as error:
        print(f"config-error: {error}", file=sys.stderr, flush=True)
        return 2
    for line in config.lines():
        say(line)
    from trackwalker.trainers.tiny.train import run  # numpy and JAX: only once there is something to train

    return run(config, place)


def _main_or_die() -> None:
    # JAX's exit hook waits minutes for the peers, who wait for us in a collective: after an error, leave at once.
    try:
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        os._exit(130)
    except Exception:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    sys.exit(status)


if __name__ == "__main__":
    _main_or_die()
