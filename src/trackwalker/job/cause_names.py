"""A cause in words: an id such as `oom-gpu` is for programs and searching, and never stands alone where people read."""

from __future__ import annotations

from trackwalker.job.causes import about

_WORDS = {
    "cpu": "CPU", "dmabuf": "DMA-BUF", "ecc": "ECC", "fs": "file system", "gpu": "GPU", "ipv6": "IPv6",
    "k8s": "Kubernetes", "moe": "MoE", "nccl": "NCCL", "nic": "NIC", "oom": "out of memory", "p2p": "P2P",
    "python": "Python", "rdma": "RDMA", "shm": "shared memory", "tcp": "TCP", "tgs": "TGS", "xla": "XLA",
}  # fmt: skip


def cause_name(cause: str) -> str:
    """A cause in a few plain words: `GPU out of memory`."""
    known = about(cause)
    if known is not None and known.name:
        return known.name
    said = " ".join(_WORDS.get(word, word) for word in cause.split("-"))
    return said[:1].upper() + said[1:]


def cause_label(cause: str) -> str:
    """The words first, the id in brackets: `GPU out of memory (oom-gpu)`."""
    return f"{cause_name(cause)} ({cause})"
