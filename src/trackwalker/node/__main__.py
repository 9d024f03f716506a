"""Entry of the zipapp: `agent.pyz SPEC [--adopt [--stop]]` on one machine, `agent.pyz node ORDER` on a cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_USAGE = "usage: agent.pyz SPEC.json [--adopt [--stop]] | agent.pyz node ORDER.json"


def main() -> int:
    """Run the agent that the words describe."""
    from trackwalker.job.trust import keep_to_ourselves

    keep_to_ourselves()
    words = [a for a in sys.argv[1:] if a not in ("--adopt", "--stop")]
    if len(words) == 2 and words[0] == "node":
        return _node(Path(words[1]))
    if len(words) != 1:
        print(_USAGE, file=sys.stderr)
        return 2
    from trackwalker.node.agent.agent import Agent
    from trackwalker.node.agent.joining import crew_of, join
    from trackwalker.node.agent.spec import load_spec

    spec = load_spec(Path(words[0]))
    if spec.crew and "hosts" not in spec.crew:
        spec = join(spec)
    return Agent(spec, crew_of(spec)).run(adopt="--adopt" in sys.argv, stop="--stop" in sys.argv)


def _node(path: Path) -> int:
    from trackwalker.node.agent.supervisor import keep
    from trackwalker.node.stages.order import NoSeat, find_seat, load_order

    try:
        order, seat = load_order(path), find_seat(os.environ)
    except NoSeat as e:
        print(f"FATAL: {e}", file=sys.stderr)
        return 2
    except (OSError, ValueError, TypeError, KeyError) as e:
        print(f"FATAL: cannot read the order {path}: {e}", file=sys.stderr)
        return 2

    def work() -> int:
        from trackwalker.node.stages.job import Conductor

        return Conductor(order, seat, path.parent).run()

    return keep(order, seat, work)


if __name__ == "__main__":
    sys.exit(main())
