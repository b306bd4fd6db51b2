"""A script is told of what it makes at an epoch's beginning, which each batch uses and changes: objects, dicts, lists,
iterators; see :mod:`tests.equivalence.test_epoch_numbers`.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tests.equivalence.test_epoch_numbers import NOTHING, Loss, Script, Step, optimizer_of, said


def an_iterator(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        weights = itertools.cycle([0.5, 1.0])
        for x, y in loader:
            weight = next(weights)
            step(loss_of(x, y) * weight)


def a_list(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        weights = [0.5, 1.0] * 3
        for x, y in loader:
            step(loss_of(x, y) * weights.pop())


class Annealed:
    """A weight in an object."""

    def __init__(self) -> None:
        self.beta = 1.0

    def step(self) -> None:
        self.beta *= 0.9


def an_object(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        annealed = Annealed()
        for x, y in loader:
            (loss_of(x, y) * annealed.beta).backward()
            step(NOTHING)
            annealed.step()


def a_dict(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        settings = {"beta": 1.0}
        for x, y in loader:
            (loss_of(x, y) * settings["beta"]).backward()
            step(NOTHING)
            settings["beta"] *= 0.9


def a_list_that_grows(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        past = [1.0]
        for x, y in loader:
            loss = loss_of(x, y)
            (loss / len(past)).backward()
            step(NOTHING)
            past.append(loss.item())


def a_tensor_in_place(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        beta = torch.ones(())
        for x, y in loader:
            (loss_of(x, y) * beta.clone()).backward()
            step(NOTHING)
            beta.mul_(0.9)


def a_generator(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        noise = torch.Generator().manual_seed(ours.steps)
        for x, y in loader:
            x = x + torch.randn(x.shape, generator=noise)
            step(loss_of(x, y))


@dataclass(slots=True)
class Slots:
    """A weight in a slot."""

    beta: float = 1.0


ANNEALED = Slots()
SHARED = Namespace(beta=1.0)


def a_slot(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        ANNEALED.beta = 1.0
        for x, y in loader:
            (loss_of(x, y) * ANNEALED.beta).backward()
            step(NOTHING)
            ANNEALED.beta *= 0.9


def an_argument(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        SHARED.beta = 1.0
        for x, y in loader:
            (loss_of(x, y) * SHARED.beta).backward()
            step(NOTHING)
            SHARED.beta *= 0.9


def rates() -> Iterator[float]:
    rate = 0.05
    while True:
        yield rate
        rate *= 0.9


def a_function_that_yields(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    optimizer = optimizer_of(ours)
    for _ in ours.epochs(2):
        its = rates()
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = next(its)
            step(loss_of(x, y))


CALL_BACKWARD = (an_object, a_dict, a_list_that_grows, a_tensor_in_place, a_slot, an_argument)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (an_iterator, "weights"),
        (a_list, "weights"),
        (an_object, "annealed"),
        (a_dict, "settings"),
        (a_list_that_grows, "past"),
        (a_tensor_in_place, "beta"),
        (a_generator, "noise"),
        (a_slot, "ANNEALED.beta"),
        (an_argument, "SHARED.beta"),
        (a_function_that_yields, "its"),
    ],
)
def test_what_batches_change_and_use(script: Script, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(script, capsys, mine=script in CALL_BACKWARD)
    assert f"beginning with a value of the epoch's ({name}); a node that joins" in line


def test_objects_and_generators_that_the_loss_does_not_use(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        for _ in ours.epochs(2):
            meter, shown, seen = Annealed(), {"loss": 0.0}, np.random.default_rng(3)
            fixed = {"weight": 2.0}

            def counted(loss: torch.Tensor, meter: Annealed) -> None:
                step(loss)
                meter.step()

            for x, y in loader:
                loss = loss_of(x, y) * fixed["weight"]
                counted(loss, meter)
                shown["loss"] += loss.item() * seen.random()

    assert said(script, capsys) == []


def test_iterators_and_lists_that_the_loss_does_not_use(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        for _ in ours.epochs(2):
            marks, shown, batches = itertools.cycle("|/-"), list[str](), enumerate(iter(loader))
            weights = [0.5, 1.0]
            for _number, (x, y) in batches:
                step(loss_of(x, y) * weights[len(x) % 2])
                shown.append(next(marks))
                if len(shown) > 2:
                    shown.pop()

    assert said(script, capsys) == []


def test_a_generator_with_the_batches(capsys: pytest.CaptureFixture[str]) -> None:
    def counted(batches: Any) -> Iterator[Any]:
        number = 0
        for batch in batches:
            number += 1
            yield batch
        print(number)

    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        for _ in ours.epochs(2):
            bar = counted(loader)
            for x, y in bar:
                step(loss_of(x, y))

    assert said(script, capsys) == []
