"""A separate stream for each sample, however many words of it are generated."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pilot.train.data import rng, streams
from pilot.train.data.sampler import mix
from tests import sample_streams

USES: dict[str, Callable[[int], Any]] = {
    "torch": lambda count: torch.rand(count).tolist(),
    "torch, normal": lambda count: [torch.randn(()).item() for _ in range(count)],
    "numpy": lambda count: np.random.rand(count).tolist(),
    "numpy, normal": lambda count: [np.random.randn() for _ in range(count)],
    "python": lambda count: [random.random() for _ in range(count)],
    "python, normal": lambda count: [random.gauss(0, 1) for _ in range(count)],
}
COUNTS = [1, 0, 3, 4, 9, 1, 40, 311, 312, 313, 622, 623, 624, 625, 1900, 1]
"""On both sides of the generated part, and of a full cycle of a generator."""


@pytest.mark.parametrize("kind", USES)
def test_a_sample_draws_the_same_however_much_was_made_and_whatever_was_drawn_before(kind: str) -> None:
    stream, made = _stream(kind), []
    while not made or not stream.sufficed():
        drawn = [USES[kind](COUNTS[i]) for i in stream.each(mix(3, 5), 7, len(COUNTS), range(len(COUNTS)))]
        made.append(stream.made)
    assert made == [8, 16, 32, 64, 128, 256, 512, 624]
    for sample, count in enumerate(COUNTS):
        sample_streams.begin(3, 5, 7 + sample)
        assert drawn[sample] == USES[kind](count)


@pytest.mark.parametrize("kind", ["torch, normal", "numpy, normal"])
@pytest.mark.parametrize("draws", [[0, 1, 1], [0, 0, 1], [1, 2, 1], [2, 2, 2]])
def test_a_kept_normal_number_of_one_sample_is_not_the_next_ones(kind: str, draws: list[int]) -> None:
    """Until one is seen, nothing but the words is set for each sample; then a piece is loaded once more."""
    stream, pieces = _stream(kind), []
    while not pieces or not stream.sufficed():
        pieces.append([USES[kind](draws[i]) for i in stream.each(mix(3, 5), 7, len(draws), range(len(draws)))])
    assert len(pieces) == 2
    for sample, count in enumerate(draws):
        sample_streams.begin(3, 5, 7 + sample)
        assert pieces[-1][sample] == USES[kind](count)


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
def test_few_words_are_enough_for_samples_that_draw_little(kind: str) -> None:
    stream = _stream(kind)
    for _ in range(3):
        for _ in stream.each(1, 0, 50, range(50)):
            USES[kind](2)
        assert stream.sufficed()
    assert stream.made == 8


def _stream(kind: str) -> streams.Stream:
    return rng.GENERATORS[["torch", "numpy", "python"].index(kind.split(",")[0])].stream()


def test_words_are_those_of_pcg64_and_no_two_samples_have_one_in_common() -> None:
    """Section by section, each an own generator of numpy's."""
    start, samples = mix(7), [0, 1, 5000, 2**33]
    made = [sample_streams.words(streams.Sections(), start, sample, 1, 624)[0] for sample in samples]
    for row, sample in zip(made, samples, strict=True):
        for begin, length in [(0, 8), *((8 << i, 8 << i) for i in range(7))]:
            pcg64 = np.random.PCG64()
            state = {"state": mix(start, begin) << 64 | start, "inc": streams.INCREMENT}
            pcg64.state = {"bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0}
            expected = pcg64.advance(sample * length // 2).random_raw(length // 2).view(np.uint32)
            assert row[begin : begin + length].tolist() == expected[: 624 - begin].tolist()
    assert len({number for row in made for number in row.view(np.uint64).tolist()}) == 4 * 312


@pytest.mark.parametrize("count", [8, 16, 64, 512, 624])
def test_a_piece_has_the_words_of_its_samples(count: int) -> None:
    """Whichever were drawn before, of this epoch and of others."""
    sections, start = streams.Sections(), mix(7)
    alone = [sample_streams.words(sections, start, 90 + i, 1, 624)[0, :count].tolist() for i in range(5)]
    for other, first in [(start, 95), (start, 3), (mix(8), 40), (start, 90)]:
        sample_streams.words(sections, other, first, 5, count)
        assert sample_streams.words(sections, start, 90, 5, count).tolist() == alone


def test_without_a_look_into_the_generators_memory_the_numbers_are_the_same() -> None:
    """As with a torch or numpy that keeps its state elsewhere."""

    def drawn(of_torch: streams.Stream, of_numpy: streams.Stream) -> list[list[float]]:
        while True:
            values = [[torch.rand(()).item(), torch.randn(()).item()] for _ in of_torch.each(9, 0, 20, range(20))]
            values += [[np.random.rand(), np.random.randn()] for _ in of_numpy.each(9, 0, 20, range(20))]
            if all([of_torch.sufficed(), of_numpy.sufficed()]):
                return values

    kept = streams.of_torch(), streams.of_numpy()
    kept[1].made = 64
    assert drawn(streams.of_torch(None), streams.of_numpy(None)) == drawn(*kept)
