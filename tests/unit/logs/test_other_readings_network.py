"""Words of networks and of storage that, where they stand here, tell another cause or none."""
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import triage_text

TRACE = 'Traceback (most recent call last):\n  File "/app/train.py", line 40, in main\n    step()\n'
ERROR = TRACE + "ValueError: too few rows in the batch\n"
OOM = TRACE + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
EMPTY = 'Traceback (most recent call last):\n  File "/opt/torch/utils/data/dataloader.py", line 1120, in _try_get_data\n    data = self._data_queue.get(timeout=timeout)\n  File "/usr/lib/python3.10/multiprocessing/queues.py", line 114, in get\n    raise Empty\n_queue.Empty\n\nThe above exception was the direct cause of the following exception:\n\n'
PARENT = 'Traceback (most recent call last):\n  File "/usr/lib/python3.10/multiprocessing/resource_sharer.py", line 87, in get_connection\n    c = Client(address, authkey=process.current_process().authkey)\n'
BUSY = "W0501 10:00:00 [W socket.cpp:663] [c10d] The client socket has failed to connect to [10.0.0.1]:29500 (errno: 111 - Connection refused).\n"
HUB = "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\"), '(Request ID: 7)')' thrown while requesting HEAD https://huggingface.co/a/b\nRetrying in 1s [Retry 1/5].\n"
# What the log says, and the specific cause that it does not tell.
OTHERWISE = {
    # Settings, tables, counts of none.
    "a limit of heartbeats": (
        "coordination service: max allowed missed heartbeats: 10\n" + ERROR,
        "heartbeat-false-positive",
    ),
    "a timeout of heartbeats": (
        "coordination service: worker heartbeat timeout: 100s\n" + ERROR,
        "heartbeat-false-positive",
    ),
    "a timeout of NCCL": ("NCCL timeout: 1800 s\n" + ERROR, "collective-hang"),
    "a timeout that is used": ("Using NCCL timeout of 600 seconds\n" + ERROR, "collective-hang"),
    "a timeout of a collective": ("allreduce timeout: 1800\n" + ERROR, "collective-hang"),
    "a flight recorder that is on": (
        "ProcessGroupNCCL: Flight recorder dump on collective timeout is enabled\n" + ERROR,
        "collective-hang",
    ),
    "a change is no hang": ("ncclCommInitRank changed its stream\n" + ERROR, "collective-hang"),
    "a debug level": ("NCCL desync debug: False, desync debug timeout 0\n" + ERROR, "collective-mismatch"),
    "a timeout of the rendezvous": (
        "rendezvous timeout: 900 s, join timeout: 600 s\n" + ERROR,
        "rendezvous-incomplete",
    ),
    "a count of no links": ("perfquery: ib0 link downed counter: 0\n" + ERROR, "network-link-down"),
    "a watch for flaps": ("link flap detection enabled on all ports\n" + ERROR, "network-link-down"),
    "no flaps": ("link flaps since boot: 0\n" + ERROR, "network-link-down"),
    "a port without a cable": (
        "Infiniband device 'mlx5_1' port 1 status:\n        state:           1: DOWN\n        phys state:      3: Disabled\n"
        + ERROR,
        "network-link-down",
    ),
    "an algorithm": ("congestion control: dcqcn, network default\n", "fabric-congestion"),
    "a limit of retransmits": ("rdma retransmit timeout 14, retry count 7\n", "rdma-degradation"),
    "a measure of experts": ("expert load imbalance: 1.02\n", "moe-routing-shift"),
    "no token": ("step 11: dropped tokens 0 (capacity factor 1.25)\n", "moe-routing-shift"),
    "a limit of compilations": ("torch._dynamo.config.cache_size_limit = 64\n", "recompilation"),
    "a check for corruption": ("silent data corruption checks: disabled\n" + ERROR, "silent-data-corruption"),
    "no corruption": ("no silent data corruption found\n" + ERROR, "silent-data-corruption"),
    # What every start prints, optional and not there.
    "what RCCL tells of the machine": (
        'n1:7:7 [0] misc/rocmwrap.cc:1 NCCL WARN NUMA auto balancing enabled which can lead to variability in the RCCL performance! Disable by "sudo sysctl kernel.numa_balancing=0"\n',
        "nccl-error",
    ),
    "what NCCL tells of the machine": (
        "n1:7:7 [0] graph/xml.h:77 NCCL WARN Attribute coll of node net not found\n",
        "nccl-error",
    ),
    "copies through host memory": (
        "n1:7:7 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n" + ERROR,
        "rdma-misconfigured",
    ),
    "a module that is not in the container": (
        "modprobe: FATAL: Module nvidia_peermem not found in directory /lib/modules/5.15.0\n" + ERROR,
        "rdma-misconfigured",
    ),
    "a protocol of the plugin": (
        "n1:7:7 [0] NCCL WARN NET/OFI Failed to initialize rdma protocol\n" + ERROR,
        "rdma-misconfigured",
    ),
    "a plugin that looks": (
        "n1:7:7 [0] NCCL INFO NET/OFI fi_getinfo failed: No data available\n" + ERROR,
        "rdma-misconfigured",
    ),
    "an interface of a pod": ("systemd-networkd[600]: cali1234: Lost carrier\n" + ERROR, "network-link-down"),
    "a worker that was first": (BUSY + OOM, "rendezvous-incomplete"),
    "a worker that was first, and an error": (BUSY + ERROR, "rendezvous-incomplete"),
    "a client that looks for its cloud": (
        "All attempts to get a Google authentication bearer token failed, returning an empty token. Retrieving token from GCE failed with \"FAILED_PRECONDITION: Error executing an HTTP request: libcurl code 6 meaning 'Couldn't resolve host name', error details: Could not resolve host: metadata.google.internal\".\n"
        + ERROR,
        "rendezvous-incomplete",
    ),
    "a script that looks for its cloud": (
        "curl: (28) Connection timed out after 1001 milliseconds http://169.254.169.254/latest/meta-data\n" + ERROR,
        "storage-error",
    ),
    "a checkpoint that nobody wrote yet": (
        "gs://bucket/ckpt/latest not found, starting from scratch\n" + ERROR,
        "storage-error",
    ),
    "a mount that says what it does": (
        "mount.nfs: timeout set for Thu May  1 10:00:00 2025\n" + ERROR,
        "storage-error",
    ),
    "a large disk": (
        "(raylet) file_system_monitor.cc:111: /tmp/ray/session_x is over 95% full, available space: 424.7 GB; capacity: 7000 GB. Object creation will fail if spilling is required.\n"
        + ERROR,
        "storage-full",
    ),
    "a kubelet that tries again": (
        'Warning  FailedMount  2m (x3 over 5m)  kubelet  MountVolume.SetUp failed for volume "kube-api-access-x" : failed to sync configmap cache: timed out waiting for the condition\n'
        + ERROR,
        "storage-error",
    ),
    "a request that is sent again": (HUB + ERROR, "storage-error"),
    # The same words from something else.
    "a pool of connections": (
        "com.amazonaws.SdkClientException: Unable to execute HTTP request: Timeout waiting for connection from pool\n",
        "nccl-error",
    ),
    "two shapes": (TRACE + "ValueError: Mismatched shapes: (3, 4) and (4, 5)\n", "collective-mismatch"),
    "a checkpoint of more ranks": (
        TRACE + "RuntimeError: Number of ranks in the checkpoint (16) mismatch: 8 now\n",
        "collective-mismatch",
    ),
    "a file that is short": (
        TRACE + "OSError: got 100 bytes instead of 4096 from /data/shard-3.bin\n",
        "collective-mismatch",
    ),
    "advice on Join": (
        "WARNING: Join context manager for uneven inputs has to only be used when training with different data lengths\n"
        + ERROR,
        "collective-mismatch",
    ),
    "a rank that does not come": (
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\nStalled ranks:\n1: [allreduce.conv1.weight]\nMissing ranks:\n1: [allreduce.conv1.weight]\n",
        "collective-mismatch",
    ),
    "a worker that ended": (
        EMPTY + TRACE + "RuntimeError: DataLoader worker (pid(s) 4743) exited unexpectedly\n",
        "dataloader-hang",
    ),
    "a queue of something else": (TRACE + "_queue.Empty\n", "dataloader-hang"),
    "a changed state": ("ERROR: the dataloader state changed since the checkpoint\n" + ERROR, "dataloader-hang"),
    "what may come of a fork": (
        "/app/dataloader.py:12: RuntimeWarning: os.fork() was called, this may lead to deadlocks in the child\n"
        + ERROR,
        "dataloader-hang",
    ),
    "a peer that is gone": (
        TRACE + "torch.distributed.DistNetworkError: failed to recv, got 0 bytes\n",
        "rendezvous-incomplete",
    ),
    "a node that left": (
        "[2024-05-01 10:00:00,000] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node 'n1_77_0' has failed to send a keep-alive heartbeat to the rendezvous 'job7' due to an error of type RendezvousTimeoutError.\n"
        + ERROR,
        "rendezvous-incomplete",
    ),
    "workers that do not end": (
        "WARNING Timed out waiting for workers to exit, killing them\n" + ERROR,
        "rendezvous-incomplete",
    ),
    "a thread that does not end": (
        TRACE + "TimeoutError: Timed out after 60 s joining the writer thread\n",
        "rendezvous-incomplete",
    ),
    "a bucket of Google": (TRACE + "OSError: Unable to connect to GCS bucket gs://a/b\n", "rendezvous-incomplete"),
    "those who had met": (
        TRACE
        + "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0\n",
        "rendezvous-incomplete",
    ),
    "a parent that is gone": (
        PARENT + "ConnectionRefusedError: [Errno 111] Connection refused\n",
        "rendezvous-incomplete",
    ),
    "a server of files": (TRACE + "TimeoutError: [Errno 110] Connection timed out\n", "rendezvous-incomplete"),
    "a site outside": (
        TRACE + "urllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>\n",
        "network-link-down",
    ),
    "a firewall": (TRACE + "OSError: [Errno 113] No route to host\n", "network-link-down"),
    "a node without a way out": (TRACE + "OSError: [Errno 101] Network is unreachable\n", "network-link-down"),
    "a kernel's keyring": (
        "docker: Error response from daemon: OCI runtime create failed: unable to join session keyring: unable to create session key: disk quota exceeded\n",
        "storage-full",
    ),
    "a model's own server": (
        'INFO:     10.0.0.1:55 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n' + ERROR,
        "storage-error",
    ),
    "a judge": (
        TRACE + "openai.InternalServerError: Error code: 500 - {'error': {'message': 'boom'}}\n",
        "storage-error",
    ),
    "a judge that is busy": (
        TRACE + "openai.RateLimitError: Error code: 429 - {'error': {'message': 'Rate limit reached'}}\n",
        "storage-rate-limit",
    ),
    "a tracker of experiments": (
        "requests.exceptions.HTTPError: 502 Server Error: Bad Gateway for url: https://api.wandb.ai/graphql\n" + ERROR,
        "storage-error",
    ),
    "a probe": (
        'Warning  Unhealthy  2m  kubelet  Readiness probe failed: Get "http://10.0.0.2:8080/healthz": status code: 503\n'
        + ERROR,
        "storage-error",
    ),
    "a server on this host": (
        TRACE
        + "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): Max retries exceeded with url: /health (Caused by NewConnectionError('Failed to establish a new connection: [Errno 111] Connection refused'))\n",
        "storage-error",
    ),
    "a program that may not run": (TRACE + "PermissionError: [Errno 13] Permission denied: 'ninja'\n", "storage-error"),
    "a device": (TRACE + "PermissionError: [Errno 13] Permission denied: '/dev/infiniband/uverbs0'\n", "storage-error"),
    "an image that is read-only": (
        TRACE + "OSError: [Errno 30] Read-only file system: '/opt/conda/lib/python3.10/site-packages/triton/x'\n",
        "storage-error",
    ),
    "a file that is not there": (
        TRACE
        + "OSError: Unable to open file (unable to open file: name = 'x.h5', errno = 2, error message = 'No such file or directory', flags = 0, o_flags = 0)\n",
        "storage-error",
    ),
    "a folder cleared at the end": (
        ERROR + "OSError: [Errno 16] Device or resource busy: '.nfs000000000123'\n",
        "storage-error",
    ),
    "two writers of one database": (TRACE + "sqlite3.OperationalError: database is locked\n", "storage-error"),
    "a socket of NCCL": (
        "n1:7:9 [0] NCCL WARN NET/Socket : Call to read from peer failed : Software caused connection abort\n",
        "storage-error",
    ),
    "a driver that does not load": (
        "modprobe: ERROR: could not insert 'nvidia': Input/output error\n" + ERROR,
        "storage-error",
    ),
    "a socket": (
        "E0501 tcp_posix.cc:1] Failed getpeername: Transport endpoint is not connected\n" + ERROR,
        "storage-error",
    ),
    "a host is no OST": ("Connection to host 10.0.0.3 was lost\n" + ERROR, "storage-error"),
    "a server of answers": ("ERROR: vLLM server is not responding\n" + ERROR, "storage-error"),
    "memory of a strategy": (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes, strategy data parallel\n",
        "storage-rate-limit",
    ),
    "a quota of machines": (
        "RESOURCE_EXHAUSTED: Quota 'TPUV5sPreemptiblePerProjectPerZone' exhausted. Limit 8 in zone us-central2-b\n",
        "storage-rate-limit",
    ),
    "weights of an earlier step": (
        "rollout weights are out of sync with the trainer by 2 steps\n" + ERROR,
        "silent-data-corruption",
    ),
    "a task nobody saw end": (
        "E0212 coordination_service.cc:1146] UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n/job:jax_worker/replica:0/task:3\nThe tasks have crashed.\n",
        "heartbeat-false-positive",
    ),
    "a mode of NCCL": ("Error: NCCL error handling mode is blocking\n", "nccl-error"),
    "a subnet manager that restarts": (
        "n1:7:7 [0] NCCL WARN NET/IB : Got async event : P_Key change\n" + ERROR,
        "rdma-misconfigured",
    ),
    "an event of every bond": ("n1:7:7 [0] NCCL WARN NET/IB : Got async event : GID table change\n", "nccl-error"),
    "a driver for another card": (
        "libibverbs: Warning: couldn't load driver 'librxe-rdmav34.so': librxe-rdmav34.so: cannot open shared object file: No such file or directory\n"
        + ERROR,
        "missing-library",
    ),
    "options of a mount": (
        "kernel: EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Opts: errors=remount-ro\n" + ERROR,
        "storage-error",
    ),
    "an object that nobody wrote yet": ("S3: NoSuchKey latest, starting from scratch\n" + ERROR, "storage-error"),
    "an address that does not exist": ("curl: (22) The requested URL returned error: 404\n" + ERROR, "storage-error"),
    "a site of code": (
        "ssh: connect to host github.com port 22: Connection timed out\nfatal: Could not read from remote repository.\n",
        "rendezvous-incomplete",
    ),
    "an engine of answers": (
        TRACE + "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected\n",
        "storage-error",
    ),
    "an engine of answers that fails": (
        TRACE
        + "requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: http://10.0.0.3:8000/generate\n",
        "storage-error",
    ),
    "a script that may not run": (
        TRACE + "PermissionError: [Errno 13] Permission denied: './prepare.sh'\n",
        "storage-error",
    ),
    "a peer that refuses": ("[gloo] Connection refused by rank 7\n" + ERROR, "rendezvous-incomplete"),
}


@pytest.mark.parametrize(("text", "cause"), OTHERWISE.values(), ids=OTHERWISE)
def test_the_same_words_say_something_else(tmp_path: Path, text: str, cause: str) -> None:
    found = triage_text(tmp_path, "start\n" + text).primary
    assert found is None or found.cause != cause


# And what the words do tell.
TOLD = {
    "a timeout": (TRACE + "RuntimeError: NCCL timeout while waiting for all ranks\n", "collective-hang"),
    "a message of another size": (
        "n1:7:9 [0] NCCL WARN Message truncated : received 1024 bytes instead of 256\n",
        "collective-mismatch",
    ),
    "types that differ by rank": (
        "Mismatched data types: One rank had type float16, but another rank had type float32.\n",
        "collective-mismatch",
    ),
    "a loader that gives nothing": (TRACE + "RuntimeError: DataLoader timed out after 60 seconds\n", "dataloader-hang"),
    "a first rank that never came": (
        BUSY + TRACE + "RuntimeError: The client socket has failed to connect to any network address of (n1, 29500).\n",
        "rendezvous-incomplete",
    ),
    "warnings alone": (BUSY, "rendezvous-incomplete"),
    "a master that refuses": (
        TRACE + "ConnectionRefusedError: [Errno 111] Connection refused by the master 10.0.0.1:29500\n",
        "rendezvous-incomplete",
    ),
    "a device that a NIC cannot open": (
        "n1:7:9 [0] NCCL WARN Call to ibv_create_cq failed with error Input/output error\n",
        "rdma-misconfigured",
    ),
    "a port that went": ("mlx5_core 0000:5e:00.0: port state changed to DOWN\n", "network-link-down"),
    "an archive that asks to slow down": (
        TRACE
        + "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x\n",
        "storage-rate-limit",
    ),
    "a hub that does not answer": (
        TRACE
        + "urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\n",
        "storage-error",
    ),
    "a site that nobody reaches": (
        TRACE + "urllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>\n",
        "storage-error",
    ),
    "a site that times out": (
        TRACE + "urllib.error.URLError: <urlopen error [Errno 110] Connection timed out>\n",
        "storage-error",
    ),
    "a file that times out": (
        TRACE + "TimeoutError: [Errno 110] Connection timed out: '/nfs/data/shard-3'\n",
        "storage-error",
    ),
    "a target of Lustre": (
        "Lustre: scratch-OST0004-osc-ffff8f: Connection to scratch-OST0004 (at 10.1.1.1@o2ib) was lost; in progress operations using this service will wait for recovery to complete\n",
        "storage-error",
    ),
    "a server of NFS": ("kernel: nfs: server 10.0.0.9 not responding, still trying\n", "storage-error"),
    "a file system": (TRACE + "OSError: [Errno 30] Read-only file system: '/mnt/data/out'\n", "storage-error"),
    "a mount that went": (
        TRACE + "OSError: [Errno 107] Transport endpoint is not connected: '/content/drive/x'\n",
        "storage-error",
    ),
    "a bucket": (
        TRACE + "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://s3.example/x\n",
        "storage-error",
    ),
    "memory": (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes, strategy data parallel\n",
        "oom-gpu",
    ),
    "memory after a refusal": (BUSY + OOM, "oom-gpu"),
    "memory after a request": (HUB + OOM, "oom-gpu"),
    "corruption": ("silent data corruption detected on GPU 3\n", "silent-data-corruption"),
}


@pytest.mark.parametrize(("text", "cause"), TOLD.values(), ids=TOLD)
def test_the_words_tell_it(tmp_path: Path, text: str, cause: str) -> None:
    found = triage_text(tmp_path, "start\n" + text).primary
    assert found is not None
    assert found.cause == cause
