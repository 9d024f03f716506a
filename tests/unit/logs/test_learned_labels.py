"""Who wrote a line, where no launcher's label says it: labels, tables and records that a log shows by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job
from trackwalker.logs.failures.owners import Label, hosts_listed, label_of
from trackwalker.logs.failures.roster import read_tables
from trackwalker.logs.failures.whereabouts import Places
from trackwalker.logs.formats.records import read_pairs, read_record
from trackwalker.logs.scanning.labels import learn_forms
from trackwalker.logs.scanning.lines import Body, parse

FORMS = {
    "column": "r{rank:02d} | {text}",
    "host and rank": "[{host}][rank {rank}] {text}",
    "slash": "{host}/{rank}: {text}",
    "pod and container": "train-{rank} main {text}",
    "host, rank, column": "{host} rank{rank} | {text}",
    "at": "<{rank}@{host}> {text}",
    "one word": "{host}.{rank}> {text}",
    "behind the text": "{text} (w{rank}/{host})",
    "fields of another name": 'who={rank} where={host} what="{text} now"',
    "record": '{{"who": {rank}, "where": "{host}", "what": "well, {text}"}}',
    "place on a host": "{host}: <gpu {local}> {text}",
    "levels before it": "09:00:05 INFO loop {host}#{rank} {text}",
}
SAID = ["ready", "seed 7 set", "loaded plan 3", "ready", "warm"]


def lines(form: str, last: str = "") -> list[str]:
    said = [(text, rank) for text in SAID for rank in (2, 0, 3, 1)] + ([(last, 3)] if last else [])
    return [form.format(rank=rank, host=f"cn0{rank // 2 + 4}", local=rank % 2, text=text) for text, rank in said]


def learned(said: list[str]) -> list[Label]:
    return [label for form in learn_forms(said) if (label := label_of(form, said, {})) is not None]


def told(said: list[str], line: str) -> tuple[int | None, str, str] | None:
    return next((found for label in learned(said) if (found := label.split(line)) is not None), None)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_label_is_learned_from_the_log(form: str) -> None:
    found = told(lines(form), form.format(rank=3, host="cn05", local=1, text="it broke"))
    assert found is not None
    assert found[0] == 3
    assert found[1] in ("cn05", "train-3", "")
    assert "it broke" in found[2]


def test_a_names_rank_is_the_one_that_a_line_of_the_start_shows_beside_it() -> None:
    pids = (7101, 7340, 6999, 8123)
    start = [f"spawned rank {rank} as pid {pid} on cn0{rank // 2 + 4}" for rank, pid in enumerate(pids)]
    said = start + [f"[pid {pids[r]}] {text}" for text in SAID for r in (2, 0, 3, 1)]
    assert told(said, "[pid 6999] it broke") == (2, "", "it broke")


def test_a_host_that_is_only_counted_has_the_name_that_stands_beside_it() -> None:
    start = ["node0 = hx11 (2 GPUs)", "node1 = hx12 (2 GPUs)"]
    said = start + [f"[node{r // 2}:gpu{r % 2}] {text}" for text in SAID for r in (2, 0, 3, 1)]
    assert told(said, "[node1:gpu0] it broke") == (2, "hx12", "it broke")


def test_ranks_that_speak_once_are_called_like_the_one_that_speaks_most() -> None:
    said = [f"[0@hx11] step={n} loss={9 - n / 100:.3f}" for n in range(9)]
    said += ["[13@hx12] peer closed", "[5@hx11] no word from 3", "[9@hx12] peer closed", "[9@hx12] leaving"]
    assert told(said, "[11@hx12] it broke") == (11, "hx12", "it broke")


def test_a_counter_and_a_table_are_no_labels() -> None:
    assert learned([f"step {n}: loss {9 - n / 100:.2f} x" for n in range(40)]) == []
    assert learned([f"| {n} | cn{n // 4} | 80 GB |" for n in range(16)]) == []
    assert learned([f"{n}h  Normal  Pulled  Pod/a  said {n % 3}" for n in (10, 10, 8, 8, 9, 10, 8)]) == []


def test_a_list_of_hosts_and_headings_tell_where_ranks_are() -> None:
    assert hosts_listed(["hosts (2): hx11,hx12; in this order"], 4) == {0: "hx11", 1: "hx11", 2: "hx12", 3: "hx12"}
    places = Places()
    places.front(b"-----\nhx12\n-----\nNODE_RANK=1 NPROC_PER_NODE=2\n[lr1] ready\n[lr1] it broke\n")
    body = places.sections.owned(Body("[lr1] it broke", None, None, False, None), 6)
    assert (body.rank, body.host, body.text) == (3, "hx12", "it broke")


def test_tables_tell_who_runs_where() -> None:
    two = {0: "cn04", 1: "cn04", 2: "cn05", 3: "cn05"}
    assert (
        read_tables(["rank  host  device", "----  ----  ------", *(f"{r}  {h}  cuda:{r % 2}" for r, h in two.items())])
        == two
    )
    assert read_tables(["  rank 0-1 -> cn04", "  rank 2-3 -> cn05"]) == two
    assert read_tables(["hostfile:", "cn04 slots=2", "cn05 slots=2"]) == two
    assert read_tables(["WORLD INFO DICT: {'cn04': [0, 1], 'cn05': [0, 1]}"]) == two
    assert read_tables(["  global_ranks=[0, 1]", "  global_ranks=[2, 3]"], ["cn04", "cn05"]) == two
    assert read_tables(["layer 3 of 16 on the host side", "loss 3.1 at 0.2"]) == {}


def test_records_tell_who_said_it() -> None:
    pod = '{"log": "it broke\\n", "stream": "stderr", "kubernetes": {"pod_name": "t-3", "host": "cn05"}}'
    fluentd = read_record(f"2026-11-14 09:00:00.0 +0000 kube.train: {pod}")
    assert fluentd is not None
    assert (fluentd.said, fluentd.rank, fluentd.host) == ("it broke", 3, "cn05")
    ecs = read_record('{"log.level": "error", "host.name": "cn05", "labels": {"rank": 3}, "message": "it broke"}')
    assert ecs is not None
    assert (ecs.level, ecs.rank, ecs.host) == ("error", 3, "cn05")
    fields = read_pairs('ts=2026-11-14T09:00:00Z lvl=error rank=3 host=cn05 msg="it broke"')
    assert fields is not None
    assert (fields.said, fields.rank, fields.host) == ("it broke", 3, "cn05")
    assert read_record('{"text": "a sample that speaks of an error", "id": 3}') is None


def test_what_one_rank_says_of_itself_stands_before_reactions_wherever_it_stands(tmp_path: Path) -> None:
    steps = [f"r00 | step {n}: loss {9 - n / 100:.4f}, time 4000.10ms" for n in range(8)]
    lost = [f"r{r:02d} | RuntimeError: [gloo/pair.cc:534] Connection closed by peer [10.0.0.4]:41" for r in (0, 1, 2)]
    log = tmp_path / "x.log"
    log.write_text(
        "\n".join([*lines(FORMS["column"]), *steps, *lost, "r03 | [error    ] the shelf has no room for part 7", *lost])
    )
    found = triage(Job("x", log, None)).primary
    assert found is not None
    assert (found.cause, found.rank, found.kind) == ("unclassified", 3, "storage")


def test_a_lines_own_field_says_more_of_its_rank_than_a_place_on_its_node() -> None:
    head = b"[default1]:[NeMo E 2026-05-08 21:19:29 site:58 rank:5] stage 3 was passed the wrong batch"
    pod = b"[pod/lm-worker-1/main] rank=14 error the saved state is damaged"
    hearsay = b"[default1]:lost rank:5 while waiting"
    assert [(b.rank, b.local) for raw in (head, pod, hearsay) if (b := parse(raw))] == [(5, None), (14, None), (1, 1)]


def test_checks_of_the_launcher_stay_its_own_words(tmp_path: Path) -> None:
    checks = [
        "[CHECK_NICS] OK (1)",
        "[CHECK_DISK] OK (73 GiB free)",
        "[CHECK_THP] OK (madvise)",
        "[CHECK_RDMA] skipped",
    ]
    said = [f"{host} | {check}" for host in ("cn04", "cn05") for check in checks * 3]
    said.insert(5, "FATAL: cn05 | [CHECK_GPUS] 0 GPUs (expected 8); leave this node out")
    log = tmp_path / "x.log"
    log.write_text("\n".join([*said, "== Preflight FAILED (exit=1, 0s) =="]) + "\n")
    found = triage(Job("x", log, None)).primary
    assert found is not None
    assert (found.cause, found.host) == ("no-gpu", "cn05")
