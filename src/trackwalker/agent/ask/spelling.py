"""Typing errors in a question: a word that is none is read as the one it was meant to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_SHORTEST = 4  # of a word with a wrong letter in it; shorter ones may only have two letters swapped

# Words that questions are made of. They are right as they are, however close to one with a meaning they come
# ("step" is not "stop", "most" is not "host").
_PLAIN = frozenset(
    """
    about after again also because been before being below best better came code come could data date does doing
    down each else even ever every find fine from gave give goes gone good great half hand hard here hers hold hour
    hours into itself keep kept know land late later less like line list live lives load long look looks lose lost
    made main make many mean meant mine minutes mode model models more morning most much must name names near need
    never night note nothing once only open other ours over part past place plan please point quite rare rate real
    right same seem seen send sent short show shown side since some soon sort start started step steps still such
    sure take task tasks tell test than thank that their them then there these they thing think this those time
    times today told tonight took train trained trainer training turn type under until upon used user very wait want
    week well went were when where while will wish with work working worse worst would year yesterday your
    """.split()  # noqa: SIM905 - a list of words is read more easily as a text
)


def corrected(text: str, vocabulary: Iterable[str], right: Callable[[str], object] = lambda word: False) -> str:
    """The text in lower case, with each unknown word replaced by the one of the vocabulary that it nearly is.

    A word for which `right` is true is left as it is.
    """
    known = frozenset(vocabulary)
    return _WORD.sub(lambda m: m[0] if right(m[0]) else _meant(m[0], known), text.lower())


@cache
def _meant(word: str, known: frozenset[str]) -> str:
    if word in known or word in _PLAIN:
        return word
    best, least = word, _tolerance(word) + 1
    for other in sorted(known):
        if abs(len(other) - len(word)) < least and (found := distance(word, other)) < least:
            best, least = other, found
    if least > 1 and best[0] != word[0]:  # two errors and another first letter: another word
        return word
    return best if len(word) >= _SHORTEST or sorted(best) == sorted(word) else word


def _tolerance(word: str) -> int:
    return 1 if len(word) < 7 else 2


def distance(a: str, b: str) -> int:
    """How many letters to add, drop, change or swap with their neighbour turn one word into the other."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        previous, row = row, [i]
        for j, other in enumerate(b, 1):
            cost = min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before = previous
    return row[-1]
