"""A file system that is really there and never answers: what a dead file server or a wedged driver does to a reader."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def dead_mount(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A real (FUSE) mount whose server takes requests and never answers: its users sleep and cannot be killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = tmp_path / "dead"
    place.mkdir()
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("no FUSE here")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"dead", str(place).encode(), b"fuse.dead", 0, options) != 0:
        os.close(device)
        pytest.skip("not allowed to mount")
    try:
        hello = os.read(device, 1 << 17)  # INIT, the only request that is answered
        answer = struct.pack("<IIIIHHIIHH28x", 7, 31, 0, 0, 12, 9, 4096, 1, 1, 0)
        os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, *struct.unpack_from("<Q", hello, 8)) + answer)
        yield place, device
    finally:
        libc.umount2(str(place).encode(), 1 | 2)  # force, detach: wakes all who wait
        os.close(device)
