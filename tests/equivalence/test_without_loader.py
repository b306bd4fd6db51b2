"""Scripts that make their samples themselves: on any number of ranks they train on what the ranks have drawn, each step
once; if all compute the same, they train as one process does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import pilot.train
from pilot.core.errors import UserError
from tests.equivalence.loops import GROWS_AND_SHRINKS, fresh, linear
from tests.equivalence.rows import on_ranks

STEPS, BATCH = 9, 6
X = torch.linspace(-1, 1, 30, dtype=torch.float64).view(10, 3)
Drawn = dict[int, dict[bytes, torch.Tensor]]
"""By step; a rank that rehearses draws what another one draws, which counts once."""


def draws(drawn: Drawn, micro: int | None) -> dict[str, torch.Tensor]:
    model = fresh(linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = pilot.train.session(model, optimizer, seed=1)
    for step in session.iterations(STEPS, global_batch_size=BATCH, micro_batch_size=micro):
        mine = []
        while session.share:
            x = torch.randn(session.share, 3, dtype=torch.float64)
            mine.append(x)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            stepped = session.step(loss)
        if stepped:
            drawn[step] |= {x.numpy().tobytes(): x for x in mine}
    assert (session.steps, session.samples) == (STEPS, STEPS * BATCH)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def plain(drawn: Drawn) -> dict[str, torch.Tensor]:
    model = fresh(linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        x = torch.cat([*drawn[step].values()])
        assert len(x) == BATCH
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize(("count", "ends"), [(1, []), (3, []), (1, GROWS_AND_SHRINKS)])
def test_ranks_draw_their_shares_of_each_step(micro: int | None, count: int, ends: list[Any]) -> None:
    alone: Drawn = defaultdict(dict)
    torch.testing.assert_close(draws(alone, micro), plain(alone), rtol=1e-12, atol=1e-12)
    drawn: Drawn = defaultdict(dict)
    results = on_ranks(lambda: draws(drawn, micro), count, ends)
    for result in results:
        torch.testing.assert_close(result, plain(drawn), rtol=1e-12, atol=1e-12)


def computes_the_same(session_of: Callable[..., Any] | None) -> list[torch.Tensor]:
    model = fresh(linear)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    session = session_of(model, optimizer) if session_of is not None else None
    for _ in session.iterations(STEPS) if session is not None else range(STEPS):
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        session.step(loss) if session is not None else optimizer.step()
        if session is not None and session.steps % 4 == 0:
            session.evaluate(TensorDataset(X), lambda batch: {"loss": mse_loss(model(batch[0]), batch[0][:, :1])})
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("count", "ends"), [(1, []), (2, []), (1, GROWS_AND_SHRINKS)])
def test_a_batch_that_all_compute_is_that_of_one_process(count: int, ends: list[Any]) -> None:
    expected = computes_the_same(None)
    for result in on_ranks(lambda: computes_the_same(pilot.train.session), count, ends):
        assert all(map(torch.equal, result, expected))


def made() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = fresh(linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, pilot.train.session(model, optimizer)


def test_a_batch_size_belongs_to_the_loader_or_to_the_loop() -> None:
    *_, session = made()
    session.loader(TensorDataset(X), global_batch_size=2)
    with pytest.raises(UserError, match="the loader has the batch size"):
        session.iterations(3, global_batch_size=2)


def test_a_turn_without_its_step_is_refused() -> None:
    *_, session = made()
    with pytest.raises(UserError, match="ended without its step"):
        for _ in session.iterations(3, global_batch_size=2):
            assert session.share == 2


def test_epochs_need_a_loader() -> None:
    *_, session = made()
    with pytest.raises(UserError, match="make the training loader"):
        next(session.epochs(1))
