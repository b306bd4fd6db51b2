"""A script is told of what the handlers of its trainer compute, which the trainer calls from a list, as Ignite's engine
does; and not of those that only show something.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session


class Events(Enum):
    STARTED = 1
    ENDED = 2


class State:
    def __init__(self) -> None:
        self.iteration, self.output = 0, 0.0


class Trainer:
    """Each pass has a new state, and counts in it."""

    def __init__(self, update: Callable[[Any], float]) -> None:
        self.update = update
        self.handlers: Any = []
        self.state = State()

    def fire(self, event: Events) -> None:
        for handler in self.handlers:
            if event is Events.STARTED:
                handler(self)

    def run(self, batches: Iterable[Any]) -> None:
        self.state = State()
        for batch in batches:
            self.state.iteration += 1
            self.fire(Events.STARTED)
            self.state.output = self.update(batch)
            self.fire(Events.ENDED)


class WithArguments(Trainer):
    def fire(self, event: Events) -> None:
        for handler, its, arguments, named in self.handlers:
            if its is event:
                handler(self, *arguments, **named)


class ByEvent(Trainer):
    def fire(self, event: Events) -> None:
        for handler, arguments in self.handlers[event]:
            handler(self, *arguments)


class IfAny(ByEvent):
    def fire(self, event: Events) -> None:
        if event in self.handlers:
            super().fire(event)


class Schedule:
    """Of an option that it is told by name."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        self.its_groups, self.name = optimizer.param_groups, name

    def __call__(self, trainer: Trainer) -> None:
        value = self.at(trainer.state.iteration)
        for group in self.its_groups:
            group[self.name] = value

    def at(self, iteration: int) -> float:
        return 0.05 / iteration


def in_a_list(trainer: Trainer, handler: Callable[[Trainer], None]) -> None:
    trainer.handlers.append(handler)


def with_arguments(trainer: Trainer, handler: Callable[[Trainer], None]) -> None:
    trainer.handlers.append((handler, Events.STARTED, (), {}))


def by_event(trainer: Trainer, handler: Callable[[Trainer], None]) -> None:
    trainer.handlers = {Events.STARTED: [(handler, ())], Events.ENDED: []}


def if_any(trainer: Trainer, handler: Callable[[Trainer], None]) -> None:
    trainer.handlers = defaultdict(list)
    trainer.handlers[Events.STARTED].append((handler, ()))


KINDS = {
    "list": (Trainer, in_a_list),
    "with arguments": (WithArguments, with_arguments),
    "dict": (ByEvent, by_event),
    "defaultdict": (IfAny, if_any),
}


def told(kind: str, make: Callable[[torch.optim.Optimizer], Any], capsys: pytest.CaptureFixture[str]) -> list[str]:
    trained(kind, make)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


def trained(kind: str, make: Callable[[torch.optim.Optimizer], Any]) -> Trainer:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def update(batch: Any) -> float:
        x, y = batch
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)
        return float(loss.item())

    of_kind, add = KINDS[kind]
    trainer = of_kind(update)
    add(trainer, make(optimizer))
    for _ in ours.epochs(3):
        trainer.run(loader)
    return trainer


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_that_a_function_sets_by_a_count_of_the_epoch(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    def make(optimizer: torch.optim.Optimizer) -> Callable[[Trainer], None]:
        def handler(trainer: Trainer) -> None:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 / trainer.state.iteration

        return handler

    lines = told(kind, make, capsys)
    assert any("leaves to the next one, beginning with a value of the epoch's" in line for line in lines), lines


@pytest.mark.parametrize("kind", KINDS)
def test_an_option_that_an_object_sets_by_name(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(kind, lambda optimizer: Schedule(optimizer, "lr"), capsys)
    assert any("leaves to the next one, beginning with a value of the epoch's" in line for line in lines), lines


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_only_shown(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    def show(trainer: Trainer) -> None:
        print(f"{trainer.state.iteration}: {trainer.state.output}")

    assert told(kind, lambda _: show, capsys) == []


def test_a_look_makes_nothing_in_a_defaultdict() -> None:
    trainer = trained("defaultdict", lambda _: lambda _: None)
    assert [*trainer.handlers] == [Events.STARTED]
