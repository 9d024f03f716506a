"""Flight-recorder dumps: read without running them, and who is behind."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from trackwalker.errors import EvidenceError
from trackwalker.logs.formats.flight_recorder import behind, load

DATA = ROOT.parent / "shared" / "data" / "flight_recorder"


class Hostile:
    """Would create a file if it were ever unpickled by pickle itself."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def dump(rank: int, **groups: tuple[str, int, int]) -> dict[str, Any]:
    """A rank's dump: group -> its ranks as text, the first open collective, how many are queued from there on."""
    entries = [
        {"process_group": [name, name], "collective_seq_id": first + k, "state": "scheduled", "is_p2p": False}
        for name, (_, first, count) in groups.items()
        for k in range(count)
    ]
    config = {name: {"name": name, "desc": name, "ranks": ranks} for name, (ranks, _, _) in groups.items()}
    return {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": entries}


ALL = "[0, 1, 2, 3]"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_come_back_as_they_were(protocol: int) -> None:
    value = {
        "a": [1, -2, 2**40, 1.5, None, True, False],
        "b": ("x", "ü" * 300),
        "c": {3: []},
        "d": (),
        "e": (1, 2, 3, 4),
    }
    assert load(pickle.dumps(value, protocol)) == value


def test_a_json_dump_is_read_too() -> None:
    assert load(b'{"version": "2.9"}') == {"version": "2.9"}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_dump_is_refused_and_runs_nothing(protocol: int, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    with pytest.raises(EvidenceError, match="not read"):
        load(pickle.dumps({"entries": [Hostile(trap)]}, protocol))
    assert not trap.exists()
    pickle.loads(pickle.dumps(Hostile(trap), protocol))  # noqa: S301 - it is ours: this shows that the trap works
    assert trap.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02}(X\xff\xff\xff\x7fabc.",  # a text longer than the file
        b"\x80\x02u.",  # items of nothing
        b"\x80\x02(((((.",
        b"\x80\x02]a.",
        b"\x80\x02h\x07.",  # a memo that was never written
        b"\x80\x02}]s.",
        b"\x80\x02\x82\x01.",  # the extension registry
        b"\x80\x02Pperson\n.",  # a persistent id
        b"cos\nsystem\n(S'true'\ntR.",
        b"{not json",
        bytes(range(64, 128)).replace(b".", b"x"),
    ],
)
def test_damaged_dumps_are_one_clear_error(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        load(data)


def test_the_rank_that_never_entered_the_collective_is_named() -> None:
    dumps = {rank: dump(rank, all=(ALL, 8, 0 if rank == 2 else 2)) for rank in range(4)}
    assert behind(dumps) == {2: "it has not entered collective 8 of all"}


def test_a_rank_that_is_late_because_it_waits_elsewhere_is_a_witness() -> None:
    # 3 is late for its pair with 2; 2 therefore waits there and is late for everybody.
    dumps = {
        0: dump(0, all=(ALL, 5, 1)),
        1: dump(1, all=(ALL, 5, 1)),
        2: dump(2, all=(ALL, 5, 0), pair=("[2, 3]", 9, 1)),
        3: dump(3, all=(ALL, 5, 0), pair=("[2, 3]", 9, 0)),
    }
    assert list(behind(dumps)) == [3]


def test_a_device_that_has_not_finished_what_its_peers_have_is_named() -> None:
    dumps = {rank: dump(rank, all=(ALL, 6 if rank == 1 else 18, 20)) for rank in range(4)}
    assert list(behind(dumps)) == [1]
    assert "has not finished collective 6 of all, which rank 0, 2, 3 has" in behind(dumps)[1]


def test_a_rank_without_a_dump_is_named_when_the_others_wait_for_it() -> None:
    dumps = {rank: dump(rank, all=(ALL, 8, 1)) for rank in (0, 1, 3)}
    assert behind(dumps) == {2: "it left no dump, and the others wait for it in collective 8 of all"}


def test_nobody_is_named_when_nobody_waits_or_half_of_them_are_late() -> None:
    assert behind({rank: dump(rank, all=("[0, 1]", 8, 0)) for rank in range(2)}) == {}
    assert behind({rank: dump(rank, all=("[0, 1]", 8, 3)) for rank in range(2)}) == {}
    assert behind({0: dump(0, all=("[0, 1]", 8, 1)), 1: dump(1, all=("[0, 1]", 8, 0))}) == {}


def test_foreign_values_in_a_dump_are_passed_over() -> None:
    odd: list[Any] = [3, {"process_group": 7}, {"process_group": ["all"], "collective_seq_id": "x"}, {"is_p2p": True}]
    whole = dump(0, all=(ALL, 8, 1))
    dumps = {0: {**whole, "entries": [*odd, *whole["entries"]]}, 1: {"pg_config": 3}, 2: [], 3: {"entries": {}}}
    assert behind(dumps) == {}, "three of four cannot be late"


@pytest.mark.parametrize("case", ["gpu_error_1st", "lock_gil_1st"])
def test_real_dumps_of_injected_faults_are_read(case: str) -> None:
    if not DATA.is_dir():
        pytest.skip("the recorded dumps are kept outside the repository and are not here")
    dumps = {int(path.name.rpartition("_")[2]): load(path.read_bytes()) for path in (DATA / case).glob("_dump_*")}
    assert len(dumps) == 16
    truth = {12, 14} if case == "gpu_error_1st" else {9, 14}
    assert set(behind(dumps)) == truth
