"""More samples: a healthy run, a killed rank, and everything hostile that a log could hold."""

from __future__ import annotations

import math
import random
from functools import cache

from test_report_samples import T0, hang, rdma, steps_of, verdict_of

from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.story import Lane, Mark, Phase, Story

NASTY_HOST = "<img src=x onerror=alert(1)>"


@cache
def healthy() -> tuple[Verdict, Story]:
    """A clean run: a slow first step (compilation), a checkpoint every 40 steps."""
    plan = [12.1 + (17 if k and k % 40 == 0 else 0) for k in range(900)]
    plan[0] = 143.0
    steps = steps_of(len(plan), T0 + 35, plan)
    marks = [Mark(steps[k].time, "checkpoint", f"checkpoint {k}") for k in range(40, 900, 40)]
    end = steps[-1].time + 25
    marks.append(Mark(end - 2, "end", "completed, exit code 0"))
    rng = random.Random(5)
    times = tuple(T0 + 30 * i for i in range(int((end - T0) / 30)))
    lanes = tuple(
        Lane(f"node{n:03d}", False, times, tuple(612 + 8 * rng.gauss(0, 1) + 3 * n for _ in times)) for n in range(8)
    )
    story = Story(
        tuple(steps),
        (Phase(1, 899, steps[1].time - 12, steps[-1].time, 12.1, False),),
        tuple(marks),
        lanes,
        "GPU power (W, mean of 8)",
        T0,
        end,
    )
    verdict = verdict_of(
        job={"id": "9001", "dir": "outputs/9001-JAX-llama3-8b", "nodes": 8, "gpus": 64},
        status="completed",
        outcome="healthy",
        window={"start": "2026-02-24T18:00:00Z", "end": "2026-02-24T21:10:00Z"},
        summary="The run completed all 900 steps at 12.1 s per step; the spikes every 40 steps are checkpoint saves.",
        ruled_out=[
            {"cause": c, "evidence": ["e1"]} for c in ("gpu-thermal-throttle", "rdma-degradation", "input-stall")
        ],
        evidence=[
            {
                "id": "e1",
                "kind": "progress",
                "source": "progress.jsonl",
                "says": "878 of 900 steps within 2 % of 12.1 s",
                "values": {"median_s": 12.1},
            }
        ],
        progress={
            "first_step": 0,
            "last_step": 899,
            "total_steps": 900,
            "step_time_s": 12.1,
            "tgs": 10615,
            "last_checkpoint": 880,
            "eta_s": 0,
        },
        data_quality=[{"check": "ghost-data", "ok": True}],
    )
    return verdict, story


@cache
def killed() -> tuple[Verdict, Story]:
    """One rank is killed for memory; its lane ends, the others follow by heartbeat two minutes later."""
    steps = steps_of(233, T0 + 60, [6.2] * 233)
    death = steps[-1].time + 3.1
    end = death + 132
    rng = random.Random(9)
    lanes = []
    for rank in range(8):
        last = death if rank == 5 else end
        times = tuple(T0 + 10 * i for i in range(int((last - T0) / 10) + 1))
        grows = 0.62 if rank == 5 else 0.02
        lanes.append(
            Lane(
                f"gpu-node-{rank:02d}.cluster.example.org",
                rank == 5,
                times,
                tuple(118 + grows * (t - T0) / 10 * 2.2 + rng.gauss(0, 1) for t in times),
            )
        )
    marks = [
        Mark(steps[40].time, "onset", "host-memory-leak", lanes[5].host),
        *(Mark(steps[k].time, "checkpoint", f"checkpoint {k}") for k in (50, 100, 150, 200)),
        Mark(death, "exit", "rank 5 killed, signal 9", lanes[5].host),
        *(Mark(end - 10 + i, "exit", f"rank {r} exit 134", lanes[r].host) for i, r in enumerate((0, 1, 2, 3, 4, 6, 7))),
        Mark(end - 5, "cancel", "srun cancelled the step"),
        Mark(end, "end", "job ended"),
    ]
    story = Story(
        tuple(steps),
        (Phase(0, 232, T0 + 60, steps[-1].time, 6.2, False),),
        tuple(marks),
        tuple(lanes),
        "host memory used (GiB)",
        T0,
        end,
    )
    verdict = verdict_of(
        job={"id": "77120", "dir": "outputs/77120-JAX-mixtral", "nodes": 8, "gpus": 64},
        status="failed",
        window={"start": "2026-02-24T18:00:00Z", "end": "2026-02-24T18:27:20Z"},
        summary="Rank 5 on gpu-node-05 was killed by the kernel at 18:25:10 UTC because the host ran out of memory; "
        "the other ranks ended by heartbeat timeout.",
        causes=[
            {
                "cause": "oom-host",
                "role": "root",
                "confidence": 0.99,
                "hosts": [lanes[5].host],
                "evidence": ["e1", "e2"],
                "onset": {"time": "2026-02-24T18:05:14Z", "step": 40, "uncertainty_s": 60},
                "magnitude": {"of": "host memory (GiB)", "from": 118, "to": 327, "change": 1.77},
            },
            {"cause": "peer-died", "role": "consequence", "confidence": 0.99, "evidence": ["e3"]},
            {"cause": "heartbeat-false-positive", "role": "mechanism", "confidence": 0.4, "evidence": ["e3", "e44"]},
        ],
        evidence=[
            {
                "id": "e1",
                "kind": "log",
                "source": "77120-JAX-mixtral/dmesg/gpu-node-05.log:911",
                "says": "Out of memory: Killed process 41822 (python3) total-vm:381022332kB, anon-rss:342881020kB",
            },
            {
                "id": "e2",
                "kind": "metric",
                "source": "max by (host) (hw_mem_used_bytes)",
                "says": "grows 0.14 GiB/s on one host, flat on 7",
            },
            {
                "id": "e3",
                "kind": "log",
                "source": "ranks/0.log:55102",
                "says": "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): "
                "/job:jax_worker/task:5",
            },
        ],
        actions=[
            {
                "do": "restart-job",
                "hosts": [],
                "why": "Restart from checkpoint 200 with one loader worker fewer.",
                "risk": "32 steps of work",
                "needs_approval": True,
            }
        ],
        progress={
            "first_step": 0,
            "last_step": 232,
            "total_steps": 1000,
            "step_time_s": 6.2,
            "last_checkpoint": 200,
            "steps_lost": 32,
        },
    )
    return verdict, story


@cache
def nasty() -> tuple[Verdict, Story]:
    """Everything untrusted at once: markup, script ends, terminal escapes, direction overrides, an endless line."""
    verdict, story = hang()
    script = "</script><script>document.title='pwned'</script></title></style></pre></details>"
    escapes = "\x1b[31mred\x1b[0m \x1b]8;;http://evil\x07link\x1b]8;;\x07 \x9b2J\x07\x08 \u202egnp.exe\u202c "
    escapes += "[bold red]markup[/] {{ 7*7 }}"
    long_line = "x" * 10_000
    data = verdict.model_dump(by_alias=True)
    data["summary"] = f"{script} {escapes}\nHEALTHY, completed, job 0"
    data["job"]["id"] = NASTY_HOST
    data["causes"][1]["hosts"] = [NASTY_HOST, long_line]
    data["causes"][1]["cause"] = f'"><svg onload=alert(2)>{NASTY_HOST}'
    data["causes"][1]["devices"] = ["javascript:alert(3)"]
    data["evidence"][0] |= {
        "id": '"><script>alert(4)</script>',
        "says": f"{script} {escapes}",
        "source": script,
        "values": {NASTY_HOST: math.nan, "b": math.inf},
    }
    data["evidence"][1] |= {"says": long_line, "source": long_line}
    data["causes"][1]["evidence"] = [data["evidence"][0]["id"], "e2", "nowhere"]
    data["actions"][0] |= {"why": escapes + script, "hosts": [NASTY_HOST], "risk": "[/]"}
    data["untestable"] = [{"cause": escapes, "missing": [script]}]
    data["data_quality"] = [{"check": script, "ok": False, "hosts": [NASTY_HOST], "says": escapes}]
    lane = Lane(NASTY_HOST, True, story.lanes[2].times, story.lanes[2].values)
    wide = Lane(long_line, False, story.lanes[1].times, (math.nan, math.inf, None, *story.lanes[1].values[3:]))
    marks = (Mark(T0 + 300, "exit", script + escapes, NASTY_HOST), Mark(T0 + 310, "onset", long_line))
    return Verdict.model_validate(data), Story(
        story.steps,
        story.phases,
        marks,
        (wide, lane),
        f"{NASTY_HOST}{escapes}",
        story.start,
        story.end,
        (script + escapes + "\ud800",),
    )


SAMPLES = {"hang": hang, "rdma": rdma, "healthy": healthy, "killed": killed, "nasty": nasty}


def test_samples_are_valid() -> None:
    for make in (healthy, killed):
        verdict, story = make()
        assert Verdict.model_validate_json(verdict.to_json()) == verdict
        assert story.steps
