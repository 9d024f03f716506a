"""A figure that nobody has seen takes its sentence with it; one that was only rounded or told in other units stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackwalker.agent.ask.grounding import Corpus, check

SEEN = {
    "summary": "RDMA retransmits on chi2822, chi2834 delay every collective: 3291.2 tokens/s/device, then 2519.7",
    "causes": [
        {"cause": "rdma-degradation", "hosts": ["chi2822", "chi2834", "chi2835", "chi2882"], "confidence": 0.987}
    ],
    "magnitude": {"from": 3291.2, "to": 2519.7, "change": -0.2344},
    "onset": {"time": "2026-02-24T19:41:03Z", "step": 97},
    "evidence": [{"id": "e39", "values": {"chi2822": 900.4, "bytes": 137438953472}, "source": "rate(x[3677s])"}],
    "remaining_s": 149340.0,
}


@pytest.fixture
def corpus() -> Corpus:
    found = Corpus()
    found.add(json.dumps(SEEN))
    return found


@pytest.mark.parametrize(
    "sentence",
    [
        "Throughput fell from 3,291 to 2,520 tokens/s/device.",
        "That is -23.4 %, or 23 percent.",
        "The onset is step 97 at 19:41:03, on 2026-02-24.",
        "chi2822 retransmits 900 packets/s (e39), chi2834 as well.",
        "Four hosts are accused; 4 of them share a rail.",
        "The phase took 61 min, and the rest needs 1 d 17 h.",
        "Confidence is 98.7 %.",
        "It holds 128 GiB of host memory, in bf16 over IPv6.",
        "1. Take the host out.",
        "Nothing here is a figure.",
        "At step97 rank 97 is meant.",
    ],
)
def test_what_was_seen_stands_however_it_is_written(sentence: str, corpus: Corpus) -> None:
    found = check(sentence, corpus)
    assert found.struck == ()
    assert found.text == sentence


@pytest.mark.parametrize(
    ("sentence", "missing"),
    [
        ("Throughput fell to 2,100 tokens/s/device.", "2,100"),
        ("The drop is 31 %.", "31 %"),
        ("chi9999 is the culprit.", "chi9999"),
        ("It began at 18:00:00.", "18:00:00"),
        ("See e77.", "e77"),
        ("Seven hosts are bad.", "Seven"),
        ("It came from 10.0.0.7.", "10.0.0.7"),
        ("GPU 5 of chi2822 is hot.", "5"),
        ("The rest needs 3 d 2 h.", "3 d 2 h"),
        ("A step takes 2.52 s.", "2.52"),
        ("It is 97.2x slower.", "97.2x"),
    ],
)
def test_what_nobody_has_seen_takes_its_sentence_with_it(sentence: str, missing: str, corpus: Corpus) -> None:
    found = check(sentence, corpus)
    assert found.text == f"~~{sentence}~~"
    assert [what for _, names in found.struck for what in names] == [missing]


def test_only_the_sentence_is_struck_and_lists_keep_their_form(corpus: Corpus) -> None:
    text = (
        "The NICs of chi2822 lose packets. It loses 12,345 a second. Take it out.\n"
        "1. Exclude chi2822.\n2. Exclude chi7777.\n"
    )
    found = check(text, corpus)
    assert found.text == (
        "The NICs of chi2822 lose packets. ~~It loses 12,345 a second.~~ Take it out.\n"
        "1. Exclude chi2822.\n2. ~~Exclude chi7777.~~\n"
    )
    counted = found.to_dict()
    assert counted["checked"] - counted["grounded"] == 2
    assert [s["not_in_evidence"] for s in counted["struck"]] == [["12,345"], ["chi7777"]]


PIECES = [
    "chi2822",
    "chi9999",
    "2,520",
    "31 %",
    "e39",
    "e77",
    "Four",
    "1.",
    "2.",
    "- ",
    "\n",
    ".",
    "! ",
    "is bad",
    "19:41:03",
    "~",
]


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)))
def test_striking_out_loses_and_invents_no_word(text: str) -> None:
    corpus = Corpus()
    corpus.add(json.dumps(SEEN))
    found = check(text, corpus)
    assert found.text.replace("~", "").split() == text.replace("~", "").split()
    assert (found.text == text) == (not found.struck)


def test_a_name_of_the_question_may_be_repeated_but_its_numbers_prove_nothing(corpus: Corpus) -> None:
    corpus.add_names("is chi2901 at 105 degrees to blame?")
    assert check("chi2901 is not suspect.", corpus).struck == ()
    assert check("It was at 105 degrees.", corpus).struck
