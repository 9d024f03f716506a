"""Ranks compared on real traces: three JAX processes with gloo between them, one of which has more to do."""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jax_ranks import run_ranks
from trace_maker import Recipe, write_ranks

from trackwalker.errors import UnreachableError
from trackwalker.job.processes import free_port
from trackwalker.perf.formats.xplane import TraceFile
from trackwalker.perf.hlo.collectives import by_kind, program_collectives
from trackwalker.perf.hlo.proto import read_proto
from trackwalker.perf.ranks.compare import compare
from trackwalker.perf.ranks.gather import gather

pytestmark = [pytest.mark.timeout(240)]
RANKS, SLOW, TIMES = 3, 1, 25
RAY_HEAD = """
import sys
import ray
ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=sys.argv[1])
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
# In a process of its own: Ray reads its settings once in the life of a process.
ON_RAY = """
import pickle, sys
from pathlib import Path
from trackwalker.perf.ranks.gather import gather
Path(sys.argv[2]).write_bytes(pickle.dumps(gather([Path(p) for p in sys.argv[3:]], ray=sys.argv[1])))
"""
STEPS = 8  # of traced_rank.py


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A trace of each rank."""
    pytest.importorskip("jax")
    for _ in range(3):  # beside a foreign load JAX's profiler may end without the end of the last step
        folder = tmp_path_factory.mktemp("ranks")
        run_ranks("traced_rank.py", RANKS, folder, SLOW, TIMES)
        found = sorted(folder.rglob("*.xplane.pb"))
        if all(len(table.steps) == STEPS for table in gather(found)[0]):
            break
    return found


def test_the_rank_with_more_to_do_is_named_with_its_cause(traces: list[Path]) -> None:
    tables, gaps = gather(traces)
    assert gaps == []
    assert len(tables) == RANKS
    across = compare(tables)
    assert across.stragglers, across.arrivals.last.sum(axis=1)
    straggler = across.stragglers[0]
    assert straggler.rank == SLOW
    assert straggler.cause == "compute"
    assert straggler.work is not None
    assert straggler.work > 3
    assert straggler.share > 0.1
    assert "more work" in straggler.says


def test_steps_collectives_and_sums_of_every_rank_are_those_that_ran(traces: list[Path]) -> None:
    tables, _ = gather(traces)
    for table in tables:
        assert [s.number for s in table.steps] == list(range(STEPS))
        assert [b.total for b in table.buckets] == [s.span for s in table.steps]
        assert len(table.calls) == STEPS
        planned = next(iter(table.planned.values()))
        assert (planned.kind, planned.bytes, planned.groups) == ("all-reduce", 384 * 384 * 4, (tuple(range(RANKS)),))
    fast = [t for i, t in enumerate(tables) if i != SLOW]
    # Who has less to do spends its step in the collective, waiting.
    assert all(sum(b.exposed_comm for b in t.buckets) > sum(b.compute for b in t.buckets) for t in fast)
    (row,) = compare(tables).collectives
    assert row.wait_ps > 0
    assert row.algbw_gb_s


def test_the_program_of_the_run_is_in_its_trace(traces: list[Path]) -> None:
    trace = TraceFile(traces[0]).trace
    (number,) = [n for n, name in trace.program_names.items() if name == "jit_train_step"]
    assert by_kind(program_collectives(read_proto(trace.programs[number]))) == {"all-reduce": 1}


@pytest.fixture
def ray_cluster() -> Iterator[tuple[str, dict[str, str]]]:
    """A Ray of the test's own on the loopback interface, with a token made for it; it leaves with its first process."""
    pytest.importorskip("ray")
    folder = Path(tempfile.mkdtemp(prefix="tw-ray-"))  # short: Ray's sockets live in it
    (folder / "token").write_text(secrets.token_hex(32))
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY")}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    words = [sys.executable, "-c", RAY_HEAD, str(folder)]
    head = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert head.stdout is not None
        yield head.stdout.readline().strip(), env
    finally:
        head.communicate()  # end of input: it shuts the cluster down
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long(reason="a Ray cluster of its own; test_ray.py starts one beside a run")
def test_ranks_are_reduced_on_ray_to_the_same_tables(ray_cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, env = ray_cluster
    _, paths = write_ranks(Recipe(gpus=3, slow={2: 1.5}), tmp_path)
    damaged = tmp_path / "host0.proc9.xplane.pb"
    damaged.write_bytes(b"")
    words = [sys.executable, "-c", ON_RAY, address, str(tmp_path / "tables"), *map(str, [*paths, damaged])]
    run = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    there, gaps = pickle.loads((tmp_path / "tables").read_bytes())  # noqa: S301 - written by this test
    here, _ = gather(paths)
    assert [gap.what for gap in gaps] == ["the ranks of host0.proc9.xplane.pb"]
    assert [table.buckets for table in there] == [table.buckets for table in here]
    assert compare(there).stragglers == compare(here).stragglers
    assert [s.rank for s in compare(there).stragglers] == [2]


def test_a_ray_that_does_not_answer_is_one_plain_line(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    _, paths = write_ranks(Recipe(gpus=2), tmp_path)
    with pytest.raises(UnreachableError, match="no Ray cluster answers"):
        gather(paths, ray=f"127.0.0.1:{free_port()}")
