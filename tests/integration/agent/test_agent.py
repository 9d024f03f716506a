"""The real agent, as the zipapp that is shipped, with small programs as ranks: how runs end, and who survives whom."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_run import Run, wait_for

from trackwalker.job.processes import is_live
from trackwalker.launch.code.bundle import build_agent
from trackwalker.logs.scanning.index import index_logs

pytestmark = [pytest.mark.timeout(60)]

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
TELLS = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: (print('got TERM', flush=True), sys.exit(0))); "
    + SLEEP
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_agent(tmp_path_factory.mktemp("bundle") / "agent.pyz")


@pytest.fixture
def start(tmp_path: Path, bundle: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*programs: str, grace_s: float = 10.0) -> Run:
        runs.append(Run(tmp_path, bundle, list(programs), grace_s))
        return runs[-1]

    yield begin
    for run in runs:
        left = run.left_over()
        for line in left:
            with contextlib.suppress(OSError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        run.agent.kill()
        run.agent.wait()
        assert left == [], "processes were left behind"


def test_normal_end_keeps_every_byte(start: Callable[..., Run]) -> None:
    long = "import sys; w = sys.stdout.buffer; w.write(b'begin\\n' + b'z' * 3_000_000 + b'\\n' + bytes(range(256)))"
    burst = "print(''.join(f'{n} {\"x\" * 40}\\n' for n in range(60_000)), end='end without newline')"
    run = start(long, burst)
    assert run.ends() == 0
    facts = index_logs(run.log).facts
    assert facts.summary is not None
    assert (facts.summary.exit, facts.exits, facts.first_failure) == (0, [], None)
    merged = run.log.read_bytes()
    first = b"".join(line[3:] for line in merged.split(b"\n") if line.startswith(b"0: "))
    assert first == b"begin" + b"z" * 3_000_000 + bytes(range(256)).replace(b"\n", b"")
    second = re.findall(rb"^1: (.*)$", merged, re.M)
    assert second == [b"%d %s" % (n, b"x" * 40) for n in range(60_000)] + [b"end without newline"]
    assert sorted(p.name for p in (run.dir / "ranks").iterdir()) == ["0.log", "1.log"]
    own = (run.dir / "ranks" / "1.log").read_bytes().splitlines()
    assert [line[25:] for line in own] == second
    assert not is_live(run.dir / "agent" / "state.json")


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_the_first_failing_rank_ends_the_others_and_is_named(start: Callable[..., Run], how: str) -> None:
    run = start(TELLS, "import sys, time; print('up'); time.sleep(0.5); sys.exit(3)" if how == "exit" else SLEEP, TELLS)
    run.up()
    if how == "kill":
        os.kill(run.main(1), signal.SIGKILL)
    code, cause = (3, "exited with code 3") if how == "exit" else (137, "killed by SIGKILL")
    assert run.ends() == code
    facts = index_logs(run.log).facts
    assert facts.first_failure is not None
    assert (facts.first_failure.rank, facts.first_failure.host, facts.first_failure.code) == (1, "box-r1", code)
    assert facts.first_failure.cause == cause
    assert [(e.rank, e.code) for e in facts.exits] == [(1, code)]
    assert facts.summary is not None
    assert (facts.summary.exit, facts.summary.reason) == (code, f"Training FAILED (exit={code})")
    assert run.text.count("got TERM") == 2
    (failure,) = run.events("first-failure")
    assert (failure["rank"], failure["data"]) == (1, {"exit": code, "cause": cause})
    assert {e["rank"]: e["data"]["exit"] for e in run.events("rank-exit")} == {0: 0, 1: code, 2: 0}
    assert [e["data"]["exit"] for e in run.events("run-end")] == [code]


def test_cancel_ends_willing_deaf_and_stopped_ranks(start: Callable[..., Run]) -> None:
    run = start(TELLS, DEAF, TELLS, grace_s=1.0)
    run.up()
    os.kill(run.main(2), signal.SIGSTOP)
    run.agent.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert run.ends() == 143
    assert 0.9 < time.monotonic() - began < 8
    assert "Status: FAILED (exit 143) — CANCELLED (scancel / SIGTERM)" in run.text
    assert run.text.count("got TERM") == 2  # the stopped one was continued and could obey
    assert {e["rank"]: e["data"]["exit"] for e in run.events("rank-exit")} == {0: 0, 1: 137, 2: 0}
    assert run.events("first-failure") == []


COUNTS = "import time\nprint('up')\nfor n in range(900):\n    print('line', n)\n    time.sleep(0.004)\n"


def test_ranks_outlive_the_agent_and_a_new_one_takes_over(start: Callable[..., Run]) -> None:
    run = start(COUNTS, COUNTS + "time.sleep(2)\nraise SystemExit(5)")
    run.up()
    for restarts in (1, 2, 3):
        time.sleep(0.2)
        run.agent.kill()
        run.agent.wait()
        raw = run.dir / "ranks" / "0.out"
        size = raw.stat().st_size
        wait_for(lambda raw=raw, size=size: raw.stat().st_size > size)  # nobody reads, and still they write
        run.start("--adopt")
        wait_for(lambda restarts=restarts: len(run.events("agent-restart")) == restarts)
    assert run.ends() == 5
    for rank in (0, 1):
        lines = re.findall(rf"^{rank}: line (\d+)$", run.text, re.M)
        own = (run.dir / "ranks" / f"{rank}.log").read_text()
        assert re.findall(r"line (\d+)$", own, re.M) == lines
        assert lines == [str(n) for n in range(900)]
    assert run.text.count("JOB SUMMARY") == 1
    assert run.text.count("== Training BEGIN") == 1
    facts = index_logs(run.log).facts
    assert facts.first_failure is not None
    assert (facts.first_failure.rank, facts.first_failure.code) == (1, 5)


def test_a_rank_that_ended_while_nobody_watched(start: Callable[..., Run]) -> None:
    """The exit files tell the codes and the order, although the later ones were consequences."""
    program = "import sys, time; print('up'); time.sleep({wait}); print('bye'); sys.exit({code})"
    run = start(program.format(wait=1.6, code=7), program.format(wait=1.0, code=4))
    run.up()
    run.agent.kill()
    run.agent.wait()
    wait_for(lambda: all((run.dir / "ranks" / f"{r}.exit").exists() for r in (0, 1)))
    run.start("--adopt")
    assert run.ends() == 4
    facts = index_logs(run.log).facts
    assert facts.first_failure is not None
    assert (facts.first_failure.rank, facts.first_failure.code) == (1, 4)
    assert [(e.rank, e.code) for e in facts.exits] == [(1, 4), (0, 7)]
    assert run.text.count("bye") == 2


@pytest.mark.parametrize("why", ["failure", "cancel", "told on the way in"])
def test_an_agent_killed_while_it_ends_the_run_is_replaced_in_the_same_mind(
    start: Callable[..., Run], why: str
) -> None:
    run = start(
        DEAF, "import sys, time; print('up'); time.sleep(0.6); sys.exit(3)" if why == "failure" else DEAF, grace_s=1.0
    )
    run.up()
    if why == "cancel":
        run.agent.send_signal(signal.SIGTERM)
    if why != "told on the way in":
        wait_for(lambda: run.events("stop"))
    run.agent.kill()
    run.agent.wait()
    run.start("--adopt", *(["--stop"] if why == "told on the way in" else []))
    assert run.ends() == (3 if why == "failure" else 143)
    assert len(run.events("first-failure")) == (1 if why == "failure" else 0)
    assert ("FIRST_FAILURE rank=1" in run.text) == (why == "failure")
    assert ("CANCELLED" in run.text) == (why != "failure")
    exits = {e["rank"]: e["data"]["exit"] for e in run.events("rank-exit")}
    assert exits == {0: 137, 1: 3 if why == "failure" else 137}


def test_what_a_rank_forked_is_gone_at_the_end(start: Callable[..., Run], tmp_path: Path) -> None:
    looked_at = tmp_path / "looked-at"
    forks = (
        "import os, subprocess, sys; sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "subprocess.Popen(sleep); subprocess.Popen(sleep, start_new_session=True); print('up')\n"
        f"import time\nwhile not os.path.exists({str(looked_at)!r}): time.sleep(0.05)"
    )
    run = start(forks)
    run.up()
    assert len(run.left_over()) >= 4, "shell, rank, child and the one in a session of its own"
    looked_at.touch()
    assert run.ends() == 0
    assert run.left_over() == []


@pytest.mark.parametrize("trouble", ["full", "gone", "unwritable"])
def test_trouble_with_the_job_directory_does_not_reach_the_ranks(
    start: Callable[..., Run], tmp_path: Path, trouble: str
) -> None:
    done = tmp_path / "done"
    count = "import time\nprint('up')\nfor n in range(150):\n    print('line', n)\n    time.sleep(0.01)\n"
    program = f"{count}open({str(done)!r}, 'w')"
    run = start(program)
    run.up()
    if trouble == "full":
        resource.prlimit(run.agent.pid, resource.RLIMIT_FSIZE, (run.log.stat().st_size + 100,) * 2)
    elif trouble == "gone":
        while run.dir.exists():  # the agent's own probe of this directory comes and goes meanwhile
            shutil.rmtree(run.dir, ignore_errors=True)
    else:
        shutil.rmtree(run.dir / "agent")
        (run.dir / "agent").write_text("a file stands where the directory was")
    assert run.ends() == 0
    assert done.exists(), "the rank did not get to its end"
    if trouble == "full":  # what did not fit into the logs is still in the raw file
        raw = (run.dir / "ranks" / "0.out").read_text()
        assert re.findall(r"^line (\d+)$", raw, re.M) == [str(n) for n in range(150)]


def metrics(run: Run) -> dict[str, float]:
    (targets,) = json.loads((run.dir / "agent" / "targets" / "box.json").read_text())
    assert targets["labels"] == {"job_id": "local_1_1_ab", "__metrics_path__": "/jobs/local_1_1_ab/metrics"}
    with urllib.request.urlopen(f"http://{targets['targets'][0]}/metrics", timeout=5) as answer:
        rows = [line.split(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {row[0]: float(row[1]) for row in rows}


def test_metrics_of_every_lane_while_it_runs(start: Callable[..., Run]) -> None:
    step = "completed step: 4, seconds: 0.25, TFLOP/s/device: 1.0, Tokens/s/device: 99.5, total_weights: 1, loss: nan"
    run = start(f"print({step!r}); {SLEEP}", "print('up'); import time; time.sleep(1)", SLEEP)
    run.up()
    wait_for(lambda: metrics(run)['tb_step{host="box-r0",rank="0"}'] == 4)
    os.kill(run.main(2), signal.SIGSTOP)
    wait_for(lambda: metrics(run)['hw_rank_stopped{host="box-r2",rank="2"}'] == 1)
    now = metrics(run)
    assert now['tb_perf_per_device_tokens_per_sec{host="box-r0",rank="0"}'] == 99.5
    assert now['hw_rank_stopped{host="box-r0",rank="0"}'] == 0
    assert now['hw_mem_rss_bytes{host="box-r0"}'] > 1_000_000
    assert now['hw_collector_up{host="box",collector="lane"}'] == 1
    assert 'hw_procs_running{host="box"}' in now
    wait_for(lambda: metrics(run)['hw_rank_up{host="box-r1",rank="1"}'] == 0)
    assert metrics(run)['hw_rank_up{host="box-r0",rank="0"}'] == 1
    assert 'hw_mem_rss_bytes{host="box-r1"}' not in metrics(run)
    run.agent.send_signal(signal.SIGTERM)
    assert run.ends() == 143
