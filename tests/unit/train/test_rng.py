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
def test_a_snapshot_differs_where_the_generator_was_used_and_only_there(
    used: rng.Generator, use: Callable[[], object], normals: int
) -> None:
    """Even if a generator caches the second of two normal numbers, and after a full cycle of 624 words."""
    rng.seed_all(3)
    for _ in range(normals):
        torch.randn(())
        np.random.randn()
        random.gauss(0, 1)
    before = [generator.snapshot() for generator in rng.GENERATORS]
    assert [generator.snapshot() for generator in rng.GENERATORS] == before
    use()
    differ = [generator for generator, was in zip(rng.GENERATORS, before, strict=True) if generator.snapshot() != was]
    assert differ == [used]


def test_a_snapshot_changes_nothing_that_is_drawn_later() -> None:
    drawn = []
    for snapshots in (0, 1):
        rng.seed_all(3)
        for generator in rng.GENERATORS * snapshots:
            generator.snapshot()
        drawn.append((torch.rand(5).tolist(), np.random.rand(5).tolist(), [random.random() for _ in range(5)]))
    assert drawn[0] == drawn[1]


def test_seeding_is_that_of_torch_for_all_three_and_for_each_another() -> None:
    """The words of a generator that torch's function seeded are what numpy's own function would make of that seed."""
    rng.seed_all(7)
    torch_drawn, numpy_drawn, python_drawn = torch.rand(()).item(), np.random.rand(), random.random()
    torch.manual_seed(7)
    assert torch_drawn == torch.rand(()).item()
    assert torch.initial_seed() == 7
    np.random.seed(8)
    assert numpy_drawn == np.random.rand()
    np.random.seed(9)
    assert python_drawn == np.random.rand()


def test_kept_normal_numbers_are_dropped_by_seeding() -> None:
    drawn = []
    for _ in range(2):
        rng.seed_all(3)
        drawn.append((torch.randn(()).item(), np.random.randn(), random.gauss(0, 1)))
    assert drawn[0] == drawn[1]


def test_without_a_look_into_the_generators_memory_seeding_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a torch or numpy that keeps its state elsewhere."""
    drawn = []
    for name in ("", "_TORCH_WORDS", "NUMPY_NORMAL"):
        if name:
            monkeypatch.setattr(rng, name, None)
        torch.randn(())
        np.random.randn()
        rng.seed_all(3)
        drawn.append((torch.randn(()).item(), np.random.randn(), random.gauss(0, 1)))
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_global_generator_of_another_kind_is_refused() -> None:
    """Its memory is not what we would write to."""
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(UserError, match="numpy's global generator is PCG64"):
            rng.seed_all(3)
    finally:
        np.random.set_bit_generator(before)
