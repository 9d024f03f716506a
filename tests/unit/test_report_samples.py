"""Realistic verdicts and stories that the report tests (and the browser test) draw, and a check that they are valid."""

from __future__ import annotations

import math
import random

import pytest

from trackwalker.diagnose.story import Lane, Mark, Phase, StepPoint, Story
from trackwalker.diagnose.verdict import Verdict

T0 = 1771956000.0  # 2026-02-24 18:00:00 UTC
NASTY_HOST = "<img src=x onerror=alert(1)>"


def _verdict(**parts: object) -> Verdict:
    base: dict[str, object] = {
        "job": {"id": "8308", "dir": "outputs/8308-JAX-ds-proxy", "nodes": 4, "gpus": 4},
        "window": {"start": "2026-02-24T18:00:00Z", "end": "2026-02-24T22:10:00Z"},
        "status": "running",
        "outcome": "incident",
        "summary": "something",
        "cost": {"seconds": 2.1, "queries": 31, "bytes_read": 18234567},
    }
    return Verdict.model_validate(base | parts)


def _steps(count: int, start: float, speed: list[float], first: int = 0) -> list[StepPoint]:
    """`count` steps whose time follows `speed` (one entry per step), with a little deterministic noise."""
    rng = random.Random(7)
    points, clock = [], start
    for i in range(count):
        took = speed[i] * (1 + rng.gauss(0, 0.006))
        clock += took
        points.append(StepPoint(first + i, clock, took, 128450 / took))
    return points


def hang() -> tuple[Verdict, Story]:
    """Training, then silence: one of four ranks sits in a data loader, the others wait for it."""
    steps = _steps(412, T0 + 48, [1.9] + [1.42] * 411)
    stop, end = steps[-1].time, steps[-1].time + 610
    rng = random.Random(3)
    lanes = []
    for rank in range(4):
        times = tuple(T0 + 5 * i for i in range(int((end - T0) / 5)))
        accused = rank == 2
        busy = [
            (0.0 if accused else 100.0) if t > stop else 88 + rng.gauss(0, 3) if t > T0 + 48 else 6 + rng.random() * 4
            for t in times
        ]
        lanes.append(Lane(f"box-r{rank}", accused, times, tuple(busy)))
    marks = [Mark(T0 + 48 + 142 * k, "checkpoint", f"checkpoint {100 * k}") for k in range(1, 5)]
    marks.append(Mark(stop + 2, "onset", "dataloader-hang on box-r2", "box-r2"))
    story = Story(
        steps=tuple(steps),
        phases=(Phase(0, 411, T0 + 48, stop, 1.42, False),),
        marks=tuple(marks),
        lanes=tuple(lanes),
        lane_metric="GPU utilisation (%)",
        start=T0,
        end=end,
        notes=("box-r2 still answered its metrics endpoint until the end of the window.",),
    )
    verdict = _verdict(
        job={"id": "412", "dir": "outputs/412-tiny-hang", "nodes": 4, "gpus": 4},
        window={"start": "2026-02-24T18:00:00Z", "end": "2026-02-24T18:20:44Z"},
        status="hanging",
        summary="The job hangs since 18:10:34 UTC after step 411: box-r2 waits in its data loader, "
        "the other three ranks wait for box-r2 in an all-reduce.",
        causes=[
            {
                "cause": "collective-hang",
                "role": "consequence",
                "confidence": 0.98,
                "evidence": ["e4"],
                "onset": {"time": "2026-02-24T18:10:36Z", "step": 412},
            },
            {
                "cause": "dataloader-hang",
                "role": "root",
                "confidence": 0.96,
                "hosts": ["box-r2"],
                "onset": {"time": "2026-02-24T18:10:34Z", "step": 412, "uncertainty_s": 5},
                "evidence": ["e1", "e2", "e4"],
            },
        ],
        ruled_out=[
            {"cause": "gpu-hardware-fault", "evidence": ["e5"]},
            {"cause": "network-link-down", "evidence": ["e3"]},
        ],
        untestable=[{"cause": "storage-degradation", "missing": ["file system latency"]}],
        evidence=[
            {
                "id": "e1",
                "kind": "metric",
                "source": "avg by (host) (hw_gpu_utilization_percent)",
                "says": "box-r2 is at 0 % from 18:10:35, the other three hosts at 100 %",
                "values": {"box-r2": 0, "others_min": 100},
            },
            {
                "id": "e2",
                "kind": "log",
                "source": "ranks/2.log:88214",
                "says": '  File "/usr/lib/python3.11/queue.py", line 180, in get: self.not_empty.wait(remaining)',
            },
            {
                "id": "e3",
                "kind": "metric",
                "source": "sum by (host) (increase(hw_rdma_tx_retx_pkts_total[10m]))",
                "says": "no retransmission on any host",
                "values": {"max": 0},
            },
            {
                "id": "e4",
                "kind": "progress",
                "source": "progress.jsonl:412",
                "says": "ranks 0, 1, 3 entered step 412; rank 2 did not",
            },
            {
                "id": "e5",
                "kind": "metric",
                "source": "max by (host) (hw_gpu_ecc_uncorrectable_total)",
                "says": "no uncorrectable memory error on any GPU",
                "values": {"max": 0},
            },
        ],
        actions=[
            {
                "do": "capture-stacks",
                "hosts": ["box-r2"],
                "why": "Save the stack of rank 2 before anything is stopped.",
                "risk": "",
                "needs_approval": False,
            },
            {
                "do": "restart-job",
                "hosts": [],
                "why": "Restart from the checkpoint of step 400; 12 steps are lost.",
                "risk": "12 steps of work",
                "needs_approval": True,
            },
        ],
        progress={
            "first_step": 0,
            "last_step": 411,
            "total_steps": 5000,
            "step_time_s": 1.42,
            "tgs": 90457,
            "last_checkpoint": 400,
            "steps_lost": 12,
        },
        data_quality=[{"check": "ghost-data", "ok": True}, {"check": "clock-skew", "ok": True}],
    )
    return verdict, story


def rdma() -> tuple[Verdict, Story]:
    """24 hosts, two of them retransmit in two phases; throughput falls twice and recovers in between."""
    plan = [39.0] * 97 + [49.0] * 92 + [39.2] * 60 + [44.5] * 70
    steps = _steps(len(plan), T0 + 210, plan)
    edges = [(0, 96, False, 39.0), (97, 188, True, 49.0), (189, 248, False, 39.2), (249, 318, True, 44.5)]
    phases = [Phase(a, b, steps[a].time - steps[a].seconds, steps[b].time, s, slow) for a, b, slow, s in edges]
    end = steps[-1].time + 40
    rng = random.Random(11)
    lanes = []
    for n in range(24):
        host, times, values = f"chi28{n + 10:02d}", [], []
        for i in range(int((end - T0) / 30)):
            t = T0 + 30 * i
            bad = (n == 12 and phases[1].start <= t <= phases[1].end) or (
                n == 17 and phases[3].start <= t <= phases[3].end
            )
            times.append(t)
            missing = n == 5 and 4000 < t - T0 < 5200
            values.append(None if missing else 340 + rng.gauss(0, 60) if bad else max(0.0, rng.gauss(0, 1.5)))
        lanes.append(Lane(host, n in (12, 17), tuple(times), tuple(values)))
    marks = [
        Mark(phases[1].start, "onset", "rdma-degradation on chi2822", "chi2822"),
        Mark(phases[3].start, "onset", "rdma-degradation on chi2827", "chi2827"),
        *(Mark(steps[k].time, "checkpoint", f"checkpoint {k}") for k in range(50, 319, 50)),
    ]
    story = Story(
        tuple(steps), tuple(phases), tuple(marks), tuple(lanes), "RDMA retransmitted packets per second", T0, end
    )
    verdict = _verdict(
        job={"id": "8308", "dir": "outputs/8308-JAX-ds-proxy", "nodes": 24, "gpus": 192},
        summary="Two hosts lose RDMA packets one after the other: chi2822 from 19:06:34 to 20:21:40 UTC (step time +26 %), "
        "chi2827 since 21:00:50 UTC (+14 %). The other 22 hosts only wait for them.",
        causes=[
            {
                "cause": "rdma-degradation",
                "role": "root",
                "confidence": 0.97,
                "hosts": ["chi2822"],
                "devices": ["chi2822/ionic_3"],
                "onset": {"time": "2026-02-24T19:06:34Z", "step": 97, "uncertainty_s": 20},
                "magnitude": {"of": "tgs", "from": 3293, "to": 2620, "change": -0.204},
                "evidence": ["e3", "e7"],
            },
            {
                "cause": "rdma-degradation",
                "role": "root",
                "confidence": 0.997,
                "hosts": ["chi2827"],
                "devices": ["chi2827/ionic_0"],
                "onset": {"time": "2026-02-24T21:00:50Z", "step": 249, "uncertainty_s": 40},
                "magnitude": {"of": "step_time_s", "from": 39.2, "to": 44.5, "change": 0.135},
                "evidence": ["e4"],
            },
            {
                "cause": "gpu-clock-degraded",
                "role": "masked",
                "confidence": 0.61,
                "hosts": ["chi2815"],
                "evidence": ["e9"],
            },
        ],
        ruled_out=[
            {"cause": "gpu-thermal-throttle", "evidence": ["e9"]},
            {"cause": "fabric-congestion", "evidence": ["e3", "e4"]},
        ],
        untestable=[
            {"cause": "input-stall", "missing": ["dataloader wait time"]},
            {"cause": "congestion-control-misconfigured", "missing": ["switch counters", "DCQCN settings of the NICs"]},
        ],
        evidence=[
            {
                "id": "e3",
                "kind": "metric",
                "source": "sum by (host) (increase(hw_rdma_tx_retx_pkts_total[2m]))",
                "says": "chi2822 retransmits from 19:06:34 to 20:21:40, 23 other hosts at zero",
                "values": {"chi2822": 41233, "others_max": 12},
            },
            {
                "id": "e4",
                "kind": "metric",
                "source": 'sum by (host, device) (increase(hw_rdma_tx_retx_pkts_total{host="chi2827"}[2m]))',
                "says": "chi2827 retransmits on ionic_0 since 21:00:50",
                "values": {"chi2827/ionic_0": 38112},
            },
            {
                "id": "e7",
                "kind": "log",
                "source": "8308-JAX-ds-proxy.log:18221",
                "says": "chi2822: [ionic_rdma] ionic_3: qp 0x4a1 retransmit timeout, retry count 5 of 7",
            },
            {
                "id": "e9",
                "kind": "metric",
                "source": 'max by (host) (hw_gpu_temperature_celsius{sensor="junction"})',
                "says": "no GPU above 84 °C; throttle counters did not move",
                "values": {"max": 83.6},
            },
        ],
        actions=[
            {
                "do": "exclude-nodes",
                "hosts": ["chi2822", "chi2827"],
                "risk": "capacity: 22 of 24 nodes remain",
                "needs_approval": True,
                "why": "Restart from checkpoint 300 without the two hosts; 18 steps are lost.",
            },
            {
                "do": "run-fabric-test",
                "hosts": ["chi2822", "chi2827"],
                "risk": "",
                "needs_approval": False,
                "why": "Confirm the port before the repair ticket: ib_write_bw between each accused port and a clean one.",
            },
        ],
        progress={
            "first_step": 0,
            "last_step": 318,
            "total_steps": 5000,
            "step_time_s": 44.5,
            "tgs": 2886,
            "last_checkpoint": 300,
            "steps_lost": 18,
            "eta_s": 208349,
        },
        data_quality=[
            {"check": "ghost-data", "ok": True},
            {"check": "clock-skew", "ok": True},
            {"check": "scrape-gaps", "hosts": ["chi2815"], "ok": False, "says": "no sample for 20 min from 19:06:40"},
        ],
    )
    return verdict, story


def healthy() -> tuple[Verdict, Story]:
    """A clean run: a slow first step (compilation), a checkpoint every 40 steps."""
    plan = [12.1 + (17 if k and k % 40 == 0 else 0) for k in range(900)]
    plan[0] = 143.0
    steps = _steps(len(plan), T0 + 35, plan)
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
    verdict = _verdict(
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


def killed() -> tuple[Verdict, Story]:
    """One rank is killed for memory; its lane ends, the others follow by heartbeat two minutes later."""
    steps = _steps(233, T0 + 60, [6.2] * 233)
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
    verdict = _verdict(
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
                "says": "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/task:5",
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


def nasty() -> tuple[Verdict, Story]:
    """Everything untrusted at once: markup, script ends, terminal escapes, direction overrides, an endless line."""
    verdict, story = hang()
    script = "</script><script>document.title='pwned'</script></title></style></pre></details>"
    escapes = "\x1b[31mred\x1b[0m \x1b]8;;http://evil\x07link\x1b]8;;\x07 \x9b2J\x07\x08 \u202egnp.exe\u202c [bold red]markup[/] {{ 7*7 }}"
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


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_valid_verdicts(name: str) -> None:
    verdict, story = SAMPLES[name]()
    assert Verdict.model_validate_json(verdict.to_json()).summary == verdict.summary or name == "nasty"
    assert story.steps
    assert story.lanes
