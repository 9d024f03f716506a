"""Who wrote a line, where no launcher's label says it: labels, tables and records that a log shows by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job
from trackwalker.logs.failures.roster import read_tables
from trackwalker.logs.formats.records import read_pairs, read_record
from trackwalker.logs.scanning.labels import learn_label
from trackwalker.logs.scanning.lines import parse

FORMS = {
    "column": "r{rank:02d} | {text}",
    "host and rank": "[{host}][rank {rank}] {text}",
    "slash": "{host}/{rank}: {text}",
    "pod and container": "train-{rank} main {text}",
    "host, rank, column": "{host} rank{rank} | {text}",
}
SAID = ["ready", "seed 7 set", "loaded plan 3", "ready", "warm"]


def lines(form: str, last: str = "") -> list[str]:
    said = [(text, rank) for text in SAID for rank in (2, 0, 3, 1)] + ([(last, 3)] if last else [])
    return [form.format(rank=rank, host=f"cn0{rank // 2 + 4}", text=text) for text, rank in said]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_label_is_learned_from_the_log(form: str) -> None:
    label = learn_label(lines(form))
    assert label is not None
    told = label.split(form.format(rank=3, host="cn05", text='  File "a.py", line 3'))
    assert told is not None
    assert (told[0], told[2]) == (3, '  File "a.py", line 3')
    assert told[1] in ("cn05", "train-3", "")


def test_a_counter_and_a_table_are_no_labels() -> None:
    assert learn_label(f"step {n}: loss {9 - n / 100:.2f} x" for n in range(40)) is None
    assert learn_label(f"| {n} | cn{n // 4} | 80 GB |" for n in range(16)) is None
    assert learn_label(f"{n}h  Normal  Pulled  Pod/a  said {n % 3}" for n in (10, 10, 8, 8, 9, 10, 8)) is None


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
