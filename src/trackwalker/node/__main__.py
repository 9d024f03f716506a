"""Entry of the zipapp: `agent.pyz SPEC [--adopt [--stop]]`."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Run the agent described by the spec file."""
    arguments = [a for a in sys.argv[1:] if a not in ("--adopt", "--stop")]
    if len(arguments) != 1:
        print("usage: agent.pyz SPEC.json [--adopt [--stop]]", file=sys.stderr)
        return 2
    from trackwalker.node.agent import Agent
    from trackwalker.node.spec import load_spec

    return Agent(load_spec(Path(arguments[0]))).run(adopt="--adopt" in sys.argv, stop="--stop" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
