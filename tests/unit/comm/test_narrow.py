"""float32 as 16 bits: the same rounding as torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pilot.comm import narrow
from pilot.comm.arena import lay_out
from pilot.comm.narrow import KINDS, narrowed, widened

anything = arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32))


@pytest.mark.parametrize("kind", KINDS)
@given(numbers=anything)
def test_it_rounds_as_torch_does(kind: str, numbers: np.ndarray) -> None:
    expected = torch.from_numpy(numbers.copy()).to(getattr(torch, kind)).float().numpy()
    np.testing.assert_array_equal(widened(narrowed(numbers, kind), kind), expected)


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_stays_so(kind: str, bits: int) -> None:
    assert np.isnan(widened(narrowed(np.array([bits], np.uint32).view(np.float32), kind), kind)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_many_are_rounded_as_few(kind: str) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 2 * narrow._BLOCK + 5, np.uint32)
    numbers = bits.view(np.float32)
    rounded = torch.from_numpy(numbers.copy()).to(getattr(torch, kind)).float().numpy()
    np.testing.assert_array_equal(widened(narrowed(numbers, kind), kind), rounded)
    assert np.isnan(rounded).any()


def test_each_float16_comes_back_as_it_is_and_what_is_between_two_is_rounded_to_even() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    numbers = every.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(widened(every, "float16"), numbers)
    finite = numbers[np.isfinite(numbers)]
    with np.errstate(over="ignore"):
        for between in (finite * np.float32(1 + 2**-11), np.nextafter(finite, 9e9), finite + np.float32(2**-25)):
            np.testing.assert_array_equal(narrowed(between, "float16"), between.astype(np.float16).view(np.uint16))


def test_float64_and_the_control_vector_travel_as_they_are() -> None:
    layout = lay_out([(4, "float32"), (4, "float64")], 1024, 3, "bfloat16")
    assert [part.wire for part in layout.parts] == ["bfloat16", "", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_their_shape(kind: str) -> None:
    numbers = np.linspace(-3, 3, 12, dtype=np.float32)
    words = narrowed(numbers, kind)
    np.testing.assert_array_equal(widened(words.reshape(3, 4), kind), widened(words, kind).reshape(3, 4))
