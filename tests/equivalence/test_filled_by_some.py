"""A script is told of what only some batches put in a list, a dict or a count that an epoch begins with nothing in, and
that its end needs; and what to do instead also works in a process that enters the epoch at its end.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, fresh, mlp, session
from tests.equivalence.rows import on_ranks

Step = Callable[[Any, Any], float]
Script = Callable[[Any, Any, Step], object]


def first_item(ours: Any, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        found = []
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            if i % 2 == 0:
                found.append({"loss": loss})
        print({name: np.mean([one[name] for one in found]) for name in found[0]})


def mean(ours: Any, loader: Any, step: Step) -> None:
    for epoch in ours.epochs(2):
        found, name = [], f"epoch {epoch}"
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            if i % 2:
                continue
            found += [loss]
        print(name, sum(found) / len(found))


def mean_by_length(ours: Any, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        found, shows = list[float](), True
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            if shows and i % 2 == 0:
                found.append(loss)
        number = len(found)
        print(sum(found) / number)


def most(ours: Any, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        found = []
        for x, y in loader:
            loss = step(x, y)
            if ours.steps % 2 == 0:
                found.append(loss)
        if max(found) > 9:
            print("high")


def mean_of_a_function(ours: Any, loader: Any, step: Step) -> None:
    def epoch() -> Any:
        found, count = [], 0
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            count += 1
            if i % 2 == 0:
                found.append(loss)
        return found, count

    for _ in ours.epochs(2):
        found, _count = epoch()
        print(statistics.mean(found))


def by_name(ours: Any, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        found = {}
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            if i == 0:
                found["first"] = loss
        print(found["first"])


def in_an_attribute(ours: Any, loader: Any, step: Step) -> None:
    found = SimpleNamespace(losses=[])
    for _ in ours.epochs(2):
        found.losses = []
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            if i % 2 == 0:
                found.losses.append(torch.tensor(loss))
        print(torch.stack(found.losses).mean())


def count_of_steps(ours: Any, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        total = found = 0
        for x, y in loader:
            loss = step(x, y)
            if ours.step():
                total += loss
                found += 1
        print(total / found)


@pytest.mark.parametrize(
    "script", [first_item, mean, mean_by_length, most, mean_of_a_function, by_name, count_of_steps]
)
def test_what_an_epochs_end_needs(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(script, capsys)
    assert "test_filled_by_some.py, line " in line
    assert "put in found, where" in line


def test_an_attribute(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(in_an_attribute, capsys)
    assert ["put in found.losses, where" in line for line in lines] == [True]


def asks(ours: Any, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        some, more, few, last, again = [], [], [], [], []
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            if i % 2 == 0:
                some.append(loss)
                more.append(loss)
                few.append(loss)
                last.append(loss)
                again.append(loss)
        if some:
            print(some[0], sum(some) / len(some))
        print(max(more) if len(more) > 0 else 0.0)
        for one in few:
            print(one / len(few))
        number = len(few)
        print(sum(few) / max(number, 1), sum(few) / max(1, len(few)), max(sum(few), 1))
        try:
            print(last[-1])
        except IndexError:
            print("none")
        if not few:
            few.append(0.0)
        print(sum(few) / len(few))
        again = []
        for number in range(3):
            again.append(number)
        print(max(again))
        if not last:
            continue
        print(last[0])


def returns_if_there_is_none(ours: Any, loader: Any, step: Step) -> None:
    def epoch() -> float:
        found = []
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            if i % 2 == 0:
                found.append(loss)
        if not found:
            return 0.0
        return found[-1]

    for _ in ours.epochs(2):
        print(epoch())


def by_each_batch(ours: Any, loader: Any, step: Step) -> None:
    """Or by none, or more often than by none."""
    shows, saves = True, SimpleNamespace(epochs=1)
    for epoch in ours.epochs(2):
        shown, saved, both, each, some = [], [], [], [], []
        count = 0
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            count += len(x)
            if shows:
                shown.append(loss)
            if shows and epoch >= saves.epochs:
                saved.append(loss)
            if i % 2:
                both.append(loss)
            else:
                both.append(-loss)
            for one in x:
                each.append(one)
            if i % 2:
                some.append(loss)
        print(shown[0], both[0], each[0], max(both), 1 / count, sum(some), len(some), some[:3])
        if epoch >= saves.epochs:
            print(saved[0])


def with_something_before(ours: Any, loader: Any, step: Step) -> None:
    counts = defaultdict(int)
    for _ in ours.epochs(2):
        found, number, scale = [0.0], 1, 1e-9
        counts.clear()
        for i, (x, y) in enumerate(loader):
            loss = step(x, y)
            if i % 2 == 0:
                found.append(loss)
                number += 1
                scale += loss
        print(found[0], sum(found) / number / scale)


@pytest.mark.parametrize("script", [asks, returns_if_there_is_none, by_each_batch, with_something_before])
def test_others_are_not_told_of(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(script, capsys) == []


def trains(script: Script) -> list[torch.Tensor]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        if script is not count_of_steps:
            ours.step(loss)
        return loss.item()

    script(ours, loader, step)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("script", [asks, returns_if_there_is_none, by_each_batch])
def test_they_work_in_a_process_that_enters_an_epoch_at_its_end(script: Script) -> None:
    expected = trains(script)
    for values in on_ranks(lambda: trains(script), 1, GROWS_AND_SHRINKS):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


def told(script: Script, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines."""
    trains(script)
    return [line for line in capsys.readouterr().err.splitlines() if "needs at an epoch's end" in line]
