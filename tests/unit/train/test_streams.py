"""A separate stream for each sample, however many words of it are generated."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pilot.train import rng, streams
from pilot.train.sampler import mix
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
    stream, samples, made = _stream(kind), np.arange(len(COUNTS), dtype=np.uint64), []
    while not made or not stream.sufficed():
        drawn = [USES[kind](COUNTS[i]) for i in stream.each(mix(3, 5), samples, range(len(COUNTS)))]
        made.append(stream.made)
    assert made == [8, 16, 32, 64, 128, 256, 512, 624]
    for sample, count in enumerate(COUNTS):
        sample_streams.begin(3, 5, sample)
        assert drawn[sample] == USES[kind](count)


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
def test_few_words_are_enough_for_samples_that_draw_little(kind: str) -> None:
    stream = _stream(kind)
    for _ in range(3):
        for _ in stream.each(1, np.arange(50, dtype=np.uint64), range(50)):
            USES[kind](2)
        assert stream.sufficed()
    assert stream.made == 8


def _stream(kind: str) -> streams.Stream:
    return rng.GENERATORS[["torch", "numpy", "python"].index(kind.split(",")[0])].stream()


def test_words_are_those_of_splitmix64_and_no_two_samples_have_one_in_common() -> None:
    def splitmix64(state: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ state >> shift) * factor % 2**64
        return state ^ state >> 31

    start, samples = mix(7), [0, 1, 5000, 2**33]
    made = streams.words(start, np.array(samples, np.uint64), 624)
    pairs = made.view(np.uint64).tolist()
    for row, sample in zip(pairs, samples, strict=True):
        begin = start + sample * 0xD6E8FEB86659FD93
        assert row == [splitmix64((begin + i * 0x9E3779B97F4A7C15) % 2**64) for i in range(1, 313)]
    assert len({number for row in pairs for number in row}) == 4 * 312


def test_without_a_look_into_the_generators_memory_the_numbers_are_the_same() -> None:
    """As with a torch or numpy that keeps its state elsewhere."""

    def drawn(of_torch: streams.Stream, of_numpy: streams.Stream) -> list[list[float]]:
        samples = np.arange(20, dtype=np.uint64)
        values = [[torch.rand(()).item(), torch.randn(()).item()] for _ in of_torch.each(9, samples, range(20))]
        values += [[np.random.rand(), np.random.randn()] for _ in of_numpy.each(9, samples, range(20))]
        assert of_torch.sufficed()
        assert of_numpy.sufficed()
        return values

    kept = streams.of_torch(), streams.of_numpy()
    kept[1].made = 64
    assert drawn(streams.of_torch(None), streams.of_numpy(None)) == drawn(*kept)
