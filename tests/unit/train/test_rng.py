"""Whether a generator was used."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pilot.core.errors import UserError
from pilot.train.data import rng

TORCH, NUMPY, PYTHON = rng.GENERATORS
USES: list[tuple[rng.Generator, Callable[[], object]]] = [
    (TORCH, lambda: torch.rand(())),
    (TORCH, lambda: torch.randn(())),
    (TORCH, lambda: torch.rand(624)),
    (TORCH, lambda: torch.manual_seed(5)),
    (NUMPY, np.random.rand),
    (NUMPY, np.random.randn),
    (NUMPY, lambda: np.random.rand(312)),
    (NUMPY, lambda: np.random.shuffle([1, 2, 3])),
    (NUMPY, lambda: np.random.seed(5)),
    (PYTHON, random.random),
    (PYTHON, lambda: random.gauss(0, 1)),
    (PYTHON, lambda: random.getrandbits(32 * 624)),
    (PYTHON, lambda: random.seed(5)),
]


@pytest.mark.parametrize(("used", "use"), USES)
@pytest.mark.parametrize("normals", [0, 1])
def test_a_watched_generator_knows_that_it_was_used(
    used: rng.Generator, use: Callable[[], object], normals: int
) -> None:
    """Even if a generator caches the second of two normal numbers, and after a full cycle of 624 words."""
    for _ in range(normals):
        torch.randn(())
        np.random.randn()
        random.gauss(0, 1)
    for generator in rng.GENERATORS:
        generator.watch()
    use()
    assert [generator for generator in rng.GENERATORS if generator.was_used()] == [used]


@pytest.mark.parametrize(("used", "use"), USES)
def test_positions_differ_where_a_generator_was_used_and_only_there(
    used: rng.Generator,  # noqa: ARG001  # this is of all three
    use: Callable[[], object],
) -> None:
    rng.seed_all(3)
    before = rng.positions()
    assert rng.positions() == before
    use()
    assert rng.positions() != before


def test_seeding_is_that_of_their_own_functions_and_for_torch_and_numpy_another() -> None:
    rng.seed_all(7)
    torch_drawn, numpy_drawn, python_drawn = torch.rand(()).item(), np.random.rand(), random.random()
    torch.manual_seed(7)
    assert torch_drawn == torch.rand(()).item()
    assert torch.initial_seed() == 7
    np.random.seed(8)
    assert numpy_drawn == np.random.rand()
    random.seed(7)
    assert python_drawn == random.random()


def test_kept_normal_numbers_are_dropped_by_seeding() -> None:
    drawn = []
    for _ in range(2):
        rng.seed_all(3)
        drawn.append((torch.randn(()).item(), np.random.randn(), random.gauss(0, 1)))
    assert drawn[0] == drawn[1]


def test_a_global_generator_of_another_kind_is_refused() -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(UserError, match="numpy's global generator is PCG64"):
            rng.seed_all(3)
    finally:
        np.random.set_bit_generator(before)
