"""`python -m trackwalker.observe`: the recorder of one job, started by the launcher in a session of its own."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from trackwalker.errors import TrackwalkerError
from trackwalker.job.shards import Shard
from trackwalker.observe.recorder import Recorder


def say(text: str) -> None:
    """One line into our log; a log that cannot be written must not end the recording."""
    # Not print: on a full disk its buffer keeps the line and fails once more at exit.
    with contextlib.suppress(OSError):
        os.write(1, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} recorder: {text}\n".encode())


def main() -> int:
    """Parse the arguments and record."""
    parser = argparse.ArgumentParser(prog="python -m trackwalker.observe", description=__doc__)
    parser.add_argument("--job-dir", type=Path, required=True, help="the job's directory")
    parser.add_argument("--job-id", required=True, help="the job's id, names the node-local folder")
    parser.add_argument("--shard", type=Shard.parse, default=Shard(), help="which part of the nodes, as 3/20")
    parser.add_argument("--node", default="", help="the node this runs on, where it is not the run's first")
    parser.add_argument("--interval", type=int, default=0, help="seconds between scrapes (default: by the run's size)")
    options = parser.parse_args()
    part, node, interval = options.shard, options.node, options.interval
    try:
        return Recorder(options.job_dir, options.job_id, say, shard=part, node=node, scrape_s=interval).run()
    except TrackwalkerError as e:
        say(str(e))
        return e.exit_code
    except OSError as e:
        say(f"cannot record: {e}; set TRACKWALKER_LOCAL to a writable folder on this machine's own disk")
        return 1


if __name__ == "__main__":
    sys.exit(main())
