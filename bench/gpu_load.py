"""Work for an NVIDIA GPU: matrix products as in training, a kernel that only waits, and one that faults."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MATMUL_TORCH = """
import time, torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
end = time.time() + {seconds}
said = False
while time.time() < end:
    for _ in range(20):
        c = a @ b
    torch.cuda.synchronize()
    if not said:
        print("ready torch", flush=True)
        said = True
"""
MATMUL_JAX = """
import time, jax, jax.numpy as jnp
assert jax.default_backend() == "gpu"
a, b = (jax.random.normal(jax.random.key(i), (8192, 8192), jnp.bfloat16) for i in range(2))
f = jax.jit(lambda a, b: jax.lax.fori_loop(0, 20, lambda i, x: (x @ b) * jnp.bfloat16(0.011), a))
f(a, b).block_until_ready()
print("ready jax", flush=True)
end = time.time() + {seconds}
while time.time() < end:
    f(a, b).block_until_ready()
"""
CUDA = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
__global__ void spin(long long cycles) {  // what a collective that waits for a lost peer looks like
    for (long long t0 = clock64(); clock64() - t0 < cycles;) {}
}
__global__ void burn(float *out, int rounds) {
    float a = threadIdx.x, b = 1.0001f, c = 0.5f;
    for (int i = 0; i < rounds; ++i) { a = a * b + c; c = c * b + a; }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + c;
}
__global__ void wild(int *p) { p[threadIdx.x] = 1; }
int main(int argc, char **argv) {
    double seconds = atof(argv[2]);
    if (!strcmp(argv[1], "wild")) {
        wild<<<1, 32>>>((int *)0x700000000000ull);
        printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
        return 0;
    }
    if (!strcmp(argv[1], "spin")) {
        int khz = 0;
        cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0);
        spin<<<1, 1>>>((long long)(seconds * 1e3 * khz));
        printf("ready nvcc\n"); fflush(stdout);
        return cudaDeviceSynchronize() != cudaSuccess;
    }
    float *out;
    cudaMalloc(&out, 4096 * 256 * sizeof(float));
    burn<<<4096, 256>>>(out, 100000);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    printf("ready nvcc\n"); fflush(stdout);
    for (;;) { burn<<<4096, 256>>>(out, 100000); if (cudaDeviceSynchronize() != cudaSuccess) return 1; }
}
"""
SPIN_TORCH = """
import torch
torch.zeros(1, device="cuda")
torch.cuda._sleep(int({seconds} * torch.cuda.get_device_properties(0).clock_rate * 1e3))
print("ready torch", flush=True)
torch.cuda.synchronize()
"""


def build(folder: Path) -> list[str]:
    """The CUDA program, or an empty list where there is no nvcc."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        return []
    (folder / "load.cu").write_text(CUDA)
    command = [nvcc, "-arch=native", "-o", str(folder / "load"), str(folder / "load.cu")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        print("nvcc:", done.stderr.strip())
    return [] if done.returncode else [str(folder / "load")]


def training(program: list[str], seconds: float) -> list[list[str]]:
    """Commands that keep the GPU busy as training does, best first."""
    python = [[sys.executable, "-c", text.format(seconds=seconds)] for text in (MATMUL_TORCH, MATMUL_JAX)]
    return python + ([[*program, "burn", "0"]] if program else [])


def busy_wait(program: list[str], seconds: float) -> list[list[str]]:
    """Commands that hold one multiprocessor in a loop that does nothing."""
    torch = [sys.executable, "-c", SPIN_TORCH.format(seconds=seconds)]
    return [[*program, "spin", str(seconds)], torch] if program else [torch]


@contextlib.contextmanager
def running(commands: list[list[str]]) -> Iterator[str]:
    """The first of the commands that says it is ready, until the block ends; what it said."""
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for command in commands:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - for the type checker
        said = process.stdout.readline().strip()
        if said.startswith("ready"):
            try:
                yield said
            finally:
                if process.poll() not in (None, 0):
                    print(f"the load ended by itself: {process.stderr.read().strip()[-500:]}")
                process.kill()
                process.wait(30)
            return
        process.kill()
        print("no load from", command[0], process.stderr.read().strip()[-300:])
    raise SystemExit("nothing here can load the GPU: install jax, torch or nvcc")
