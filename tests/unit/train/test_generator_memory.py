"""What is private to torch and numpy is used only where it is as expected, and looking for it changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pilot.train.data import generator_memory, rng
from pilot.train.data.generator_memory import numpy_normal, torch_address


def drawn() -> list[float]:
    return [torch.randn(()).item(), torch.randn(()).item(), np.random.randn(), np.random.randn()]


def test_looking_for_it_changes_nothing_that_is_drawn_later() -> None:
    values = []
    for look in (False, True):
        rng.seed_all(3)
        torch.randn(())
        np.random.randn()  # so that both keep a second number
        if look:
            assert torch_address() == generator_memory.TORCH_ADDRESS
            assert numpy_normal() is not None
        values.append(drawn())
    assert values[0] == values[1]


@pytest.mark.parametrize("elsewhere", [lambda _found: None, lambda found: found and found + 8])
def test_a_state_that_is_elsewhere_or_looks_different_is_not_used(
    elsewhere: Callable[[int | None], int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = generator_memory._find
    monkeypatch.setattr(generator_memory, "_find", lambda *sought: elsewhere(find(*sought)))
    before = torch.get_rng_state()
    assert torch_address() is None
    assert torch.equal(torch.get_rng_state(), before)
