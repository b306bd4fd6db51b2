"""``session.step(loss, weight=...)``: the gradient is sum(w·g) ÷ sum(w) over all batches of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from pilot.core.errors import UserError
from tests.equivalence.loops import BATCH, EPOCHS, Plain, fresh, session, tensors
from tests.equivalence.rows import SAMPLES, Result, assert_agree, on_ranks
from tests.equivalence.ways import WAYS

LENGTH = 5
generator = torch.Generator().manual_seed(1)
tokens = torch.randn(SAMPLES, LENGTH, 2, generator=generator, dtype=torch.float64)
mask = torch.rand(SAMPLES, LENGTH, generator=generator) < 0.4
mask[::5] = False  # samples without any


def tagger() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = fresh(tagger)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def token_loss(model: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean over the tokens that count (NaN if there are none, as in torch's cross entropy), and their number."""
    return (model(x).squeeze(-1)[mask] - 0.5).square().mean(), mask.sum()


def trained(made: Callable[..., Any], options: dict[str, Any], clip: bool = False, scaled: bool = False) -> Result:
    """The plain loop takes the mean over all tokens of a batch."""
    model, optimizer = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
    ours = made(model, optimizer, scaler=scaler)
    loader = ours.loader(TensorDataset(tokens, mask), global_batch_size=BATCH, **options)
    for _ in ours.epochs(EPOCHS):
        for x, m in loader:
            optimizer.zero_grad()
            loss, count = token_loss(model, x, m)
            (scaler.scale(loss) if scaler else loss).backward()
            if clip:
                ours.clip_grad_norm(0.1)
            if ours.step(loss, weight=count) and made is session:
                assert ours._metrics["loss"] == ours._metrics["loss"], "what counts nothing is no part of it"
    return tensors(model=model)


ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole shares": ({}, {}),
    "micro-batches": ({"micro_batch_size": 1}, {}),
    "clipped": ({"micro_batch_size": 2}, {"clip": True}),
    "scaled": ({}, {"clip": True, "scaled": True}),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_mean_over_tokens_is_that_of_the_plain_loop(name: str) -> None:
    options, rest = ROWS[name]
    expected = trained(Plain, options, **rest)
    assert_agree([trained(session, options, **rest)], expected)
    for count, ends in [*WAYS.values(), (3, [])]:
        assert_agree(on_ranks(lambda: trained(session, options, **rest), count, list(ends)), expected)


class Made:
    def __init__(self, **options: Any) -> None:
        self.model, self.optimizer = parts()
        self.session = session(self.model, self.optimizer)
        self.loader = self.session.loader(TensorDataset(tokens), global_batch_size=BATCH, **options)

    def run(self, weight: Callable[[int], Any]) -> None:
        for number in self.session.iterations(3):
            (x,) = self.loader.next()
            self.optimizer.zero_grad()
            self.model(x).square().mean().backward()
            self.session.step(weight=weight(number))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("weight", "line"),
    [
        (lambda number: 1 if number else None, "in every step or in none"),
        (lambda number: None if number else 1, "in every step or in none"),
        (lambda _: -1.0, "at least 0"),
        (lambda _: float("nan"), "finite"),
        (lambda _: 0, "no mean"),
        (lambda number: 0 if number else 3, "no mean"),
    ],
)
def test_weights_that_make_no_mean_are_refused(weight: Callable[[int], Any], line: str, ranks: int) -> None:
    with pytest.raises(UserError, match=line):
        on_ranks(lambda: Made().run(weight), ranks, [])


def test_a_weight_on_one_rank_alone_is_refused() -> None:
    def script() -> None:
        made = Made()
        made.run(lambda _: 1.0 if made.session.rank == 0 else None)

    with pytest.raises(UserError, match="on one rank"):
        on_ranks(script, 2, [])
