"""Scripts that make their samples themselves: on any number of ranks they train on the samples drawn by the ranks, each
step once; if all compute the same, they train as one process does.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from pilot.core.errors import UserError
from tests.equivalence.loops import GROWS_AND_SHRINKS, fresh, linear, session, sgd
from tests.equivalence.rows import on_ranks

STEPS, BATCH = 9, 6
X = torch.linspace(-1, 1, 30, dtype=torch.float64).view(10, 3)
Drawn = dict[int, dict[bytes, torch.Tensor]]
"""By step; a rank that rehearses draws the same as another one, which counts once."""


def parts() -> tuple[Any, torch.optim.Optimizer, Any]:
    model = fresh(linear)
    optimizer = sgd(model.parameters(), lr=0.1)
    return model, optimizer, session(model, optimizer)


def draws(drawn: Drawn, micro: int | None) -> dict[str, torch.Tensor]:
    model, optimizer, ours = parts()
    for step in ours.iterations(STEPS, global_batch_size=BATCH, micro_batch_size=micro):
        mine = []
        while ours.share:
            mine.append(torch.randn(ours.share, 3, dtype=torch.float64))
            optimizer.zero_grad()
            loss = model(mine[-1]).square().mean()
            loss.backward()
            stepped = ours.step(loss)
        if stepped:
            drawn[step] |= {x.numpy().tobytes(): x for x in mine}
    assert (ours.steps, ours.samples) == (STEPS, STEPS * BATCH)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def plain(drawn: Drawn) -> dict[str, torch.Tensor]:
    model = fresh(linear)
    optimizer = sgd(model.parameters(), lr=0.1)
    for step in range(STEPS):
        x = torch.cat([*drawn[step].values()])
        assert len(x) == BATCH
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize(("count", "ends"), [(0, []), (1, []), (3, []), (1, GROWS_AND_SHRINKS)])
def test_ranks_draw_their_shares_of_each_step(micro: int | None, count: int, ends: list[Any]) -> None:
    drawn: Drawn = defaultdict(dict)
    for result in on_ranks(lambda: draws(drawn, micro), count, ends) if count else [draws(drawn, micro)]:
        torch.testing.assert_close(result, plain(drawn), rtol=1e-12, atol=1e-12)


def computes_the_same(*, elastic: bool) -> list[torch.Tensor]:
    model, optimizer, ours = parts()
    for _ in ours.iterations(STEPS) if elastic else range(STEPS):
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        ours.step(loss) if elastic else optimizer.step()
        if elastic and ours.steps % 4 == 0:
            ours.evaluate(TensorDataset(X), lambda batch: {"mean": model(batch[0]).mean()})
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("count", "ends"), [(1, []), (2, []), (1, GROWS_AND_SHRINKS)])
def test_a_batch_that_all_compute_is_that_of_one_process(count: int, ends: list[Any]) -> None:
    expected = computes_the_same(elastic=False)
    for result in on_ranks(lambda: computes_the_same(elastic=True), count, ends):
        assert all(map(torch.equal, result, expected))


def test_a_batch_size_belongs_to_the_loader_or_to_the_loop() -> None:
    *_, ours = parts()
    ours.loader(TensorDataset(X), global_batch_size=2)
    with pytest.raises(UserError, match="the loader has the batch size"):
        ours.iterations(3, global_batch_size=2)


def test_a_turn_without_its_step_is_refused() -> None:
    *_, ours = parts()
    with pytest.raises(UserError, match="ended without its step"):
        for _ in ours.iterations(3, global_batch_size=2):
            assert ours.share == 2


def test_epochs_need_a_loader() -> None:
    *_, ours = parts()
    with pytest.raises(UserError, match="make the training loader"):
        next(ours.epochs(1))
