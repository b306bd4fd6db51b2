"""``session.step(loss, weight=...)``: the gradient is sum(w·g) ÷ sum(w) over all batches of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.core.errors import UserError
from pilot.train.data.order import permutation
from tests.equivalence.rows import on_ranks
from tests.equivalence.ways import WAYS

SAMPLES, LENGTH, BATCH, EPOCHS, SEED = 22, 5, 4, 2, 3
generator = torch.Generator().manual_seed(1)
tokens = torch.randn(SAMPLES, LENGTH, 2, generator=generator, dtype=torch.float64)
mask = torch.rand(SAMPLES, LENGTH, generator=generator) < 0.4
mask[::5] = False  # samples without any
Result = dict[str, torch.Tensor]


def made(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def token_loss(model: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean over the tokens that count (NaN if there are none, as in torch's cross entropy), and their number."""
    return (model(x).squeeze(-1)[mask] - 0.5).square().mean(), mask.sum()


def elastic(options: dict[str, Any], clip: bool = False, scaled: bool = False) -> Result:
    model, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
    session = pilot.train.session(model, optimizer, seed=SEED, scaler=scaler)
    loader = session.loader(TensorDataset(tokens, mask), global_batch_size=BATCH, **options)
    for _ in session.epochs(EPOCHS):
        for x, m in loader:
            optimizer.zero_grad()
            loss, count = token_loss(model, x, m)
            (scaler.scale(loss) if scaler else loss).backward()
            if clip:
                session.clip_grad_norm(0.1)
            if session.step(loss, weight=count):
                assert session._metrics["loss"] == session._metrics["loss"], "what counts nothing is no part of it"
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def plain(clip: bool = False) -> Result:
    """The mean over all tokens of a batch."""
    model, optimizer = made()
    for epoch in range(EPOCHS):
        order = torch.from_numpy(permutation(SEED, epoch, SAMPLES))
        for start in range(0, SAMPLES, BATCH):
            batch = order[start : start + BATCH]
            optimizer.zero_grad()
            token_loss(model, tokens[batch], mask[batch])[0].backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    return dict(model.state_dict())


ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole shares": ({}, {}),
    "micro-batches": ({"micro_batch_size": 1}, {}),
    "clipped": ({"micro_batch_size": 2}, {"clip": True}),
    "scaled": ({}, {"clip": True, "scaled": True}),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_mean_over_tokens_is_that_of_the_plain_loop(name: str) -> None:
    options, rest = ROWS[name]
    expected = plain(clip=rest.get("clip", False))
    ran = [on_ranks(lambda: elastic(options, **rest), count, list(ends)) for count, ends in [*WAYS.values(), (3, [])]]
    ran.append([elastic(options, **rest)])
    for ranks in ran:
        for rank in ranks:
            for parameter, tensor in rank.items():
                assert torch.equal(tensor, ranks[0][parameter])
                torch.testing.assert_close(tensor, expected[parameter], rtol=1e-12, atol=1e-12)


class Made:
    def __init__(self, **options: Any) -> None:
        self.model, self.optimizer = made()
        self.session = pilot.train.session(self.model, self.optimizer)
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
