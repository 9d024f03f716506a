"""Which rank failed first: the first bad exit ends the others, as with srun --kill-on-bad-exit, and it is the cause."""

from __future__ import annotations

import signal

from trackwalker.node.agent.peers import RankEnd
from trackwalker.node.agent.ranks import Rank, describe_exit

# A scheduler that cancels a job tells the ranks too, and they may be gone before it tells us: a bad exit is judged a
# moment later, one by a signal that schedulers send after a longer one.
_HASTY_S = 0.2
_TOLD_S = 1.0
_CORE_S = 10.0  # so long a rank that was already writing its core is waited for, whoever ended before it was written
_TOLD = (128 + signal.SIGTERM, 128 + signal.SIGINT)


def end_of(rank: Rank) -> RankEnd:
    """How a rank ended, for others to read."""
    code = rank.exit or 0
    return RankEnd(rank.spec.rank, rank.spec.host, code, rank.failed if rank.ended else 0.0, describe_exit(code))


class Suspects:
    """Bad exits that are still to be judged."""

    def __init__(self, ended: list[Rank]) -> None:
        self.waiting = [r for r in ended if r.exit]

    def guilty(self, now: float, ranks: list[Rank]) -> Rank | None:
        """The first of them to fail, once it is old enough to be judged; the others ended because of it."""
        if not self.waiting:
            return None
        first = min(self.waiting, key=lambda r: (r.failed, r.spec.rank))
        crashed = any(r.exit is None and r.failed < first.failed for r in ranks)
        if crashed and now - (first.ended or 0.0) < _CORE_S:
            return None
        if now - (first.ended or 0.0) < (_TOLD_S if first.exit in _TOLD else _HASTY_S):
            return None
        self.waiting.clear()
        return first
