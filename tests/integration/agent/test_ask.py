"""Every documented phrasing is answered right in the lab's cases of the posts, from real databases."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from model_server import model

from conftest import tree_hash
from trackwalker.agent.ask.ask import Answered, ask, document
from trackwalker.agent.ask.questions import phrasings
from trackwalker.agent.workspace import Workspace
from trackwalker.cli.app import main
from trackwalker.lab.scenario import Scenario, Truth, load_scenario
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.scoring.tools import ask as ask_tool
from trackwalker.lab.simulate import simulate

pytestmark = [pytest.mark.usefixtures("prometheus")]

# Six nodes with the posts' own names are enough for each truth; 24 would only take longer.
HOSTS = {"rdma-8308": ["chi2810", "chi2822", "chi2834", "chi2835", "chi2882", "chi2901"]}
ACCUSED = 10  # the task with the highest number that the post of 8043 speaks of
CASES = ("restore-7879", "restore-7882", "hang-7877", "moe-7938", "heartbeat-8043", "rdma-8308", "rdma-8309")


def smaller(name: str) -> Scenario:
    """A case of the posts on six nodes; the hang after 241 steps instead of 3,841."""
    scenario = load_scenario(f"posts/{name}")
    hosts = HOSTS.get(name, scenario.world["hosts"][: ACCUSED + 1 if name == "heartbeat-8043" else 6])
    world = {**scenario.world, "nodes": len(hosts), "hosts": hosts, "gpus": 2}
    faults = scenario.faults
    if name == "hang-7877":
        world["steps"] = 260
        faults = [{**faults[0], "at": 241}]
    return scenario.model_copy(update={"world": world, "faults": faults})


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Path:
    """All cases of the posts in one workspace, and a healthy 405b run for the question about its performance."""
    root = tmp_path_factory.mktemp("ask")
    place = root / "outputs"
    place.mkdir()
    plain = load_scenario("healthy-plain")
    fast = plain.model_copy(
        update={"world": {**plain.world, "job_id": "8104", "model": "llama3.1-405b", "nodes": 2, "gpus": 2}}
    )
    for name, scenario in (("perf-8104", fast), *((name, smaller(name)) for name in CASES)):
        made = simulate(scenario, root / name)
        for entry in made.workspace.iterdir():
            if entry.name != ".artifacts":
                entry.rename(place / entry.name)
    for at, name in enumerate(CASES):  # in the order they were run
        for log in place.glob(f"{name.split('-')[1]}-*.log"):
            os.utime(log, (2e9 + at, 2e9 + at))
    return place


@pytest.fixture(scope="module")
def ws(workspace: Path) -> Iterator[Workspace]:
    """One workspace for all questions: a verdict is computed once."""
    found = Workspace(workspace)
    before = tree_hash(workspace)
    yield found
    found.close()
    assert tree_hash(workspace) == before, "asking changed a job"


@pytest.mark.parametrize("each", phrasings(), ids=lambda p: str(p["ask"]))
def test_every_documented_phrasing_is_answered_right(each: dict[str, Any], ws: Workspace) -> None:
    reply = ask(each["ask"], ws)
    assert (reply.asked.intent, list(reply.asked.jobs)) == (each["intent"], each["jobs"])
    whole = " ".join([reply.text, *(q.says for q in reply.evidence), *reply.next])
    for pattern in each["says"]:
        assert re.search(pattern, whole), f"{pattern!r} is not in: {whole}"
    assert len(reply.sentences) <= 8
    told = document(Answered(reply), ws)
    assert told["grounding"]["engine"]["struck"] == [], "our own sentences hold to what we ask of a model's"
    if reply.verdict is not None:
        assert reply.evidence, "a verdict without evidence is none"
        assert reply.next, "and without a next step of no use"


def test_a_host_that_is_named_is_accused_or_not(ws: Workspace) -> None:
    assert ask("is node chi2822 bad in 8308?", ws).sentences[0] == "chi2822 is suspect: RDMA degradation."
    assert ask("is chi2901 the problem in 8308?", ws).sentences[0] == "chi2901 is not suspect."


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: object
    out: str
    err: str


@pytest.fixture
def trackwalker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Done]:
    """The command line in this process, which has read its modules already; no model is set from outside."""
    for name in ("TRACKWALKER_MODEL", "TRACKWALKER_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["trackwalker", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


def test_the_lab_can_grade_the_command_on_a_path(workspace: Path) -> None:
    (job,) = workspace.glob("8308-*/")
    tool = f"{sys.executable} -m trackwalker ask --no-model --json 'why is {{job}} slow'"
    answer = ask_tool(tool, job, limit_s=240)
    assert answer.error == ""
    told = answer.verdict
    assert told is not None
    truth = Truth(**load_scenario("posts/rdma-8308").truth)
    assert grade(told, truth).passed
    assert (told["schema"], told["outcome"]) == ("trackwalker.ask/1", "incident")
    assert [c["cause"] for c in told["causes"] if c["role"] == "root"] == ["rdma-degradation"]
    assert told["grounding"]["engine"]["checked"] > 5


def test_what_is_not_understood_exits_with_2_and_says_what_can_be_asked(
    workspace: Path, trackwalker: Callable[..., Done]
) -> None:
    done = trackwalker("ask", "-w", str(workspace), "make", "me", "a", "coffee")
    assert done.code == 2
    assert "triage 8043" in done.err
    assert done.err.count("\n") == 1


def test_a_local_endpoint_investigates_and_its_invention_is_struck_out(
    workspace: Path, trackwalker: Callable[..., Done]
) -> None:
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: pip install -e '.[agent]'")
    query = {"job": "8308", "promql": "sum by (host) (rate(hw_rdma_tx_retx_pkts_total[5m]))"}
    call = {"id": "c1", "type": "function", "function": {"name": "query_metrics", "arguments": json.dumps(query)}}
    text = "The NICs of chi2822 and chi2834 retransmit. GPU power on chi2899 fell to 123 W."
    with model({"tool_calls": [call]}, {"content": text}) as (url, heard):
        words = ("ask", "-w", str(workspace), "--endpoint", url, "why is 8308 TGS so bad")
        done = trackwalker(*words)
    assert done.code == 0, done.err
    assert "looks: query_metrics(job=8308" in done.err
    answer = " ".join(done.out.split())
    assert answer.index("RDMA retransmits on chi2822") < answer.index("adds (checked against the evidence"), (
        "ours is first"
    )
    assert "The NICs of chi2822 and chi2834 retransmit. ~~GPU power on chi2899 fell to 123 W.~~" in answer
    assert "in no evidence: chi2899, 123" in answer
    asked = [json.loads(each) for each in heard]
    assert asked[0]["model"] == "small-model"
    offered = {tool["function"]["name"] for tool in asked[0]["tools"]}
    assert "query_metrics" in offered
    assert not offered & {"submit_job", "cancel_job", "exclude_nodes", "stack_dump"}
    shown = [m["content"] for m in asked[1]["messages"] if m["role"] == "tool"]
    assert "chi2822" in shown[0]


def test_a_missing_key_is_a_note_and_a_name_without_a_provider_is_refused(
    workspace: Path, trackwalker: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: pip install -e '.[agent]'")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ("ask", "-w", str(workspace), "--json", "how far did 8043 come?")
    done = trackwalker(*words, "--model", "openai:gpt-5")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert "OPENAI_API_KEY" in told["model"]["note"]
    assert "came to step 71" in told["answer"]
    done = trackwalker(*words, "--model", "gpt-5")
    assert (done.code, done.out) == (2, "")
    assert "give provider:name" in done.err


def test_an_endpoint_that_is_not_there_leaves_the_answer_a_note_and_exit_code_0(
    workspace: Path, trackwalker: Callable[..., Done]
) -> None:
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: pip install -e '.[agent]'")
    with model({"content": "gone"}) as (url, _):
        pass  # closed again: nobody listens there any more
    words = ("ask", "-w", str(workspace), "--endpoint", url, "how far did 8043 come?")
    done = trackwalker(*words)
    assert done.code == 0, done.err
    answer = " ".join(done.out.split())
    assert "came to step 71" in answer
    assert "note: the endpoint" in answer
    assert "the answer above is the engine's" in answer
