"""The one function that a script calls to begin with."""

from __future__ import annotations

from pilot.train import refusal
from pilot.train.lr import LearningRate
from pilot.train.session import Session
from pilot.train.stepper import Optimizers, Scalers, Schedulers
from pilot.train.training import Models, Training


def session(
    model: Models,
    optimizer: Optimizers,
    scheduler: Schedulers | None = None,
    *,
    schedule: str | None = None,
    scaler: Scalers | None = None,
    lr_rule: str = "linear",
    warmup_steps: int = 0,
    wire_dtype: str | None = None,
    seed: int = 0,
) -> Session:
    """Make a training loop elastic; see ``docs/elastic-script.md``.

    Under ``pilot submit`` the script's process is a worker of a trainer; under plain ``python`` it runs alone, the
    same way.

    Parameters
    ----------
    model, optimizer, scheduler : as in a plain script; ``session.step`` steps the last two. Several models are a dict
        by name. Several optimizers are a list, which are stepped together, or a dict, each of which is stepped by its
        name (a GAN's); their schedulers come in the same form
    schedule : to be said where there is a scheduler: whether it counts every ``step``, every ``epoch``, or ``samples``,
        in steps of one node: with ``batch_size`` on k nodes, k in a step; for
        ``ReduceLROnPlateau`` the name of the measure of ``session.epochs`` that it takes after each epoch
    scaler : of the loss, for mixed precision: the script calls ``scaler.scale(loss).backward()``, the session the rest;
        one, or a dict by the optimizers' names
    lr_rule : how the learning rate follows the group's size with a fixed batch per node: ``linear``, ``sqrt`` or
        ``none``
    warmup_steps : over which it follows
    wire_dtype : ``bfloat16`` or ``float16``: float32 gradients travel between nodes as half the bytes, each rounded
        before the sum and after it
    seed : of the order of samples, their augmentation and the ranks' generators
    """
    refusal.show_in_one_line()
    rate = LearningRate(lr_rule, warmup_steps)
    return Session(Training(model, optimizer, scheduler, schedule, rate, scaler), seed, wire_dtype)
