"""What NCCL's own words and the host's tools show together: a fast network that is there and is not used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trackwalker.logs.excerpts.gpus import Shown

_BY_TCP = re.compile(
    r"NCCL INFO (?:NET/IB ?: No device found|Using network Socket|NET/Socket ?: Using)|via NET/Socket/"
)
_BY_RDMA = re.compile(r"NCCL INFO Using network (?!Socket)|via NET/(?!Socket)\w+/")
_THERE = re.compile(
    r"\b(?:mlx[45]_(?:bond_)?\d+|bnxt_re\d+|rdmap\w+|irdma\d+|hfi1_\d+|efa_\d+|ionic_\d+)\b|\bhca_id:|\b(?:InfiniBand|RoCE|NDR|HDR)\b"
)


def unused_rdma(lines: Sequence[str]) -> Iterator[Shown]:
    """NCCL goes by TCP where the text shows RDMA devices; of runs beside each other the one that goes by TCP."""
    slow = next((at for at, line in enumerate(lines) if _BY_TCP.search(line, 0, 400)), None)
    there = any(_THERE.search(line, 0, 400) for line in lines)
    if slow is not None and (there or any(_BY_RDMA.search(line, 0, 400) for line in lines)):
        yield "rdma-misconfigured", slow, lines[slow].strip()
