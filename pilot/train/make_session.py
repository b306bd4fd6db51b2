"""``pilot.train.session``, the function with which a script becomes elastic."""

from __future__ import annotations

import os
from typing import SupportsIndex

from pilot.core.errors import UserError
from pilot.train.check.settings import Run
from pilot.train.script import refusal
from pilot.train.session import Session
from pilot.train.state.lr import LearningRate
from pilot.train.state.stepper import Optimizers, Scalers, Schedulers
from pilot.train.state.training import Models, Training


def session(
    model: Models,
    optimizer: Optimizers,
    scheduler: Schedulers | None = None,
    *,
    schedule: str | None = None,
    scaler: Scalers | None = None,
    lr_rule: str | None = None,
    warmup_steps: int = 0,
    wire_dtype: str | None = None,
    seed: int = 0,
) -> Session:
    """Make a training loop elastic; see ``docs/elastic-tutorial.md``.

    Under ``pilot submit`` the process is one worker of a trainer; under plain ``python`` the same script runs by
    itself.

    Parameters
    ----------
    model, optimizer, scheduler : as in a plain script; ``session.step`` steps the last two. Pass several models as a
        dict by name. Pass several optimizers as a list to step them together, or as a dict to step each by its name (as
        in a GAN); schedulers take the same form
    schedule : required with a scheduler: whether it advances per ``step``, per ``epoch``, or by ``samples`` (counted in
        steps of one node: with ``batch_size`` on k nodes, k per step); for ``ReduceLROnPlateau`` the name of the
        value that the script reports at each epoch's end (``session.report``)
    scaler : loss scaler for mixed precision, or a dict by optimizer name; the script calls
        ``scaler.scale(loss).backward()``, the session does the rest
    lr_rule : required with ``batch_size`` per node, with which the batch grows with the group: how the learning rate
        follows, ``linear``, ``sqrt`` or ``none``
    warmup_steps : steps over which the learning rate moves to its new value
    wire_dtype : ``bfloat16`` or ``float16``: send float32 gradients between nodes at half the size, rounded before and
        after the sum
    seed : seed of the sample order, the augmentation and the ranks' random generators

    Raises
    ------
    pilot.core.errors.UserError
        These cannot be trained together, or the site's nodes cannot train them; one line says what to change.
    """
    refusal.show_in_one_line()
    if not isinstance(seed, SupportsIndex):
        raise UserError(f"pilot.train.session: seed must be a whole number, got {seed!r}")
    rate = LearningRate("linear" if lr_rule is None else lr_rule, warmup_steps)
    if (run := Run.of(os.environ)) is not None:
        run.adopt(model, scaler)
    training = Training(model, optimizer, scheduler, schedule, rate, scaler)
    return Session(training, int(seed), wire_dtype, has_rule=lr_rule is not None)
