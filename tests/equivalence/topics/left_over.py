"""Refused: lines of a plain loop that do not fit a session."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import nn
from torch.nn.functional import mse_loss

import pilot.train
from tests.equivalence.refusing import Made, Refusals
from tests.equivalence.rows import Topic

ROWS = Refusals()


@ROWS.made("session.step(optimizer)", "the loss must be a number, got SGD", "session.step(loss)")
def passes_the_optimizer(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.session.step(made.optimizer)  # type: ignore[arg-type]  # that is the mistake


@ROWS.made(
    "session.clip_grad_norm(model.parameters(), 1.0)",
    "takes the largest norm and nothing else",
    "`session.clip_grad_norm(1.0)`",
)
def clips_by_torchs_arguments(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.session.clip_grad_norm(made.model.parameters(), 1.0)  # type: ignore[arg-type]  # that is the mistake
        made.session.step()


@ROWS.made(
    "copy.deepcopy of an object that has the session",
    "a session cannot be copied or pickled",
    "a copy of `model.state_dict()`",
)
def copies_the_session(made: Made) -> None:
    """As a copy of the best trainer so far does."""
    for x in made.batches():
        made.loss(x).backward()
        made.session.step()
        copy.deepcopy(made)


@ROWS.made("a loader that is pickled", "a session's loader cannot be copied or pickled", "a copy of what it needs")
def pickles_the_loader(made: Made) -> None:
    """As a checkpoint of all that a trainer has does."""
    pickle.dumps(made.loader)


@ROWS.script("scaler.step(optimizer) before session.step", r"leave optimizer.step\(\) to session.step", "leave it out")
def steps_the_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu")
    made = Made(scaler=scaler)
    for x in made.batches():
        scaler.scale(made.loss(x)).backward()
        scaler.step(made.optimizer)
        made.session.step()


@ROWS.made(
    "a backward for an input's gradient (FGSM, VAT)",
    "input's gradient from torch.autograd.grad",
    "`torch.autograd.grad`, or backward(inputs=...)",
)
def attacks_by_backward(made: Made) -> None:
    """Fast adversarial training; virtual adversarial training does the same."""
    for x in made.batches():
        noise = torch.zeros_like(x, requires_grad=True)
        mse_loss(made.model(x + noise), torch.ones(len(x), 1)).backward()
        assert noise.grad is not None
        made.optimizer.zero_grad()
        made.loss(x + 0.1 * noise.grad.sign()).backward()
        made.session.step()


@ROWS.script("seed=None", "seed must be a whole number, got None", "a number")
def without_a_seed() -> None:
    model = nn.Linear(2, 1)
    pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), seed=None)  # type: ignore[arg-type]  # that is the mistake


@ROWS.made(
    "for _ in range(len(loader)), with next(batches)", r"a range\(len\(loader\)\) does not", "`for batch in loader`"
)
def in_a_range(made: Made) -> None:
    for _ in made.session.epochs(2):
        batches = iter(made.loader)
        for _ in range(len(made.loader)):
            (x,) = next(batches)
            made.optimizer.zero_grad()
            made.loss(x).backward()
            made.session.step()


TOPIC = Topic(121, "Refused: left over from a plain loop", ROWS)
