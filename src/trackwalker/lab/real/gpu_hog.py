"""A stranger on a GPU: a process that computes, spins or holds memory there, and needs nothing but the driver.

Usage: python gpu_hog.py burn|spin|memory SHARE DEVICE. The library is libcuda, called through ctypes; it runs as a
program of its own, so that it is a process that does not belong to the job. It ends when its parent does.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

LIBRARY = "TRACKWALKER_CUDA"  # another library than the machine's own
KERNEL_S = 0.01  # one launch: long against a launch's own cost, short against a training step
_ROOM = 256 << 20  # left free, so that it is not the driver itself that runs out of memory
_WIDE = (2048, 256)  # blocks and threads: more than any GPU holds at a time

# Both loops look at the GPU's own clock, so that a launch takes the same time at every clock rate. `burn` computes in
# between (the multiprocessors draw power), `spin` does nothing (what a wait inside a collective looks like).
PTX = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .pred again;
    .reg .u64 begin, now, spent, limit;
    ld.param.u64 limit, [nanoseconds];
    mov.u64 begin, %globaltimer;
look:
    mov.u64 now, %globaltimer;
    sub.u64 spent, now, begin;
    setp.lt.u64 again, spent, limit;
    @again bra look;
    ret;
}

.visible .entry burn(.param .u64 nanoseconds)
{
    .reg .pred again, more;
    .reg .u64 begin, now, spent, limit;
    .reg .u32 round;
    .reg .f32 a, b, c, d;
    ld.param.u64 limit, [nanoseconds];
    mov.f32 a, 0f3F800000;
    mov.f32 b, 0f3F800001;
    mov.f32 c, 0f3F000000;
    mov.f32 d, 0f3E800000;
    mov.u64 begin, %globaltimer;
work:
    mov.u32 round, 0;
product:
    fma.rn.f32 a, a, b, c;
    fma.rn.f32 c, c, b, d;
    fma.rn.f32 d, d, b, a;
    fma.rn.f32 a, a, b, d;
    add.u32 round, round, 1;
    setp.lt.u32 more, round, 512;
    @more bra product;
    mov.u64 now, %globaltimer;
    sub.u64 spent, now, begin;
    setp.lt.u64 again, spent, limit;
    @again bra work;
    setp.eq.f32 more, a, 0f7F7FFFFF;
    @more bra work;
    ret;
}
"""


class Cuda:
    """The calls of cuda.h that are needed; anything but success ends the program with the call's name."""

    def __init__(self, device: int) -> None:
        self._lib = ctypes.CDLL(os.environ.get(LIBRARY) or "libcuda.so.1")
        self.call("cuInit", c_uint(0))
        handle, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(handle), c_int(device))
        self.call("cuDevicePrimaryCtxRetain", byref(context), handle)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *args: object) -> None:
        """One call."""
        code = getattr(self._lib, name)(*args)
        if code != 0:
            sys.exit(f"{name} answered {code}")

    def kernel(self, name: str) -> Callable[[float], None]:
        """A function that runs a kernel for so many seconds and waits for its end."""
        module, function = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), PTX)
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        blocks, threads = _WIDE if name == "burn" else (1, 1)

        def run(seconds: float) -> None:
            length = c_ulonglong(int(seconds * 1e9))
            params = (c_void_p * 1)(ctypes.cast(byref(length), c_void_p))
            shape = (*(c_uint(n) for n in (blocks, 1, 1, threads, 1, 1)), c_uint(0))
            self.call("cuLaunchKernel", function, *shape, None, params, None)
            self.call("cuCtxSynchronize")

        return run

    def hold(self, share: float) -> int:
        """Take a share of the memory that is free; every byte is written. Returns how many bytes."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        size, place = int(share * max(0, free.value - _ROOM)), c_ulonglong()
        self.call("cuMemAlloc_v2", byref(place), c_size_t(size))
        self.call("cuMemsetD8_v2", place, ctypes.c_ubyte(1), c_size_t(size))
        self.call("cuCtxSynchronize")
        return size


def main(words: list[str]) -> int:
    """Do it until the parent is gone."""
    what, share, device = words[0], float(words[1]), int(words[2]) if len(words) > 2 else 0
    parent, cuda = os.getppid(), Cuda(device)
    if what == "memory":
        print(f"ready {cuda.hold(share)}", flush=True)
        while os.getppid() == parent:
            time.sleep(0.5)
        return 0
    run = cuda.kernel(what)
    run(KERNEL_S)
    print("ready", flush=True)
    while os.getppid() == parent:
        began = time.perf_counter()
        run(KERNEL_S)
        # On a shared GPU a launch takes longer than it asked for: the pause goes by what it took.
        took = time.perf_counter() - began
        time.sleep(took * (1 - share) / share)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
