"""Work shared out to processes of our own: results in order, errors as they were, a death told."""

from __future__ import annotations

import os
import signal

import pytest

from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.sharing import apart, share_out

pytestmark = pytest.mark.starts_processes


def doubled(share: int) -> tuple[int, int]:
    return 2 * share, os.getpid()


def refused(share: int) -> int:
    raise UsageError(f"not {share}")


def killed(share: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return share


def test_each_share_has_a_process_of_its_own_and_results_keep_their_order() -> None:
    found = share_out(doubled, [3, 1, 2])
    assert [result for result, _ in found] == [6, 2, 4]
    assert len({os.getpid(), *(pid for _, pid in found)}) == 4


def test_what_a_share_says_against_it_is_said_here() -> None:
    with pytest.raises(UsageError, match="not 7"):
        share_out(refused, [7])


def test_a_process_that_was_killed_is_no_result() -> None:
    with pytest.raises(EvidenceError, match="was ended"):
        share_out(killed, [1])


def test_work_for_a_server_has_a_process_of_its_own() -> None:
    result, pid = apart(doubled, 4)
    assert result == 8
    assert pid != os.getpid()
    with pytest.raises(UsageError, match="not 7"):
        apart(refused, 7)
    with pytest.raises(EvidenceError, match="was ended"):
        apart(killed, 1)
