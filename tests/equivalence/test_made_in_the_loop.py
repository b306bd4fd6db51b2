"""A script is told of what a first batch, or an epoch's end, makes for later ones, where there was nothing before the
loop: a node that joins makes another one, or has none.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Step = Callable[..., None]


class Balanced:
    """Divides a loss by its first value."""

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.scale = loss.detach()
        self.last = loss.item()
        return loss / self.scale


class Inherits(Balanced):
    """It has it from there."""


@pytest.mark.parametrize("kind", [Balanced, Inherits])
def test_an_attribute_that_the_script_asks_for(kind: type[Balanced], capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        balanced = kind()
        for _ in ours.epochs(1):
            for x, y in loader:
                step(x, y, balanced)

    assert told(script, capsys) == "balanced.scale"


def test_an_attribute_that_the_loop_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        kept = Balanced()
        kept.scale = torch.ones(())
        for _ in ours.epochs(1):
            for x, y in loader:
                mean = getattr(kept, "mean", None)
                vars(kept)["mean"] = x.mean() if mean is None else 0.9 * mean + 0.1 * x.mean()
                step(x, y, kept)

    assert told(script, capsys) == "kept.mean"


class Counting:
    """Its first call finds no count."""

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        try:
            self.count += 1
        except AttributeError:
            self.count = 1
        return loss / self.count


def test_an_attribute_that_the_script_tries_for(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        counting = Counting()
        for _ in ours.epochs(1):
            for x, y in loader:
                step(x, y, counting)

    assert told(script, capsys) == "counting.count"


def balanced(loss: torch.Tensor) -> torch.Tensor:
    if not hasattr(balanced, "scale"):
        balanced.scale = loss.detach()  # type: ignore[attr-defined]  # as scripts do
    return loss / balanced.scale  # type: ignore[attr-defined]  # as scripts do


def test_an_attribute_of_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        for _ in ours.epochs(1):
            for x, y in loader:
                step(x, y, balanced)

    assert told(script, capsys) == "balanced.scale"


def test_a_variable_of_the_first_batch(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        for epoch in ours.epochs(1):
            for i, (x, y) in enumerate(loader):
                if not epoch and i == 0:
                    first = x.mean()
                step(x * first, y)

    assert told(script, capsys) == "first"


@pytest.mark.parametrize("number", [False, True])
def test_a_variable_that_the_batches_of_one_epoch_set(number: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        for epoch in ours.epochs(8):
            for x, y in loader:
                if epoch == 0:
                    scale = 1.0 + x.mean().abs()
                    if number:
                        scale = scale.item()
                step(x / scale, y)

    assert told(script, capsys) == "scale"


def test_a_number_that_its_own_turn_reads_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        for _ in ours.epochs(3):
            for i, (x, y) in enumerate(loader):
                if i == 0:
                    mean = x.mean().item()
                step(x, y)
                if i == 0:
                    assert mean < 10.0

    assert told(script, capsys) == ""


def test_a_variable_of_an_epochs_end(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        for epoch in ours.epochs(2):
            for x, y in loader:
                step(x * before if epoch else x, y)  # noqa: F821  # it may be there
            before = 1.0 / (1 + epoch)  # noqa: F841  # the next turn reads it

    assert told(script, capsys) == "before"


def test_what_every_other_epoch_sets_for_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        for epoch in ours.epochs(3):
            if epoch % 2 == 0:
                points = torch.ones(1)
                scale = 1.0 / (2 + epoch)
                pool = [points * 2]
            for x, y in loader:
                step(x * points * scale, y, lambda loss: loss * pool[0])  # noqa: B023  # called before the next epoch begins

    assert told(script, capsys) == "points, pool, scale"


def test_what_it_gives_to_a_function_of_the_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        def trains(target: torch.Tensor) -> None:
            for x, y in loader:
                step(x * target, y)

        for epoch in ours.epochs(3):
            if epoch in (0, 2):
                with torch.no_grad():
                    target = torch.ones(1)
            trains(target)

    assert told(script, capsys) == "target"


def test_what_an_epoch_sets_for_itself_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        kept, uses_weights = SimpleNamespace(one=torch.ones(1), other=torch.ones(1)), True
        for epoch in ours.epochs(4):
            if epoch < 2:
                chosen = kept.one
            if epoch >= 2:
                chosen = kept.other
            if uses_weights:
                weights = kept.one
            if epoch >= 0:
                noise = torch.ones(1)
            if epoch % 2 == 0:
                shown = torch.ones(1)
            for x, y in loader:
                step(x * chosen * weights * noise, y)
            if epoch % 2 == 0:
                assert shown.item() == 1.0

    assert told(script, capsys) == ""


@pytest.mark.parametrize("of", [torch.Tensor.detach, torch.clone])
def test_a_sum_of_tensors_in_a_function_of_the_epoch_is_not_told_of(
    of: Callable[[torch.Tensor], torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    """As of numbers: each call begins with nothing."""

    def script(ours: Any, loader: Any, step: Step) -> None:
        def run_epoch() -> Any:
            total: Any = 0
            parts = torch.zeros(1)
            for x, y in loader:
                step(x, y)
                total += of(y.mean())
                parts += y.mean()
            return total, parts

        for _ in ours.epochs(3):
            run_epoch()

    assert told(script, capsys) == ""


def test_others_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        kept, mixes = SimpleNamespace(), [0.5]
        for epoch in ours.epochs(2):
            fixed = [torch.ones(1)]
            if epoch:
                weights = torch.ones(1)
            if not epoch:
                weights = torch.zeros(1)
            for x, y in loader:
                for one in fixed:
                    x = x * one
                assert len([one for one in fixed if one.numel()]) == len(fixed)
                if mixes:
                    other = x.flip(0) + weights
                if mixes:
                    x = 0.5 * x + 0.5 * other
                kept.batch = x
                step(x, y)
            measure = x.mean().item()
            kept.measures = [measure]

    assert told(script, capsys) == ""


def told(script: Callable[[Any, Any, Step], None], capsys: pytest.CaptureFixture[str]) -> str:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor, of: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss) -> None:
        optimizer.zero_grad()
        loss = of(mse_loss(model(x), y))
        loss.backward()
        ours.step(loss)

    script(ours, loader, step)
    lines = capsys.readouterr().err.splitlines()
    assert all("test_made_in_the_loop.py, line " in line for line in lines)
    return "".join(line.partition("change in its loop (")[2].partition(")")[0] for line in lines)
