"""`trackwalker setup`: the programs we need beside Python."""

from __future__ import annotations

from trackwalker.observe.prometheus import ensure_prometheus


def setup() -> None:
    """Find Prometheus or install it for this user; prints where it is."""
    print(ensure_prometheus(print))
