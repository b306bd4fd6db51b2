"""float32 as 8-bit integers with a scale for each block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pilot.comm.int8 import BLOCK, packed, unpacked

LEAST = 4e-37
"""Blocks of smaller numbers become zero."""
MOST = float(np.float32(3e38))
"""The largest numbers above this may become infinite."""
finite = arrays(np.float32, st.integers(1, 60), elements=st.floats(-MOST, MOST, width=32))


def there_and_back(numbers: np.ndarray, ranks: int) -> np.ndarray:
    return unpacked(packed(numbers, ranks)).reshape(-1)[: len(numbers)]


def largest_of_block(numbers: np.ndarray, ranks: int) -> np.ndarray:
    """For each number the largest absolute value of its block."""
    length = packed(numbers, ranks)["values"].shape[-1]
    blocks = np.pad(abs(numbers), (0, -len(numbers) % length)).reshape(-1, length)
    return np.repeat(blocks.max(axis=1), length)[: len(numbers)]


@given(numbers=finite, ranks=st.integers(1, 5), copies=st.sampled_from([1, 20, 90]))
def test_each_number_is_off_by_half_a_step_of_its_blocks_scale(numbers: np.ndarray, ranks: int, copies: int) -> None:
    numbers = np.tile(numbers, copies)
    largest = largest_of_block(numbers, ranks).astype(np.float64)
    error = abs(there_and_back(numbers, ranks).astype(np.float64) - numbers)
    assert (error <= np.maximum(largest / 254 * (1 + 1e-5), LEAST)).all()


@given(numbers=finite, ranks=st.integers(1, 5))
def test_zeros_stay_zero(numbers: np.ndarray, ranks: int) -> None:
    numbers[::2] = 0
    assert (there_and_back(numbers, ranks)[::2] == 0).all()


@pytest.mark.parametrize("scale", [LEAST, 1e-30, 1.0, 1e30, MOST])
def test_the_error_is_no_larger_at_the_ends_of_the_range(scale: float) -> None:
    numbers = (np.random.default_rng(0).uniform(-1, 1, 5 * BLOCK + 3) * np.float32(scale)).astype(np.float32)
    numbers[::BLOCK] = scale
    error = abs(there_and_back(numbers, 3).astype(np.float64) - numbers)
    assert 0 < error.max() <= scale / 254 * (1 + 1e-5)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_block_with_a_number_that_is_not_finite_is_nan_and_no_other(wrong: float) -> None:
    numbers = np.random.default_rng(0).standard_normal(4 * BLOCK).astype(np.float32)
    numbers[BLOCK + 7] = wrong
    numbers[BLOCK + 8] = 0
    back = there_and_back(numbers, 2)
    assert np.isnan(back[BLOCK : 2 * BLOCK]).all()
    assert np.isfinite(back[:BLOCK]).all()
    assert np.isfinite(back[2 * BLOCK :]).all()


@given(count=st.integers(1, 300_000), ranks=st.integers(1, 70))
def test_what_was_unpacked_is_packed_in_the_same_blocks(count: int, ranks: int) -> None:
    rows = packed(np.ones(count, np.float32), ranks)
    again = packed(unpacked(rows)[0], 1)
    assert (again.shape, again.dtype) == (rows[:1].shape, rows.dtype)
    assert rows.size * rows["values"].shape[-1] >= count


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16, 64])
@pytest.mark.parametrize("count", [1 << 20, 1_000_003, 786_433])
def test_a_piece_takes_at_most_a_3_95th_of_its_bytes_in_float32(count: int, ranks: int) -> None:
    assert packed(np.ones(count, np.float32), ranks).nbytes * 3.95 <= 4 * count
