"""What an excerpt shows beside its errors: who was told before, what was typed after, whose the words are: our own words."""  # noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.triage_logs import cause_of, left_open

STEPS = "".join(f"iter {i} loss 2.{i} 0.51 s\n" for i in range(3))
KNOWN = "".join(
    f" iteration {i:8d}/ 900 | elapsed time per iteration (ms): 10.0 | lm loss: 7.{i}E+00 |\n" for i in range(3)
)
RULE = "-" * 74 + "\n"
CARD = "{i}  3  0x71, 4{i}  44.0°C  {watt}.0W  NPS1, SPX, 0  {clock}Mhz  900Mhz  0%  auto  750.0W  81%   {busy}%\n"
FRAMES = "".join(
    f"[rank{r}]:[W4 03:13:2{r}.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=8{r}): Connection reset by peer\n"  # noqa: E501
    "Exception raised from recvBytes at /p/Utils.hpp:679 (most recent call first):\n"
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f in /v/libc10.so)\n"
    "frame #1: c10d::TCPStore::check(std::vector<int> const&) + 0x298 (0x7f in /v/libtorch_cpu.so)\n"
    "frame #2: c10d::HeartbeatMonitor::runLoop() + 0x398 (0x7f in /v/libtorch_cuda.so)\n"
    for r in range(1, 4)
)
LOADS = (
    "Traceback (most recent call last):\n"
    '  File "/w/run.py", line 8, in load_checkpoint\n    dcp.load(state, checkpoint_id=where)\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '{}'\n"
)
REFUSED = (
    'Traceback (most recent call last):\n  File "/w/run.py", line 8, in main\n    keep()\n'
    '  File "/v/site-packages/lib/store.py", line 9, in save_checkpoint\n    put()\n'
    "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the {} operation: Access Denied\n"
)
ACTOR = (
    "Traceback (most recent call last):\n"
    '  File "/w/ppo.py", line 9, in <module>\n    ray.get(refs)\n'
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tpid: 81\n"
)
BAR = "{}: 100%|####| 64/64 [21:07<00:00,  9.9s/it]\n"
CASES = {
    # The frames of a stack are counted, and no ranks.
    "stacks of those who are left after the end": (f"{STEPS}Training completed.\n{FRAMES}", "teardown-crash"),
    "a new start that has nothing to do": (
        "".join(f"[task 0] step {i}/9 loss 2.{i}\n" for i in range(7, 10)) + "[task 0] training finished: 9 steps\n"
        "[task 0] process exited rc=0\n"
        "[task 1] E0813 20:45:59.6  71 coordination_service_agent.cc:375] Polled an error from coordination service (this can be an error from this or another task).\n"  # noqa: E501
        "[task 1] process exited signal=6\n[task 0] restored step-9, all of it was done before\n",
        "teardown-crash",
    ),
    "the bar of a part is no end of the whole": (
        BAR.format("Train epoch [1/1]") + f"Episode [1/20]:  10%|#   | 6/60 [9:12:44<81:31:50, 510.5s/it]\n{ACTOR}",
        "unclassified",
    ),
    "the bar of the whole is": (f"Train: 100%|####| 64/64 [21:07<00:00,  9.9s/it]\n{ACTOR}", "teardown-crash"),
    "the file that is written last": (LOADS.format("/ckpt/run/step-200/.metadata"), "checkpoint-corrupt"),
    "another file of a checkpoint": (LOADS.format("/ckpt/run/step-200/lora.bin"), "checkpoint-restore-mismatch"),
    "a store that refuses a part": (REFUSED.format("UploadPart"), "checkpoint-fs-error"),
    "a cloud that refuses a question": (REFUSED.format("DescribeInstances"), "python-exception"),
    "a deadline in the conditions of an object": (
        f"Conditions:\n  Message:  it exceeded its active deadline\n  Reason:   DeadlineExceeded\n  Type:     Failed\n{STEPS}"  # noqa: E501
        "W0820 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\n",
        "walltime",
    ),
    "a machine that did not answer because it was taken": (
        f"{STEPS}ssh: connect to host 10.0.0.6 port 22: Connection timed out\nI 07-11 controller.py:1] The cluster is preempted.\n",  # noqa: E501
        "preempted",
    ),
    # Cards.
    "cards that crawl": (STEPS + "".join(CARD.format(i=i, watt=170, clock=61, busy=100) for i in range(2)), "gpu-clock-degraded"),  # noqa: E501
    "a card far below the other": (CARD.format(i=0, watt=170, clock=900, busy=100) + CARD.format(i=1, watt=170, clock=2100, busy=100), "gpu-clock-degraded"),  # noqa: E501
    "cards that rest": ("".join(CARD.format(i=i, watt=70, clock=61, busy=0) for i in range(2)), None),
    "what a command says afterwards": (
        KNOWN + "".join(CARD.format(i=i, watt=170, clock=61, busy=100) for i in range(2)) + "[n2] $ rocm-smi --setsclk 2\nERROR: GPU[0]: Unable to set sclk\n",  # noqa: E501
        "gpu-clock-degraded",
    ),
    # Nobody shows a text for nothing.
    "what MPI's launcher says between two rules": (f"$ mpirun -np 16 python a.py\n{RULE}The daemon of the node that is named is of no known kind.\n{RULE}", "unclassified"),  # noqa: E501
    "its advice": (f"$ mpirun -np 16 python a.py\n{RULE}WARNING: more slots are there than are used.\n{RULE}{STEPS}", None),  # noqa: E501
    "a state that says that it failed": ("$ sky queue\nID   NAME   RESOURCES   STATUS\n7    tiny   1x [T4:1]   FAILED_CONTROLLER\n", "unclassified"),  # noqa: E501
    "states of what is well": ("$ sky queue\nID   NAME   RESOURCES   STATUS\n7    tiny   1x [T4:1]   SUCCEEDED\n", None),  # noqa: E501
    "a remark under its writer's name": (f"{STEPS}[ops] the file ends here. Nobody says that they touched it.\n", "unclassified"),  # noqa: E501
    "there was no error": (f"I left it over night and this morning nothing is there. No error, the cards are empty.\n\n{STEPS}", "unclassified"),  # noqa: E501
    "it ended with no errors": (f"# all three of them ended with no errors, this is the last\n{STEPS}", None),
    # Words beside a run.
    "it was fine until": (f"Everything is fine until step 70 or so, then the GPUs go to 0 % and stay there.\n{STEPS}", "unclassified"),  # noqa: E501
    "who searched and found nothing": ("[10:11:10] packing file 17\n[10:11:41] packing file 18\n[10:12:12] packing file 19\n(it is at 19, df is fine)\n", "unclassified"),  # noqa: E501
    "what it usually is": ("x 1210 | 41 s\nx 1211 | 44 s\nx 1212 | 43 s\nit is usually at 6 s here\n", "unclassified"),
    "a comment of a setting": (f"# the config of the ablation (not the final one)\n{STEPS}", None),
    "a licence": ("The holders provide no reassurances that the code\nis free of the 1st and of the 2nd of these:\nin part 1, it is so\nin part 2, it is so\n", None),  # noqa: E501
    "a mark of how long": ("[rank0] wrapped\n[rank1] wrapped\n(40 minutes later, still here)\n", "unclassified"),
    "who never spoke": ("rank 0: eval done\nrank 1: eval done\n(rank 2 never prints it)\n", "unclassified"),
    "stood, then ended by a signal": (
        f"{STEPS}== 02:10 last output of all of them ==\n"
        "W03 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\n",
        "unclassified",
    ),
    "ended by a signal": (f"{STEPS}W03 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\n", "user-cancel"),  # noqa: E501
    "stood, then ended by somebody": (f"{STEPS}(the last output of it)\nslurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 by 1012 ***\n", "user-cancel"),  # noqa: E501
    "a handler that got it": ("step 9 loss 2\nWARNING handler: got SIGTERM, saving\n", "user-cancel"),
    "a handler for it": (f"will save when it got SIGTERM\n{STEPS}", None),
    # What Python ignored.
    "an error that was ignored": (
        f"{STEPS}Exception ignored in: <function Iter.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        '  File "/v/site-packages/torch/utils/data/dataloader.py", line 9, in _shutdown_workers\n'
        "AttributeError: 'NoneType' object has no attribute 'x'\n",
        None,
    ),
    "an error after one that was ignored": (
        f"{STEPS}Exception ignored in: <function Iter.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        '  File "/v/lib.py", line 9, in close\nAttributeError: no x\n'
        'Traceback (most recent call last):\n  File "/w/run.py", line 9, in main\nTypeError: no y\n',
        "python-exception",
    ),
    "memory that did not suffice after the end": (
        f"{STEPS}Training complete. Saving now\n"
        'Traceback (most recent call last):\n  File "/w/run.py", line 9, in main\n    keep()\n'
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 502.00 MiB (GPU 2; 39.39 GiB total capacity; 37.02 GiB already allocated)\n",  # noqa: E501
        "oom-gpu",
    ),
    "killed while it saved after the end": (f"{STEPS}Training complete. Saving the model to /a\nrun.sh: line 3:   812 Killed    python a.py\n", "unknown-death"),  # noqa: E501
    "killed after it had saved": (f"{STEPS}Training complete. Model saved to /a\nrun.sh: line 3:   812 Killed    python a.py\n", "teardown-crash"),  # noqa: E501
    # Who ended it.
    "a limit in words": ("step 9 loss 2\njob 8 exceeded its maximum runtime of 24h\nReceived SIGTERM, exiting\n", "walltime"),  # noqa: E501
    "a limit by its name": ("step 9 loss 2\nrun 8 terminated, reason: MAX_DURATION_EXCEEDED\n", "walltime"),
    "taken back": ("step 9 loss 2\nrun 8 ended: the spot instance was reclaimed by the provider\n", "preempted"),
    # Numbers.
    "a bar that gets slower": ("".join(f"Epoch {i}: {i}0%|{'#' * i}    | {i}0/90 [0{i}:10<09:28,  {s}]\n" for i, s in enumerate(("1.00it/s", "1.00it/s", "1.21s/it", "1.62s/it", "2.41s/it"), 1)), "unclassified"),  # noqa: E501
    "a rate that falls now and then": ("".join(f"step: {i}0  loss: 3.0  tps: {3110 if i % 2 else 6911}\n" for i in range(1, 8)), "unclassified"),  # noqa: E501
    "a loss that jumps early": ("".join(f"{i}00 steps | loss {x}\n" for i, x in enumerate((2.31, 2.29, 6.91, 7.40, 7.39, 7.41), 1)), "loss-divergence"),  # noqa: E501
    "two runs that part": ("run A:\nstep 10 loss 2.81\nstep 20 loss 2.52\nrun B:\nstep 10 loss 2.81\nstep 20 loss 3.94\n", "unclassified"),  # noqa: E501
    "two runs alike": ("run A:\nstep 10 loss 2.81\nstep 20 loss 2.52\nrun B:\nstep 10 loss 2.81\nstep 20 loss 2.54\n", None),  # noqa: E501
    "one of a row": ("rates: a01 41.2k a02 41.1k a03 41.3k a04 22.8k\nrates: a01 41.1k a02 41.2k a03 41.2k a04 22.9k\n", "unclassified"),  # noqa: E501
    "a row": ("rates: a01 41.2k a02 41.1k a03 41.3k a04 40.8k\nrates: a01 41.1k a02 41.2k a03 41.2k a04 40.9k\n", None),
    "a bar that stands": ("load:  41%|##   | 2.01G/4.90G [10:41<2:11:09, 367kB/s]\nload:  41%|##   | 2.01G/4.90G [20:41<?, ?B/s]\n", "unclassified"),  # noqa: E501
    "a bar that goes on": ("load:  41%|##   | 2.01G/4.90G [10:41<2:11:09, 367kB/s]\nload:  42%|##   | 2.05G/4.90G [20:41<?, ?B/s]\n", None),  # noqa: E501
    # States and answers.
    "the shell's answer": (f"{STEPS}$ echo $?\n137\n", "unclassified"),
    "the shell's good answer": (f"{STEPS}$ echo $?\n0\n", None),
    "a wait that is told again": ("10:10:10 connecting to 10.1.2.3:1234\n10:15:10 still connecting...\n10:20:10 still connecting...\n", "unclassified"),  # noqa: E501
    "an error by its level": ("[10:11:12][I][trainer] step 50 | loss 1.91\n[10:41:13][E][agent] the leader is late by 1800 s\n", "unclassified"),  # noqa: E501
    "an event": ('{"event":"task_failed","task":"w-3","attempt":3}\n{"event":"job_failed","job":"sft"}\n', "unclassified"),  # noqa: E501
    "an event that is well": ('{"event":"task_done","task":"w-3","attempt":3}\n{"event":"job_done","job":"sft"}\n', None),  # noqa: E501
    "codes of all": ("[launch] all workers are through, exit codes: [0, 0, -15, 1]\n", "unclassified"),
    "codes that are all nought": ("[launch] all workers are through, exit codes: [0, 0, 0, 0]\n", None),
    "who lost somebody": ("tr-0 | step 90\ntr-1 | step 90\ntr-0 | lost tr-1, going back to step 80 (1/3)\ntr-0 | step 80\n", "unclassified"),  # noqa: E501
    "no step was made": ("Watchdog: no step finished in 1800 s, writing stacks\n", "unclassified"),
    # What was looked at.
    "a full disk where a write failed": ("OSError: [Errno 5] Input/output error: '/scratch/a/9.pt'\n$ df -h /scratch\n/dev/nvme1n1    3.5T  3.5T     0 100% /scratch\n", "storage-full"),  # noqa: E501
    "a disk with room": ("OSError: [Errno 5] Input/output error: '/scratch/a/9.pt'\n$ df -h /scratch\n/dev/nvme1n1    3.5T  1.5T  2.0T  43% /scratch\n", "storage-error"),  # noqa: E501
    "memory of a process that grows": ("".join(f"rss of rank 0: {41 + 20 * i}.{i} GB\n" for i in range(6)), "host-memory-leak"),  # noqa: E501
    "the reason of what is told above": ("torch._dynamo hit config.recompile_limit (8)\n   last reason: size mismatch at index 1\n", "recompilation"),  # noqa: E501
    "a test of a card that failed": ("dcgmi diag -r 3\n| Diagnostic                | Result |\n| Memory                    | Fail   |\n", "unclassified"),  # noqa: E501
    "tests that passed": ("dcgmi diag -r 3\n| Diagnostic                | Result |\n| Memory                    | Pass   |\n", None),  # noqa: E501
    "ends of several files": ("$ tail -n 2 rank_*.log\n==> rank_0.log <==\nfwd done\nbwd done\n==> rank_1.log <==\nfwd done\n", "unclassified"),  # noqa: E501
    "a person about a machine's lines": ('Every run stops exactly after "Init", any model size.\nINFO Loading\nINFO Seeding with 42\nINFO Init\n', "unclassified"),  # noqa: E501
    "how a machine is used": ("Use `run.py --fast` instead of `go.py`, it works since the last release.\nINFO Loading\nINFO Seeding with 42\n", None),  # noqa: E501
    "the dump of a process": ('py-spy dump --pid 41\nThread 41 (active): "MainThread"\n    read (zipfile.py:93)\n', "unclassified"),  # noqa: E501
    "not successful": ("Checking the hosts.\nLaunching the task function was not successful:\n", "unclassified"),
    "demands of Ray": ("Node status\nDemands:\n {'GPU': 8.0}: 4+ pending tasks/actors (4+ using placement groups)\n", "unclassified"),  # noqa: E501
    "no demands": ("Node status\nDemands:\n (no resource demands)\n", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_an_excerpt_shows(tmp_path: Path, name: str) -> None:
    text, cause = CASES[name]
    assert cause_of(tmp_path, text) == cause


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        # That a driver's job failed tells no more than that its actor died.
        (f"{STEPS}{ACTOR}2025-02-11 01:37:22,094\tERR cli.py:69 -- Job 'raysubmit_Tz41' failed\n", "program"),
        ("$ sky queue\nID   NAME   RESOURCES   STATUS\n7    tiny   1x [T4:1]   FAILED_CONTROLLER\n", "scheduler"),
        (f"{STEPS}$ echo $?\n137\n", "memory"),
        (f"{STEPS}$ ethtool -S eth0\n  rx_bytes: 4\n", "network"),  # what somebody asks tells where he searches
        ("dcgmi diag -r 3\n| Diagnostic                | Result |\n| Memory                    | Fail   |\n", "device"),
        (f"{STEPS}\nThe process is gone without trace. Same on a second machine, between epoch 4 and 6.\n", "program"),
        # When it was says nothing of where to search.
        ("ERROR: node n14 heartbeat late by 91 s, removing it from the gang\n", "program"),
    ],
)
def test_the_class_of_what_it_shows(tmp_path: Path, text: str, kind: str) -> None:
    assert left_open(tmp_path, text) == kind
