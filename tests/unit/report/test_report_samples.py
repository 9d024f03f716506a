"""Realistic incidents that the report tests (and the browser test) draw: a hang and a slow network."""

from __future__ import annotations

import random
from functools import cache

from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.story import Lane, Mark, Phase, StepPoint, Story

T0 = 1771956000.0  # 2026-02-24 18:00:00 UTC


def verdict_of(**parts: object) -> Verdict:
    base: dict[str, object] = {
        "job": {"id": "8308", "dir": "outputs/8308-JAX-ds-proxy", "nodes": 4, "gpus": 4},
        "window": {"start": "2026-02-24T18:00:00Z", "end": "2026-02-24T22:10:00Z"},
        "status": "running",
        "outcome": "incident",
        "summary": "something",
        "cost": {"seconds": 2.1, "queries": 31, "bytes_read": 18234567},
    }
    return Verdict.model_validate(base | parts)


def steps_of(count: int, start: float, speed: list[float], first: int = 0) -> list[StepPoint]:
    """`count` steps whose time follows `speed` (one entry per step), with a little deterministic noise."""
    rng = random.Random(7)
    points, clock = [], start
    for i in range(count):
        took = speed[i] * (1 + rng.gauss(0, 0.006))
        clock += took
        points.append(StepPoint(first + i, clock, took, 128450 / took))
    return points


@cache
def hang() -> tuple[Verdict, Story]:
    """Training, then silence: one of four ranks sits in a data loader, the others wait for it."""
    steps = steps_of(412, T0 + 48, [1.9] + [1.42] * 411)
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
    verdict = verdict_of(
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


@cache
def rdma() -> tuple[Verdict, Story]:
    """24 hosts, two of them retransmit in two phases; throughput falls twice and recovers in between."""
    plan = [39.0] * 97 + [49.0] * 92 + [39.2] * 60 + [44.5] * 70
    steps = steps_of(len(plan), T0 + 210, plan)
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
    verdict = verdict_of(
        job={"id": "8308", "dir": "outputs/8308-JAX-ds-proxy", "nodes": 24, "gpus": 192},
        summary="Two hosts lose RDMA packets one after the other: chi2822 from 19:06:34 to 20:21:40 UTC "
        "(step time +26 %), "
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
                "why": "Confirm the port before the repair ticket: ib_write_bw between each accused and a clean one.",
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


def test_incidents_are_valid() -> None:
    for verdict, story in (hang(), rdma()):
        assert Verdict.model_validate_json(verdict.to_json()) == verdict
        assert {host for cause in verdict.roots for host in cause.hosts} == {
            lane.host for lane in story.lanes if lane.accused
        }
