"""Buffers that ``state_dict()`` leaves out are part of the state."""

from __future__ import annotations

import torch
from torch import nn

from pilot.train.state.unsaved_buffers import UnsavedBuffers


class Layer(nn.Linear):
    """With a buffer that is saved, and one that is not."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.register_buffer("saved", torch.zeros(2))
        self.register_buffer("scale", torch.ones(2), persistent=False)


def test_they_are_taken_over_in_place_also_in_tracked_modules() -> None:
    giver, taker = nn.Sequential(Layer()), nn.Sequential(Layer())
    given, taken = Layer(), Layer()
    giver[0].scale.fill_(0.5)
    given.scale.fill_(0.25)
    held = taker[0].scale
    state = UnsavedBuffers(giver, {"loss": given, "count": object()}).capture()
    assert {path: [*its] for path, its in state.items()} == {"0": ["scale"], "tracked loss": ["scale"]}
    UnsavedBuffers(taker, {"loss": taken}).restore(state)
    assert taker[0].scale is held, "modules may share it"
    assert held.tolist() == [0.5, 0.5]
    assert taken.scale.tolist() == [0.25, 0.25]


def test_one_that_forward_has_made_or_replaced_is_made_here_too() -> None:
    giver, taker = Layer(), Layer()
    giver.register_buffer("mask", torch.ones(3), persistent=False)
    giver.scale = torch.zeros(4, dtype=torch.float64)
    UnsavedBuffers(taker, {}).restore(UnsavedBuffers(giver, {}).capture())
    assert torch.equal(taker.mask, giver.mask)
    assert taker.mask is not giver.mask
    assert taker.scale.dtype == torch.float64
    assert taker.state_dict().keys() == Layer().state_dict().keys()
