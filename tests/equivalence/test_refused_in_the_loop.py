"""Refused in the first step in which it would matter: alone, on one rank and on two, with the same line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import pilot.train
from pilot.core.errors import UserError
from tests.equivalence.rows import on_ranks

Script = Callable[["Made"], None]


class Made:
    """What a script has made before its loop."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
        self.model[1].requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.session = pilot.train.session(self.model, self.optimizer)
        self.loader = self.session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)

    def batches(self, epochs: int = 1) -> Iterator[torch.Tensor]:
        for _ in self.session.epochs(epochs):
            for (x,) in self.loader:
                self.optimizer.zero_grad()
                yield x

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()


def clips_itself(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        nn.utils.clip_grad_norm_(made.model.parameters(), 1.0)
        made.session.step()


def edits_a_gradient(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        for parameter in made.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(2)
        made.session.step()


def replaces_a_gradient(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.model[0].weight.grad = torch.zeros_like(made.model[0].weight)
        made.session.step()


def zeroes_after_backward(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.optimizer.zero_grad()
        made.session.step()


def calls_backward_twice(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.loss(x).backward()
        made.session.step()


def calls_backward_again_for_a_part(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.model[0].weight.sum().backward()
        made.session.step()


def creates_a_graph(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward(create_graph=True)
        made.session.step()


def checkpoints_a_shared_layer(made: Made) -> None:
    shared = made.model[0]
    for x in made.batches():
        once = checkpoint(shared, x.requires_grad_(), use_reentrant=True)
        made.model[2](checkpoint(shared, once, use_reentrant=True)).sum().backward()
        made.session.step()


def steps_before(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.optimizer.step()
        made.session.step()


def steps_after(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.session.step()
        made.optimizer.step()


def has_a_second_optimizer(made: Made) -> None:
    other = nn.Linear(2, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    for x in made.batches():
        second.zero_grad()
        (made.loss(x) + other(x).mean()).backward()
        made.session.step()
        second.step()


def never_zeroes(made: Made) -> None:
    for _ in made.session.epochs(1):
        for (x,) in made.loader:
            made.loss(x).backward()
            made.session.step()


def unfreezes(made: Made) -> None:
    for x in made.batches():
        made.model[1].requires_grad_(True)
        made.loss(x).backward()
        made.session.step()


def freezes(made: Made) -> None:
    for x in made.batches():
        made.model[2].requires_grad_(False)
        made.loss(x).backward()
        made.session.step()


def adds_a_group(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        made.session.step()


def replaces_a_layer(made: Made) -> None:
    made.model[1] = nn.Sequential(nn.Linear(2, 2))
    for x in made.batches():
        made.loss(x).backward()
        made.session.step()


def counts_epochs_itself(made: Made) -> None:
    for _ in range(3):
        for (x,) in made.loader:
            made.loss(x).backward()
            made.session.step()


def looks_at_a_batch_before(made: Made) -> None:
    next(iter(made.loader))


def begins_anew_at_stop_iteration(made: Made) -> None:
    for _ in made.session.epochs(1):
        batches = iter(made.loader)
        for _step in range(100):
            try:
                (x,) = next(batches)
            except StopIteration:
                batches = iter(made.loader)
                continue
            made.optimizer.zero_grad()
            made.loss(x).backward()
            made.session.step()


ROWS: list[tuple[Script, str]] = [
    (clips_itself, "clip with session.clip_grad_norm"),
    (edits_a_gradient, "session.sum"),
    (replaces_a_gradient, "session.sum"),
    (zeroes_after_backward, "on their way"),
    (calls_backward_twice, "call backward once"),
    (calls_backward_again_for_a_part, "call backward once"),
    (creates_a_graph, "create_graph=True"),
    (checkpoints_a_shared_layer, "use_reentrant=False"),
    (steps_before, "optimizer.step"),
    (steps_after, "optimizer.step"),
    (has_a_second_optimizer, "second optimizer"),
    (never_zeroes, "zero_grad is missing"),
    (unfreezes, "1.weight was unfrozen"),
    (freezes, "2.weight was frozen"),
    (adds_a_group, "parameter groups have changed"),
    (replaces_a_layer, "model's parameters have changed"),
    (counts_epochs_itself, "session.epochs"),
    (looks_at_a_batch_before, "session.epochs"),
    (begins_anew_at_stop_iteration, "are over"),
]


def run(script: Script) -> Any:
    return script(Made())


@pytest.mark.parametrize("ranks", [0, 1, 2])
@pytest.mark.parametrize(("script", "line"), ROWS, ids=[script.__name__ for script, _ in ROWS])
def test_it_is_refused(script: Script, line: str, ranks: int) -> None:
    with pytest.raises(UserError, match=line) as refused:
        run(script) if ranks == 0 else on_ranks(lambda: run(script), ranks, [])
    assert "\n" not in str(refused.value)


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
