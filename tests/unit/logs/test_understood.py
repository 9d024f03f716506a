"""A name is given where the text carries it: what the run did before, who asked, what was only warned of. Our own words."""  # noqa: E501

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.triage_logs import cause_of, left_open, triage_text

from trackwalker.logs.failures.signatures import load
from trackwalker.logs.scanning.stamps import moves

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
import ablation

BARS = "".join(f"Fit [{i}/40]:  {i}0%|#   | {i}/40 [0{i}:11<31:02, 8.1s/it, rew=0.{i}]\n" for i in range(1, 5))
CALM = "".join(f"update {i} of 900, loss 2.{i}\n" for i in range(1, 6))
COMPLETION = "n3:71:90 [1] net.cc:95 NCCL WARN NET/IB : Got completion from peer 10.0.0.4<51> with status={} opcode=0\n"
GROUP = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.\n"
TOLD = "W0613 agent/server/api.py:719] Received 15 death signal, shutting down workers\n"
ADVICE = "/v/trainer/data.py:9: UserWarning: train_dataloader does not have many workers which may be a bottleneck.\n"
BLIND = "W1119 08:02:14.0 91 xla_bridge.py:966] Unable to initialize backend 'rocm': no plugin of that name\n"
INFOS = "".join(f"I1119 08:02:2{i}.1 91 main.py:88] placed block {i} on 8 devices\n" for i in range(4))
BEAT = (
    "E1119 08:04:12.1 91 coordination_service.cc:1170] /job:jax_worker/replica:0/task:0 has been set to ERROR: "
    "UNAVAILABLE: Task /job:jax_worker/replica:0/task:0 heartbeat timeout.\n"
)
NAMED = {
    # Who was well until somebody ended it.
    "well until then": (CALM + TOLD, "user-cancel"),
    "somebody is named": (
        "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-01-02T03:04:05 by 1012 ***\n",
        "user-cancel",
    ),
    # What is set up wrongly never works.
    "keys refused at the first transfer": (
        "n3 NCCL INFO Bootstrap : Using eth0\n" + COMPLETION.format(4),
        "rdma-misconfigured",
    ),
    "a link in the middle of a run of any dialect": (BARS + COMPLETION.format(12), "rdma-link-failure"),
    "nobody has met before": (GROUP, "rendezvous-incomplete"),
    # Whoever is alone is not lost to others; a warning the program went on after is no reason.
    "its own heartbeat": (f"I1119 main.py:3] process_count=1\n{BLIND}{INFOS}{BEAT}", "heartbeat-false-positive"),
    "a warning, and nothing went on": ("WARNING: No GPU devices detected\nE main.py:4] cannot go on\n", "no-gpu"),
    "a bus error of shared memory": (
        "docker run --rm img python a.py\na.sh: line 2:  71 Bus error  python a.py\n",
        "shm-too-small",
    ),
    "Slurm's word on memory": ("srun: error: n4: task 3: Out Of Memory\n", "oom-host"),
}
OPEN = {
    "nothing shows that it was well": ("loading shard 7\n" + TOLD, "scheduler"),
    "it warned before its end": (f"{CALM}WARNING: rank 3 has not answered for 400 s\n{TOLD}", "network"),
    "somebody looked into it": (f"{CALM}^C\nKeyboardInterrupt\n$ py-spy dump --pid 81\n", "program"),
    "transfers had worked in a dialect of its own": (BARS + COMPLETION.format(4), "network"),
    "they had met": (BARS + GROUP, "rendezvous"),
    "advice in a run that stands": (
        f"{ADVICE}{BARS}[nothing more since 10:42; it is 14:05 now]\n$ nvidia-smi\n",
        "program",
    ),
    "who is missed": ("Connection to n14 closed by remote host.\n", "scheduler"),
    "whose memory": ("worker 3: Out of memory\n", "memory"),
    "a bus error alone": ("a.sh: line 2:  71 Bus error  python a.py\n", "memory"),
    "a crash behind an error": (
        "[ERROR] sample 3 of the dataset could not be decoded\nSegmentation fault (core dumped)\n",
        "data",
    ),
}


@pytest.mark.parametrize(("text", "cause"), NAMED.values(), ids=NAMED)
def test_a_text_that_carries_a_name(tmp_path: Path, text: str, cause: str) -> None:
    assert cause_of(tmp_path, text) == cause


@pytest.mark.parametrize(("text", "kind"), OPEN.values(), ids=OPEN)
def test_a_text_that_does_not(tmp_path: Path, text: str, kind: str) -> None:
    assert left_open(tmp_path, text) == kind


def test_what_a_trainer_nobody_knows_went_on_after_ended_nothing(tmp_path: Path) -> None:
    refused = "NET/OFI: fi_getinfo failed, no eligible providers\n"
    assert cause_of(tmp_path, refused) == "rdma-misconfigured"
    found = triage_text(tmp_path, refused + BARS + "aborted: no free slot\n").primary
    assert found is None or found.cause != "rdma-misconfigured"


def test_when_is_no_place_to_search(tmp_path: Path) -> None:
    late = 'Traceback (most recent call last):\n  File "/w/a.py", line 8, in main\n    begin()\nmesh.LateError: {}\n'
    found = triage_text(tmp_path, late.format("timed out after 600 s, deadline over, no tick since: no quorum")).primary
    assert found is not None
    assert found.kind == "rendezvous"


def test_the_class_of_a_killed_loader_is_not_its_data(tmp_path: Path) -> None:
    killed = triage_text(tmp_path, "RuntimeError: DataLoader worker (pid 9) exited unexpectedly\n").primary
    assert killed is not None
    assert killed.kind == "memory"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Epoch 3:  42%|###   | 42/98 [01:10<01:25, 1.03it/s]", True),
        ("ep 17 train, ctc 0.6, 3.2 s/step", True),
        ("{'loss': 1.29, 'epoch': 0.3}", True),
        ("  0%|      | 0/1250 [00:00<?, ?it/s]", False),
        ("Loading checkpoint shards:  40%|###  | 4/10 [00:03<00:04, 1.1it/s]", False),
        ("$ python a.py --steps 40 --epochs=3", False),
        ("slurmstepd: error: *** STEP 771.0 ON n1 CANCELLED", False),
        ("0: Config param steps: 100", False),
        ("step 41", False),  # a counter that does not count on may be a setting
    ],
)
def test_progress_in_any_dialect(line: str, told: bool) -> None:
    assert bool(moves(line.encode())) is told


def test_counters_that_count_on_are_progress() -> None:
    assert moves(b"begin\nstep 41\nnothing\nstep 42\n", 7) == [8, 10]


def test_an_ablation_takes_away_what_decides_and_gives_it_back(tmp_path: Path) -> None:
    text = b"run 4\nCUDA error: out of memory on device 3\nRuntimeError: the trainer ended\n"
    assert ablation.ask(text, tmp_path).cause == "oom-gpu"
    rules = load().rules
    with ablation.without(ablation.deciding(text, "oom-gpu")):
        assert ablation.ask(text, tmp_path).cause != "oom-gpu"
    assert load().rules is rules
    assert ablation.ask(text, tmp_path).cause == "oom-gpu"
