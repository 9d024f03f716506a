"""From what one machine showed to what other numbers of nodes need: plain proportions, and said to be that."""

from __future__ import annotations

from dataclasses import dataclass

DAY_S = 86400
WAL_S = 3 * 3600  # what a crash at the worst moment has to replay: two hours of head and the next half
RECIPES = (
    (64, "one recorder"),
    (1000, "one recorder for each 64 nodes, remote-write to one VictoriaMetrics"),
    (1 << 30, "160 recorders and more, remote-write to a VictoriaMetrics cluster or Mimir"),
)


@dataclass(frozen=True)
class Measured:
    """What a run of the bench gave, of one Prometheus."""

    nodes: int
    interval_s: float
    series: int  # of a node
    samples_s: float
    cores: float
    rss_mb: float
    wal_bytes: float  # per sample
    block_bytes: float  # per sample, in a compacted block of two hours
    replay_samples_s: float


@dataclass(frozen=True)
class Need:
    """What a number of nodes needs in all."""

    nodes: int
    interval_s: float
    series: int
    samples_s: float
    cores: float
    memory_gb: float
    disk_gb_day: float
    wal_mb_s: float
    replay_s: float  # of all of it in one Prometheus
    recipe: str


def need(measured: Measured, nodes: int, interval_s: float) -> Need:
    """The same node, another number of them: CPU goes with samples, memory with series, disk with samples."""
    series = measured.series * nodes
    samples_s = series / interval_s
    return Need(
        nodes=nodes,
        interval_s=interval_s,
        series=series,
        samples_s=samples_s,
        cores=measured.cores * samples_s / measured.samples_s,
        memory_gb=measured.rss_mb / 1024 * nodes / measured.nodes,
        disk_gb_day=samples_s * DAY_S * measured.block_bytes / 1e9,
        wal_mb_s=samples_s * measured.wal_bytes / 1e6,
        replay_s=samples_s * WAL_S / measured.replay_samples_s,
        recipe=next(text for most, text in RECIPES if nodes <= most),
    )


def table(measured: Measured, sizes: list[tuple[int, float]]) -> str:
    """Markdown: a row for each size."""
    rows = [
        "| nodes | interval | series | samples/s | cores | memory | disk/day | WAL | replay of 3 h, at most | recipe |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for nodes, interval_s in sizes:
        n = need(measured, nodes, interval_s)
        rows.append(
            f"| {n.nodes:,} | {n.interval_s:g} s | {n.series:,} | {n.samples_s:,.0f} | {n.cores:.2f}"
            f" | {n.memory_gb:.1f} GB | {n.disk_gb_day:.1f} GB | {n.wal_mb_s:.2f} MB/s | {n.replay_s:,.0f} s"
            f" | {n.recipe} |"
        )
    return "\n".join(rows)
