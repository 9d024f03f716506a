"""Machine code that reads a store's answers and writes chunks: the same numbers and bits as without it."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackwalker.telemetry import matrix, xor

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed: pip install -e '.[scale]'")

STEPS = [1, 10_000, 10_001, 18_192, 75_536, 534_288, 3_000_000, 10**12]  # each class of differences, and its edges


@pytest.mark.parametrize("count", [1, 2, 3, 120])
@pytest.mark.parametrize("kinds", [1, 3, len(STEPS)])
def test_chunks_are_the_same_bit_by_bit(count: int, kinds: int) -> None:
    rng = np.random.default_rng(count)
    rows = 60
    times = np.cumsum(rng.choice(STEPS[:kinds], (rows, count)), axis=1) + rng.integers(-(10**12), 10**13, (rows, 1))
    odd = rng.choice([0.0, 1.0, np.nan, np.inf, 1e300, -0.0, 5e-324], (rows, count))
    for values in (np.ones((rows, count)), rng.normal(size=(rows, count)).round(2), odd):
        assert xor._by_compiler(times, values) == xor._encode(times, values)


def answer(numbers: list[str], stamp: str = "1778856299.123") -> bytes:
    """One series under an awkward name."""
    samples = ",".join(f'[{stamp},"{n}"]' for n in numbers)
    series = f'{{"metric":{{"x":"\\"values\\":[["}},"values":[{samples}]}}'
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{series}]}}}}'.encode()


DECIMAL = st.from_regex(r"-?[0-9]{1,6}(\.[0-9]{1,13})?", fullmatch=True)
LONG = st.floats(0, 1e9).map(lambda v: f"{v:.9f}")


@settings(max_examples=40)
@given(st.lists(st.one_of(DECIMAL, LONG, st.sampled_from(["NaN", "+Inf", "-Inf"])), min_size=1))
def test_numbers_are_read_as_a_parser_reads_them(numbers: list[str]) -> None:
    found = matrix._by_compiler(answer(numbers))
    assert found is not None
    [(labels, times, values)] = found
    assert labels == {"x": '"values":[['}
    assert times.tolist() == [1778856299.123] * len(numbers)
    np.testing.assert_array_equal(values, [float(n) for n in numbers])


@pytest.mark.parametrize("odd", ["1e5", "", "1,2", "12345678901234567890123", "0x10"])
def test_what_is_not_a_plain_number_is_left_to_the_parser(odd: str) -> None:
    assert matrix._by_compiler(answer(["1", odd])) is None


def test_an_answer_that_is_cut_off_is_left_to_the_parser() -> None:
    whole = answer(["1", "2.5"])
    for end in range(whole.index(b'"values":[[1') + 1, whole.index(b"]]}") + 1):
        assert not matrix._by_compiler(whole[:end])
