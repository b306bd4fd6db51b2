"""Refused: lines of a plain loop that do not fit a session."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import pilot.train
from tests.equivalence.rows import Row, Script, Topic

Step = Callable[["Made", torch.Tensor], None]


class Made:
    """What a script creates before its loop."""

    def __init__(self, scaler: torch.amp.GradScaler | None = None) -> None:
        self.model, self.scaler = nn.Linear(2, 1), scaler
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.session = pilot.train.session(self.model, self.optimizer, scaler=scaler)
        self.loader = self.session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)

    def train(self, step: Step) -> None:
        for _ in self.session.epochs(1):
            for (x,) in self.loader:
                self.optimizer.zero_grad()
                step(self, x)

    def losses(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square()


def passes_the_optimizer(made: Made, x: torch.Tensor) -> None:
    made.losses(x).mean().backward()
    made.session.step(made.optimizer)  # type: ignore[arg-type]  # that is the mistake


def clips_by_torchs_arguments(made: Made, x: torch.Tensor) -> None:
    made.losses(x).mean().backward()
    made.session.clip_grad_norm(made.model.parameters(), 1.0)  # type: ignore[arg-type]  # that is the mistake
    made.session.step()


def copies_the_session(made: Made, x: torch.Tensor) -> None:
    """As a copy of the best trainer so far does."""
    made.losses(x).mean().backward()
    made.session.step()
    copy.deepcopy(made)


def pickles_the_loader(made: Made, _: torch.Tensor) -> None:
    """As a checkpoint of all that a trainer has does."""
    pickle.dumps(made.loader)


def steps_the_scaler(made: Made, x: torch.Tensor) -> None:
    assert made.scaler is not None
    made.scaler.scale(made.losses(x).mean()).backward()
    made.scaler.step(made.optimizer)
    made.session.step()


def attacks_by_backward(made: Made, x: torch.Tensor) -> None:
    """Fast adversarial training; virtual adversarial training does the same."""
    noise = torch.zeros_like(x, requires_grad=True)
    mse_loss(made.model(x + noise), torch.ones(len(x), 1)).backward()
    assert noise.grad is not None
    made.optimizer.zero_grad()
    made.losses(x + 0.1 * noise.grad.sign()).mean().backward()
    made.session.step()


def in_a_range() -> None:
    made = Made()
    for _ in made.session.epochs(2):
        batches: Iterator[list[torch.Tensor]] = iter(made.loader)
        for _ in range(len(made.loader)):
            (x,) = next(batches)
            made.optimizer.zero_grad()
            made.losses(x).mean().backward()
            made.session.step()


def _row(name: str, line: str, instead: str, step: Step, *, scaled: bool = False) -> Row:
    def script() -> None:
        Made(torch.amp.GradScaler("cpu") if scaled else None).train(step)

    return Script(name=name, refused=line, instead=instead, elastic=script)


def without_a_seed() -> None:
    model = nn.Linear(2, 1)
    pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), seed=None)  # type: ignore[arg-type]  # that is the mistake


ROWS: list[Row] = [
    _row("session.step(optimizer)", "the loss must be a number, got SGD", "session.step(loss)", passes_the_optimizer),
    _row(
        "session.clip_grad_norm(model.parameters(), 1.0)",
        "takes the largest norm and nothing else",
        "`session.clip_grad_norm(1.0)`",
        clips_by_torchs_arguments,
    ),
    _row(
        "copy.deepcopy of an object that has the session",
        "a session cannot be copied or pickled",
        "a copy of `model.state_dict()`",
        copies_the_session,
    ),
    _row(
        "a loader that is pickled",
        "a session's loader cannot be copied or pickled",
        "a copy of what it needs",
        pickles_the_loader,
    ),
    _row(
        "scaler.step(optimizer) before session.step",
        r"leave optimizer.step\(\) to session.step",
        "leave it out",
        steps_the_scaler,
        scaled=True,
    ),
    _row(
        "a backward for an input's gradient (FGSM, VAT)",
        "input's gradient from torch.autograd.grad",
        "`torch.autograd.grad`, or backward(inputs=...)",
        attacks_by_backward,
    ),
    Script(
        name="seed=None", refused="seed must be a whole number, got None", instead="a number", elastic=without_a_seed
    ),
    Script(
        name="for _ in range(len(loader)), with next(batches)",
        refused=r"a range\(len\(loader\)\) does not",
        instead="`for batch in loader`",
        elastic=in_a_range,
    ),
]
TOPIC = Topic(121, "Refused: left over from a plain loop", ROWS)
