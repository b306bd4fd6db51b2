"""Whether a generator was used."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pilot.train import rng

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
