"""A loop that a variable has (``bar = tqdm(session.epochs(5))``) is left by ``break`` as any other: what follows it is
the script's own, unless it goes on with the loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from pilot.core.errors import UserError
from tests.equivalence.refusing import Made

ANOTHER = "creates another optimizer"


class Trainer:
    """Has its loop in an attribute."""

    def __init__(self) -> None:
        self.made = Made()
        self.loop = self.made.session.epochs(5)

    def trains(self) -> None:
        for number in self.loop:
            epoch(self.made)
            if number == 0:
                break


def epoch(made: Made) -> None:
    for (x,) in made.loader:
        made.optimizer.zero_grad()
        made.loss(x).backward()
        made.session.step()


def step_of_its_own(made: Made, module: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(module.parameters())
    optimizer.zero_grad()
    made.loss(torch.ones(1, 2)).backward()
    optimizer.step()
    return optimizer


def test_the_script_trains_another_part_of_its_own_afterwards() -> None:
    made = Made()
    loop = made.session.epochs(5)
    for number in loop:
        epoch(made)
        if number == 1:
            break
    StepLR(step_of_its_own(made, made.model[2]), 1)
    StepLR(made.optimizer, 1)
    made.optimizer.step()
    assert made.session.steps == 4


def test_a_pass_that_was_left_too() -> None:
    made = Made()
    loop = made.session.epochs(5)
    for number in loop:
        for (x,) in made.loader:
            made.optimizer.zero_grad()
            made.loss(x).backward()
            made.session.step()
            if number == 0:
                break
        if number == 0:
            break
    step_of_its_own(made, nn.Linear(2, 1))


def test_a_function_that_has_left_it() -> None:
    trainer = Trainer()
    trainer.trains()
    step_of_its_own(trainer.made, trainer.made.model[2])


def test_a_generator_of_the_script_around_it() -> None:
    made = Made()

    def epochs() -> Iterator[int]:
        yield from (number for number in made.session.epochs(5))

    loop = epochs()
    for number in loop:
        epoch(made)
        if number == 0:
            break
    step_of_its_own(made, made.model[2])
    with pytest.raises(UserError, match=ANOTHER):
        next(loop)


def test_a_script_that_goes_on_with_its_loop_is_refused_then() -> None:
    made = Made()
    loop = made.session.epochs(5)
    for number in loop:
        epoch(made)
        if number == 0:
            break
    step_of_its_own(made, made.model[2])
    with pytest.raises(UserError, match=ANOTHER):
        for _ in loop:
            epoch(made)


def test_a_script_that_goes_on_with_its_loop_may_do_so() -> None:
    made = Made()
    loop = made.session.epochs(3)
    for number in loop:
        epoch(made)
        if number == 0:
            break
    for _ in loop:
        epoch(made)
    assert made.session.steps == 6


def test_in_the_loop_it_is_refused_at_once() -> None:
    trainer = Trainer()
    for _ in trainer.loop:
        epoch(trainer.made)
        with pytest.raises(UserError, match=ANOTHER):
            step_of_its_own(trainer.made, trainer.made.model[2])


def test_in_turns_that_it_asks_for_by_itself_it_is_refused_at_once() -> None:
    """Then it may be anywhere in its loop."""
    made = Made()
    loop = made.session.epochs(5)
    next(loop)
    epoch(made)
    with pytest.raises(UserError, match=ANOTHER):
        step_of_its_own(made, made.model[2])
    while next(loop, None) is not None:
        epoch(made)
        with pytest.raises(UserError, match=ANOTHER):
            step_of_its_own(made, made.model[2])
