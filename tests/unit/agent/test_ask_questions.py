"""From words to intent and jobs: ids anywhere, names, the last and the running job, typing errors, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackwalker.agent.ask.questions import examples, phrasings, understand
from trackwalker.agent.ask.spelling import corrected, distance
from trackwalker.errors import JobNotFoundError, TrackwalkerError, UsageError
from trackwalker.job.layout import Job

DOCS = Path(__file__).parents[3] / "docs" / "how-to" / "ask.md"


def jobs(*names: str) -> list[Job]:
    """Newest first."""
    return [Job(name.split("-")[0], Path(f"/ws/{name}.log"), Path(f"/ws/{name}")) for name in names]


WS = jobs(
    "8309-JAX-ds-proxy",
    "8308-JAX-ds-proxy",
    "8104-JAX-llama3.1-405b",
    "7879-JAX-ds-proxy",
    "local_20261115_093000_ab12-JAX-tiny",
)

WORDS = [
    *(w for p in phrasings() for w in p["ask"].split()),
    "8308",
    "8309",
    "the",
    "last",
    "job",
    "running",
    "B",
    "A",
    "12",
]


def asked(
    question: str, known: list[Job] | None = None, running: list[str] | None = None
) -> tuple[str, tuple[str, ...]]:
    found = understand(question, WS if known is None else known, lambda: running or [])
    return found.intent, found.jobs


def test_there_are_forty_documented_phrasings_and_the_page_has_all_of_them() -> None:
    assert len(phrasings()) == 40
    page = DOCS.read_text()
    assert [p["ask"] for p in phrasings() if p["ask"] not in page] == []


@pytest.mark.parametrize("each", phrasings(), ids=lambda p: str(p["ask"]))
def test_every_documented_phrasing_is_understood(each: dict[str, object]) -> None:
    ids = ("8309", "8308", "8043", "7938", "7882", "7879", "7877")
    known = jobs(*(f"{i}-JAX-ds-proxy" for i in ids), "8104-JAX-llama3.1-405b")
    assert asked(str(each["ask"]), known) == (each["intent"], tuple(each["jobs"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("question", "intent", "job"),
    [
        ("8308", "why", "8308"),
        ("8308?!", "why", "8308"),
        ("hey, can you look into 8308 please", "triage", "8308"),
        ("WHY DID 8308 CRASH", "why", "8308"),
        ("job 8308: root cause?", "why", "8308"),
        ("diagnsoe 8308", "why", "8308"),
        ("is 8308 hangign", "hang", "8308"),
        ("why did the last job die", "why", "8309"),
        ("how is the newest run doing, is it done?", "status", "8309"),
        ("is the running one stuck?", "hang", "7879"),
        ("why is the llama3.1-405b job slow", "slow", "8104"),
        ("perf of the 405b", "perf", "8104"),
        ("tail tiny", "tail", "local_20261115_093000_ab12"),
        ("triage local_20261115_093000_ab12", "triage", "local_20261115_093000_ab12"),
        ("triage local_2026", "triage", "local_20261115_093000_ab12"),
        ("why did 810 fail", "why", "8104"),
        ("why did 8308 stop at step 7879", "why", "8308"),
        ("8308 lost 20 % of its speed after 7879 steps", "slow", "8308"),
        ("did 8308 OOM?", "memory", "8308"),
        ("did the loss of 8308 diverge", "loss", "8308"),
        ("is the filesystem the problem in 8308", "storage", "8308"),
        ("when will 8308 finish?", "progress", "8308"),
        ("how sure are you about 8308", "evidence", "8308"),
        ("can I resume 8308", "next", "8308"),
        ("at what step did 8308 slow down", "slow", "8308"),
        ("what was the exit code of 8308", "status", "8308"),
        ("is 8308 ok?", "why", "8308"),
        ("is 8308 fast enough", "perf", "8308"),
        ("give me the log of 8308", "tail", "8308"),
    ],
)
def test_other_words_for_the_same(question: str, intent: str, job: str) -> None:
    assert asked(question, running=["7879"]) == (intent, (job,))


@pytest.mark.parametrize(
    ("question", "pair"),
    [
        ("why is 8309 slower than 8308", ("8308", "8309")),
        ("why is 8308 faster than 8309", ("8308", "8309")),
        ("compare 8308 and 8309", ("8308", "8309")),
        ("8308 versus 8309", ("8308", "8309")),
        ("how does 8309 differ from 8308", ("8308", "8309")),
        ("why is 8309 slower than the one before", ("8308", "8309")),
        ("why is the last job slower than 7879", ("7879", "8309")),
        ("why is 8309 slower than before", ("8308", "8309")),
        ("why is 8309 so slow compared to 8308", ("8308", "8309")),
        ("why is 8309 slow but 8308 fast", ("8308", "8309")),
        ("diff 8308 8309", ("8308", "8309")),
    ],
)
def test_the_job_that_is_compared_with_comes_first(question: str, pair: tuple[str, str]) -> None:
    assert asked(question) == ("compare", pair)


def test_job_a_and_job_b_are_the_older_and_the_newer_of_two() -> None:
    two = jobs("7882-JAX-x", "7879-JAX-x")
    assert asked("why is job B slower than job A?", two) == ("compare", ("7879", "7882"))
    with pytest.raises(JobNotFoundError, match="which one is job B"):
        asked("why is job B slower than job A?")


def test_a_guess_is_said() -> None:
    assert "the newest" in understand("why is it so slow", WS, list).guesses[0]
    assert understand("why is 8308 so slow", WS, list).guesses == ()
    assert understand("why is it so slow", WS[:1], list).guesses == ()


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ("", "nothing was asked"),
        ("?!", "nothing was asked"),
        ("make me a coffee", "not understood"),
        ("8308 pizza", "not understood"),
        ("triage 9999", "no job '9999'"),
        ("triage 8380", "did you mean 8308"),
        ("triage 830", "could be 2 jobs"),
        ("compare 8104", "with which job"),
        ("compare 8308 8309 8104", "two jobs are compared at a time"),
        ("triage the running one", "no job of this workspace is known to be running"),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_exit_code_2(question: str, says: str) -> None:
    with pytest.raises(TrackwalkerError, match=says) as caught:
        asked(question)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_an_empty_workspace_and_two_running_jobs_are_said() -> None:
    with pytest.raises(JobNotFoundError, match="no job in this workspace"):
        asked("why is it slow", [])
    with pytest.raises(JobNotFoundError, match="2 jobs are running: which of 8308, 8309"):
        asked("triage the running job", running=["8308", "8309"])


def test_what_is_not_understood_names_one_example_of_each_kind() -> None:
    with pytest.raises(UsageError) as caught:
        asked("sing a song")
    assert examples() in str(caught.value)
    assert examples().count(";") == len({p["intent"] for p in phrasings()}) - 1


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)))
def test_whatever_is_asked_is_understood_or_refused_in_one_line(question: str) -> None:
    try:
        found = understand(question, WS, lambda: ["8308"])
    except TrackwalkerError as e:
        said, jobs_of = str(e), None
    else:
        said, jobs_of = "", found
    assert "\n" not in said
    if jobs_of is not None:
        assert {*jobs_of.jobs} <= {job.id for job in WS}
        assert len(jobs_of.jobs) == {"jobs": 0, "compare": 2}.get(jobs_of.intent, 1)


def test_right_words_are_left_alone_and_wrong_ones_mended() -> None:
    known = ["stop", "host", "loss", "triage", "network", "hanging", "why"]
    assert corrected("most steps were lost at step 7", known) == "most steps were lost at step 7"
    assert corrected("Wyh is teh netwrok hanigng", known) == "why is teh network hanging"
    assert [distance(*pair) for pair in (("triage", "trigae"), ("slow", "slow"), ("a", "abc"))] == [1, 0, 2]
