"""A script is told of what it hands on from batch to batch, such as a hidden state."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from tests.equivalence.loops import BATCH, fresh, session
from tests.equivalence.rows import SAMPLES

SEQUENCES = TensorDataset(torch.randn(SAMPLES, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


class Recurrent(nn.Module):
    """Its hidden state is a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, hidden: Any = None) -> tuple[torch.Tensor, Any]:
        kept = None if hidden is None else tuple(one.detach()[:, : len(x)].contiguous() for one in hidden)
        outputs, hidden = self.cells(x, kept)
        return self.out(outputs), hidden


class Keeping(Recurrent):
    """It keeps its hidden state, and what an epoch's beginning may look at."""

    hidden: Any = None
    seen: Any = None

    def forward(self, x: torch.Tensor, _hidden: Any = None) -> tuple[torch.Tensor, Any]:
        output, self.hidden = super().forward(x, self.hidden)
        self.seen = output
        return output, self.seen


class Detaching(Recurrent):
    """It keeps a hidden state without its graph."""

    hidden: Any = None

    def forward(self, x: torch.Tensor, _hidden: Any = None) -> tuple[torch.Tensor, Any]:
        output, hidden = super().forward(x, self.hidden)
        self.hidden = tuple(part.detach() for part in hidden)
        return output, self.hidden


Step = Callable[[torch.Tensor], None]
Loop = Callable[[Any, Any, nn.Module, Step], None]


def told(loop: Loop, capsys: pytest.CaptureFixture[str], kind: type[Recurrent] = Recurrent) -> list[str]:
    """The lines."""
    model = fresh(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session({"R": model}, {"R": optimizer})
    loader = ours.loader(SEQUENCES, global_batch_size=BATCH)

    def step(output: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = mse_loss(output, torch.ones_like(output))
        loss.backward()
        ours.step(loss)

    loop(ours, loader, model, step)
    return [line for line in capsys.readouterr().err.splitlines() if "the script hands what" in line]


def in_the_epoch(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
    for _ in ours.epochs(2):
        hidden = None
        for (x,) in loader:
            output, hidden = model(x, hidden)
            step(output)


def in_a_function(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
    def epoch() -> None:
        hidden = None
        for (x,) in loader:
            output, hidden = model(x, hidden)
            step(output)

    for _ in ours.epochs(2):
        epoch()


def begun_by_a_first_batch(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
    for _ in ours.epochs(2):
        for number, (x,) in enumerate(loader):
            if number == 0:
                hidden = (torch.zeros(1, BATCH, 4).to(x), torch.zeros(1, BATCH, 4).to(x))
            output, hidden = model(x, hidden)
            step(output)


def by_iteration(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
    hidden = None
    for _ in ours.iterations(4):
        output, hidden = model(*loader.next(), hidden)
        step(output)


class Trainer:
    """With a function for the epoch."""

    hidden: Any = None

    def fit(self, ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
        for _ in ours.epochs(2):
            self.hidden = None
            self.epoch(loader, model, step)

    def epoch(self, loader: Any, model: nn.Module, step: Step) -> None:
        for (x,) in loader:
            output, self.hidden = model(x, self.hidden)
            step(output)


class BeginningAnew(Trainer):
    """Its function begins with a state of its own."""

    def epoch(self, loader: Any, model: nn.Module, step: Step) -> None:
        for number, (x,) in enumerate(loader):
            if number == 0:
                self.hidden = (torch.zeros(1, BATCH, 4).to(x), torch.zeros(1, BATCH, 4).to(x))
            output, self.hidden = model(x, self.hidden)
            step(output)


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (in_the_epoch, "hidden"),
        (in_a_function, "hidden"),
        (begun_by_a_first_batch, "hidden"),
        (by_iteration, "hidden"),
        (Trainer().fit, "self.hidden"),
        (BeginningAnew().fit, "self.hidden"),
    ],
)
def test_a_hidden_state(loop: Loop, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(loop, capsys)
    assert "test_handed_on.py, line " in line
    assert f"({name}: a hidden state?)" in line


@pytest.mark.parametrize("kind", [Keeping, Detaching])
def test_a_hidden_state_that_the_model_keeps(kind: type[Recurrent], capsys: pytest.CaptureFixture[str]) -> None:
    def loop(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
        for _ in ours.epochs(2):
            model.hidden = None
            for (x,) in loader:
                step(model(x)[0])

    (line,) = told(loop, capsys, kind)
    assert "(R.hidden: a hidden state?)" in line


class Sometimes(Recurrent):
    """Some calls set an attribute, and others read it: those with this number, or with the next."""

    first, calls = 1, 0
    hidden: Any = None

    def forward(self, x: torch.Tensor, _hidden: Any = None) -> tuple[torch.Tensor, Any]:
        self.calls += 1
        if self.calls % 2 == self.first % 2:
            self.hidden = tuple(one.detach() for one in super().forward(x)[1])
            return super().forward(x)
        return super().forward(x, tuple(one[:, :1].expand(-1, len(x), -1) for one in self.hidden or ()) or None)


class SometimesLater(Sometimes):
    """In every second batch."""

    first = 2


class Inverse(Recurrent):
    """As in a normalizing flow: what the inverse would read, each batch sets before it reads it."""

    mean: Any = None

    def forward(self, x: torch.Tensor, _hidden: Any = None, mode: str = "direct") -> tuple[torch.Tensor, Any]:
        output, hidden = super().forward(x)
        if mode == "direct":
            self.mean = output.mean(0)
            return output - self.mean, hidden
        return output + self.mean, hidden


class Noisy(Recurrent):
    """Draws noise if it has none; another method begins it anew in each batch, or ``begins`` not."""

    noise, begins = None, True

    def begin(self) -> None:
        if self.begins:
            self.noise = None

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        self.begin()
        super().__call__(x)
        return tuple(super().__call__(x))

    def forward(self, x: torch.Tensor, _hidden: Any = None) -> tuple[torch.Tensor, Any]:
        output, hidden = super().forward(x)
        if self.noise is None:
            self.noise = torch.randn_like(output)
        return output + self.noise[: len(output)], hidden


class KeepingNoise(Noisy):
    """The first batch's."""

    begins = False


def plain(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
    for _ in ours.epochs(2):
        for (x,) in loader:
            step(model(x)[0])


@pytest.mark.parametrize("kind", [Sometimes, SometimesLater])
def test_what_one_batch_sets_and_another_reads(kind: type[Recurrent], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(plain, capsys, kind)
    assert "(R.hidden: a hidden state?)" in line


def test_noise_of_the_first_batch(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(plain, capsys, KeepingNoise)
    assert "(R.noise: a hidden state?)" in line


@pytest.mark.parametrize("kind", [Inverse, Noisy])
def test_not_what_each_batch_sets_before_it_reads_it(kind: type[Recurrent], capsys: pytest.CaptureFixture[str]) -> None:
    assert told(plain, capsys, kind) == []


def test_not_what_a_batch_begins_anew_nor_sums_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    def loop(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
        for _ in ours.epochs(2):
            total, mean, outputs = torch.zeros(1), torch.zeros(2), list[torch.Tensor]()
            for (x,) in loader:
                hidden = None
                for begin, end in pairwise(range(3)):
                    output, hidden = model(x[:, begin:end], hidden)
                    step(output)
                outputs.append(output)
                total = total + output.sum()
                mean = mean + output.detach().mean()

    assert told(loop, capsys) == []


class Batches:
    """Moves batches to where the model is."""

    def __init__(self, loader: Any) -> None:
        self.batches = iter(loader)

    def next(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        (x,) = next(self.batches, (None,))
        return x, None if x is None else x.mean()


def test_not_the_next_batch_which_a_turn_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    def asks_in_its_condition(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
        for _ in ours.epochs(2):
            batches = iter(loader)
            while (batch := next(batches, None)) is not None:
                step(model(batch[0])[0])

    def asks_ahead(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
        for _ in ours.epochs(2):
            batches = iter(loader)
            batch = next(batches, None)
            while batch is not None:
                step(model(batch[0])[0])
                batch = next(batches, None)

    def asks_a_helper(ours: Any, loader: Any, model: nn.Module, step: Step) -> None:
        for _ in ours.epochs(2):
            batches = Batches(loader)
            x, target = batches.next()
            while x is not None:
                step(model(x)[0] - target)
                x, target = batches.next()

    assert told(asks_in_its_condition, capsys) == []
    assert told(asks_ahead, capsys) == []
    assert told(asks_a_helper, capsys) == []
