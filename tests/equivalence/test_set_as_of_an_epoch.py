"""A script is not told of what its epochs' beginnings set from one epoch on: a node that joins later sets it, too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.equivalence.keeping import said

Step = Callable[..., None]


def of_an_object(ours: Any, loader: Any, step: Step) -> None:
    mixing = SimpleNamespace(enabled=True)
    for epoch in ours.epochs(4):
        if epoch >= 2:
            mixing.enabled = False
        for x, y in loader:
            step(x, y, 0.1 * mixing.enabled)


def as_in_timm(ours: Any, loader: Any, step: Step) -> None:
    mixing, options = SimpleNamespace(enabled=True), SimpleNamespace(off_from=2, prefetches=False)

    def train_epoch(epoch: int) -> None:
        if options.off_from and epoch >= options.off_from:
            if options.prefetches and loader.enabled:
                loader.enabled = False
            elif mixing is not None:
                mixing.enabled = False
        for x, y in loader:
            step(x, y, 0.1 * mixing.enabled)

    for epoch in ours.epochs(4):
        train_epoch(epoch)


def at_a_functions_beginning(ours: Any, loader: Any, step: Step) -> None:
    def train_epoch(epoch: int, mixing: Any) -> None:
        if epoch >= 2 and mixing is not None:
            mixing.enabled = False
        for x, y in loader:
            step(x, y, 0.1 * mixing.enabled)

    mixing = SimpleNamespace(enabled=True)
    for epoch in ours.epochs(4):
        train_epoch(epoch, mixing)


def a_variable(ours: Any, loader: Any, step: Step) -> None:
    weight = 0.1
    for epoch in ours.epochs(4):
        if epoch > 1:
            weight = 0.0
        for x, y in loader:
            step(x, y, weight)


class Trainer:
    def __init__(self) -> None:
        self.current_epoch, self.weight = 0, 0.1

    def fit(self, ours: Any, loader: Any, step: Step) -> None:
        for self.current_epoch in ours.epochs(4):
            if self.current_epoch >= 2:
                self.weight = 0.0
            for x, y in loader:
                step(x, y, self.weight)


def of_itself(ours: Any, loader: Any, step: Step) -> None:
    Trainer().fit(ours, loader, step)


@pytest.mark.parametrize("script", [of_an_object, as_in_timm, at_a_functions_beginning, a_variable, of_itself])
def test_what_is_set_from_an_epoch_on(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(script, capsys) == []


def in_one_epoch(ours: Any, loader: Any, step: Step) -> None:
    kept = SimpleNamespace(weight=0.1)
    for epoch in ours.epochs(4):
        if epoch == 2:
            kept.weight = 0.0
        for x, y in loader:
            step(x, y, kept.weight)


def from_what_it_is(ours: Any, loader: Any, step: Step) -> None:
    kept = SimpleNamespace(weight=0.1)
    for epoch in ours.epochs(4):
        if epoch >= 2:
            kept.weight *= 0.5
        for x, y in loader:
            step(x, y, kept.weight)


def by_a_measure(ours: Any, loader: Any, step: Step) -> None:
    kept, least = SimpleNamespace(weight=0.1), 2
    for epoch in ours.epochs(4):
        if (epoch * 7) % 4 > least:
            kept.weight = 0.0
        for x, y in loader:
            step(x, y, kept.weight)


def in_some_from_one_on(ours: Any, loader: Any, step: Step) -> None:
    kept = SimpleNamespace(weight=0.1)
    for epoch in ours.epochs(4):
        if epoch >= 1 and epoch % 2 == 0:
            kept.weight = 0.0
        for x, y in loader:
            step(x, y, kept.weight)


def until_one(ours: Any, loader: Any, step: Step) -> None:
    """The first of its epochs only."""
    kept = SimpleNamespace(weight=0.0)
    for epoch in ours.epochs(4):
        if epoch >= 1:
            pass
        else:
            kept.weight = 0.1
        for x, y in loader:
            step(x, y, kept.weight)


def variable_in_one(ours: Any, loader: Any, step: Step) -> None:
    weight = 0.1
    for epoch in ours.epochs(4):
        if epoch == 2:
            weight = 0.0
        for x, y in loader:
            step(x, y, weight)


@pytest.mark.parametrize(
    "script", [in_one_epoch, from_what_it_is, by_a_measure, in_some_from_one_on, until_one, variable_in_one]
)
def test_what_a_later_epoch_does_not_set(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(script, capsys)
    assert "weight" in line
