"""Cases close to a refusal that are the script's own business."""

from __future__ import annotations

import torch
from torch import nn

from tests.equivalence.refusing import Made


def test_what_is_trained_between_two_passes_is_the_script_s_own() -> None:
    made, probe = Made(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    for _ in made.session.epochs(2):
        for (x,) in made.loader:
            made.optimizer.zero_grad()
            made.loss(x).backward()
            made.session.step()
        probe(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert made.session.steps == 4
