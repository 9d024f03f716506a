"""What an excerpt shows beside its errors: who was told before, what was typed after, whose the words are: our own words."""  # noqa: E501

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.triage_logs import triage_text

from trackwalker.errors import NotAJobError

STEPS = "".join(f"iter {i} loss 2.{i} 0.51 s\n" for i in range(3))
KNOWN = "".join(
    f" iteration {i:8d}/ 900 | elapsed time per iteration (ms): 10.0 | lm loss: 7.{i}E+00 |\n" for i in range(3)
)  # noqa: E501
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
    "states of what is well": ("$ sky queue\nID   NAME   RESOURCES   STATUS\n7    tiny   1x [T4:1]   SUCCEEDED\n", None),
    "a remark under its writer's name": (f"{STEPS}[ops] the file ends here. Nobody says that they touched it.\n", "unclassified"),  # noqa: E501
    "there was no error": (f"I left it over night and this morning nothing is there. No error, the cards are empty.\n\n{STEPS}", "unclassified"),  # noqa: E501
    "it ended with no errors": (f"# all three of them ended with no errors, this is the last\n{STEPS}", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_an_excerpt_shows(tmp_path: Path, name: str) -> None:
    text, cause = CASES[name]
    primary = None
    with suppress(NotAJobError):
        primary = triage_text(tmp_path, text).primary
    assert (primary.cause if primary else None) == cause


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        # That a driver's job failed tells no more than that its actor died.
        (f"{STEPS}{ACTOR}2025-02-11 01:37:22,094\tERR cli.py:69 -- Job 'raysubmit_Tz41' failed\n", "program"),
        ("$ sky queue\nID   NAME   RESOURCES   STATUS\n7    tiny   1x [T4:1]   FAILED_CONTROLLER\n", "program"),
    ],
)
def test_the_class_of_what_it_shows(tmp_path: Path, text: str, kind: str) -> None:
    primary = triage_text(tmp_path, text).primary
    assert primary is not None
    assert (primary.cause, primary.kind) == ("unclassified", kind)
