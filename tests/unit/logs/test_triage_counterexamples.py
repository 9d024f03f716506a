"""Words that once named a cause they do not prove: tables, counts of none, settings, warnings, other errnos."""
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import header, steps, triage_text

TORCH = 'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    main()\n'
NOT_FOUND = TORCH + "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus_text_document.idx'\n"

# What is printed, and what is said of it: None is no failure at all.
OTHERWISE: dict[str, tuple[str, str | None]] = {
    # memory
    "seff's table": ("State: OUT_OF_MEMORY (exit code 0)\nMemory Utilized: 503.9 GB\n", "oom-host"),
    "Slurm's mail": ("Slurm Job_id=812 Name=train Ended, Run time 01:02:03, OUT_OF_MEMORY\n", "oom-host"),
    "a host named gpu": ("srun: error: gpu017: task 3: Out Of Memory\n", "oom-host"),
    "TensorFlow on the CPU": (
        "W op_kernel.cc:1745] OP_REQUIRES failed: Resource exhausted: OOM when allocating tensor with shape[81920,8192] "
        "and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator mklcpu\n", "oom-host",
    ),
    "pinned memory of the host": (
        "E cuda_driver.cc:1018] failed to alloc 17179869184 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
        "oom-host",
    ),
    "no capacity in a zone": (
        "ERROR: (gcloud.compute.tpus.queued-resources.create) RESOURCE_EXHAUSTED: There is no more capacity in the zone "
        '"us-central2-b"; you can try in another zone\n', "unclassified",
    ),
    "memory of a kernel on a TPU": (
        TORCH + "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while "
        "allocating on stack for %custom-call. Exceeded scoped vmem limit by 2.00M.\n", "python-exception",
    ),
    "advice on memory": (
        "Tip: if you run out of GPU memory, lower the batch size; offloading may avoid running out of memory\n" + NOT_FOUND,
        "python-exception",
    ),
    "docker inspect": ('            "OOMKilled": false,\n            "ExitCode": 1,\n' + NOT_FOUND, "python-exception"),
    "a dump of memory on a host without swap": (
        "kernel: swapper/0: page allocation failure: order:4, mode:0x40820(GFP_ATOMIC|__GFP_COMP)\n"
        "kernel: Free swap  = 0kB\nkernel: Total swap = 0kB\nRuntimeError: CUDA error: an illegal memory access was "
        "encountered\n", "segfault",
    ),
    "no room for thread-local storage": (
        TORCH + "OSError: /usr/lib/aarch64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block\n",
        "python-exception",
    ),
    "too many maps": (
        TORCH + "RuntimeError: unable to mmap 29764 bytes from file </torch_10182_3020184674_63991>: Cannot allocate memory "
        "(12)\n", "python-exception",
    ),
    "too many open files": (
        TORCH + "RuntimeError: unable to open shared memory object </torch_41233_812345678_12> in read-write mode: Too many "
        "open files (24)\n", "python-exception",
    ),
    "a segment that is gone": (
        "n1:5:9 [3] NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-AbCdEf (size 9637888)\n",
        "nccl-error",
    ),
    "a data base's locks": (
        "psycopg2.errors.OutOfMemory: out of shared memory HINT: You might need to increase max_locks_per_transaction.\n",
        "unclassified",
    ),
    "ulimit -a": (
        "max locked memory           (kbytes, -l) 8192\nopen files                          (-n) 1024\n" + NOT_FOUND,
        "python-exception",
    ),
    "a limit that is not passed on": (
        "slurmd: error: Can't propagate RLIMIT_MEMLOCK of 65536 from submit host: Operation not permitted\n" + NOT_FOUND,
        "python-exception",
    ),
    "a message that is too large": (
        "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with: "
        "details = Received message larger than max (17777780 vs. 4194304)\n", "unclassified",
    ),
    "loky's warning": (
        "/opt/env/joblib/externals/loky/process_executor.py:752: UserWarning: A worker stopped while some jobs were given "
        "to the executor. This can be caused by a too short worker timeout or by a memory leak.\n" + NOT_FOUND,
        "python-exception",
    ),
    "swig's complaint at the end": (
        "swig/python detected a memory leak of type 'int64_t *', no destructor found.\n" + NOT_FOUND, "python-exception",
    ),
    # how a process ended, divergence
    "a faulty kernel of AMD's": (
        ":0:rocdevice.cpp :2993: Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_MEMORY_FAULT: Agent attempted "
        "to access an inaccessible address. code: 0x2b\n", "unclassified",
    ),
    "rocminfo without the right": (
        "hsa api call failure at: rocminfo.cc:1306 Call returned HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to "
        "allocate the necessary resources.\n", "unclassified",
    ),
    "handlers that are installed": ("Registered signal handlers for SIGTERM, SIGINT and SIGSEGV\n" + NOT_FOUND,
                                    "python-exception"),
    "a driver's time-out": ("mlx5_core 0000:81:00.0: cmd failed with error code: -110\n" + NOT_FOUND, "python-exception"),
    "another bus": ("DBus error: org.freedesktop.DBus.Error.ServiceUnknown\n" + NOT_FOUND, "python-exception"),
    "Ray's head is gone": (
        "ray.exceptions.RpcError: UNAVAILABLE: failed to connect to all addresses; last error: ipv4:10.1.2.3:6379: "
        "Connection refused\n", "unclassified",
    ),
    "the best loss so far": ("epoch 0 best validation loss: inf\n" + NOT_FOUND, "python-exception"),
    "a kind of loss": ("contrastive loss: InfoNCE temperature 0.07\n" + NOT_FOUND, "python-exception"),
    "a batch left out": (
        "WARNING: loss is nan, skipping batch 81\n"
        "slurmstepd: error: *** JOB 812 ON n1 CANCELLED AT 2026-02-11T10:00:00 DUE TO TIME LIMIT ***\n", "walltime",
    ),
    "a table of the data": ("found NaN in column 'price' of the dataset, filled with 0\n" + NOT_FOUND, "python-exception"),
    "a guard that is on": ("loss spike detection: enabled, rollback after 3\n" + NOT_FOUND, "python-exception"),
    # GPUs and hosts
    "a count of none": (
        "amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 0, 0 new uncorrectable hardware errors detected in umc block\n"
        + NOT_FOUND, "python-exception",
    ),
    "a mode": ("amdgpu 0000:c1:00.0: amdgpu: RAS: poison mode is enabled\n" + NOT_FOUND, "python-exception"),
    "a switch's error that is not fatal": (
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Non-fatal, Link 44 sourcetrack timeout error (First)\n"
        + NOT_FOUND, "python-exception",
    ),
    "the host's memory": (
        "kernel: EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (uncorrectable ECC error)\n",
        "host-kernel-fault",
    ),
    "another device's port": (
        "nvme 0000:03:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer\n" + NOT_FOUND,
        "python-exception",
    ),
    "a GPU that recovered": (
        "NVRM: Xid (PCI:0000:b3:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"
        + NOT_FOUND, "python-exception",
    ),
    "memory that was repaired": (
        "NVRM: Xid (PCI:0000:b3:00): 156, pid=0, Resource Retirement Event\n" + NOT_FOUND, "python-exception",
    ),
    "a link's error that is corrected": (
        "NVRM: Xid (PCI:0000:b3:00): 121, pid=0, C2C Link corrected error\n" + NOT_FOUND, "python-exception",
    ),
    "power that is smoothed no more": (
        "NVRM: Xid (PCI:0000:b3:00): 163, Power smoothing capability disengaged\n" + NOT_FOUND, "python-exception",
    ),
    "a link's error that is not fatal": (
        "NVRM: Xid (PCI:0000:b3:00): 145, RLW_RSPCOL Nonfatal XC0 i0 Link 03 (0x00000001)\n" + NOT_FOUND,
        "python-exception",
    ),
    "a handle that could not be made": (
        TORCH + "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n",
        "unclassified",
    ),
    "too many pings": (
        'Received a GOAWAY with error code ENHANCE_YOUR_CALM and debug data equal to "too_many_pings"\n' + NOT_FOUND,
        "python-exception",
    ),
    "a kernel that hung": ("HW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang\n", "unclassified"),
    "a container that lost its devices": ("Failed to initialize NVML: Unknown Error\n", "unclassified"),
    "a fork after CUDA": (
        TORCH + "RuntimeError: Caught RuntimeError in DataLoader worker process 2.\nRuntimeError: CUDA error: "
        "initialization error\n", "python-exception",
    ),
    "a driver's assertion at a healthy start": (
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Requested object not found [NV_ERR_OBJECT_NOT_FOUND]\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB\n", "oom-gpu",
    ),
    "cuDNN without its handle": ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\n", "unclassified"),
    "no NVSwitch": ("Fabric Manager is not required on this system (no NVSwitch)\n" + NOT_FOUND, "python-exception"),
    "what the fabric manager tells of a switch": (
        "nv-fabricmanager[2001]: detected NVSwitch non-fatal error 12028 on NVSwitch pci id 00000000:C1:00.0\n" + NOT_FOUND,
        "python-exception",
    ),
    "a service that is stopped": ("systemd[1]: Stopped NVIDIA fabric manager service.\n" + NOT_FOUND, "python-exception"),
    "a setting": ("P2P is disabled by NCCL_P2P_DISABLE=1\n" + NOT_FOUND, "python-exception"),
    "a slower path": (
        "WARNING custom_all_reduce.py:73] Custom allreduce is disabled because your platform lacks GPU P2P capability or "
        "P2P test failed.\n" + NOT_FOUND, "python-exception",
    ),
    "peers that were lost": (
        "kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=1234, Contained: SM. RST: No, D-RST: No\n"
        "n1:5:9 [3] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported\n",
        "gpu-hardware-fault",
    ),
    "another device's DMA": (
        "kernel: nvme 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0012 address=0xd0000000 flags=0x0000]\n"
        + NOT_FOUND, "python-exception",
    ),
    "an error that was corrected": ("mce: [Hardware Error]: Machine check events logged\n" + NOT_FOUND, "python-exception"),
    "the end of a kernel's warning": (
        "WARNING: CPU: 3 PID: 4123 at drivers/gpu/drm/drm_mode_object.c:45\n---[ end trace 9c1de3f2a1b2c3d4 ]---\n"
        + NOT_FOUND, "python-exception",
    ),
    "a memory that ran full and was passed over": (
        "| WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 2.00 GiB; skipping batch\n"
        + NOT_FOUND, "python-exception",
    ),
    "a CPU that a dead GPU held": (
        "kernel: watchdog: BUG: soft lockup - CPU#17 stuck for 23s! [python3:8812]\n"
        "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n", "gpu-hardware-fault",
    ),
    "a task that waits": ("kernel: INFO: task python3:41233 blocked for more than 120 seconds.\n", "unclassified"),
    "accelerate's advice": (
        "Detected kernel version 5.4.0, which is below the recommended minimum of 5.5.0; this can cause the process to "
        "hang.\n", None,
    ),
    "no throttling": ("Thermal throttling: none (0 events)\n" + NOT_FOUND, "python-exception"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERWISE)
def test_it_names_no_more_than_its_words_prove(tmp_path: Path, name: str) -> None:
    text, cause = OTHERWISE[name]
    found = triage_text(tmp_path, f"starting\n{text}")
    told = found.primary.cause if found.primary else None
    assert told == cause, [(f.id, f.role, f.text) for f in found.roles.findings]


def test_a_cpu_that_was_away_is_outlived(tmp_path: Path) -> None:
    stuck = "kernel: watchdog: BUG: soft lockup - CPU#17 stuck for 23s! [python3:8812]\n"
    found = triage_text(tmp_path, header(steps=30) + steps(20) + stuck + steps(29, first=21))
    assert found.primary is None
    assert [f.role for f in found.roles.findings if f.id == "cpu-stalled"] == ["note"]


def test_who_answers_no_more_after_training_began_had_joined(tmp_path: Path) -> None:
    late = "1: jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: GetKeyValue() timed out with key: sync/412\n"
    found = triage_text(tmp_path, header() + steps(20) + late)
    assert found.primary is not None
    assert found.primary.cause != "rendezvous-incomplete"
    early = triage_text(tmp_path, header() + late)
    assert early.primary is not None
    assert early.primary.cause == "rendezvous-incomplete"
