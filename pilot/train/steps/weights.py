"""The weight of a batch's gradient in its step: its number of samples, or the weight given by the script.

A weight (such as the number of tokens in a mean loss) is known after the batch's forward pass, and a step's total only
when all ranks have sent theirs. So if steps have weights, gradients are held until ``session.step``; the ranks sum w·g
and, with the step's words, w; and each divides one by the other. The first step, which shows whether a script gives
weights, is held, too.

To stay in the range of the type in which gradients are sent, weights are divided by the previous step's sum of weights,
which is part of the state.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import SupportsFloat

from pilot.core.errors import UserError
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.step_words import Words
from pilot.train.state.session_checks import number


class Weights:
    """One rank's weights in a step, with the sum so far, ``local``; ``together``: no optimizer is stepped by name."""

    def __init__(self, *, together: bool) -> None:
        self._together = together
        self.local = 0.0
        self._given = False
        self._before: float | None = None
        self._share: StepShare | None = None

    def begin(self, before: float | None, share: StepShare) -> None:
        """Begin a step; ``before``: the sum of the previous step's weights (0: it had none; None: no step before)."""
        self.local, self._given = 0.0, False
        self._before, self._share = before, share

    @property
    def possible(self) -> bool:
        """Whether the script gives weights, or may do so in this first step."""
        return self._together and self._before != 0

    def factor(self, batch: int, weight: SupportsFloat | None) -> float:
        """Return the factor for the mean gradient of micro-batch ``batch``, for which the script gives ``weight``."""
        assert self._share is not None
        if not self._together and weight is not None:
            raise UserError("session.step: weight= cannot be combined with optimizers that are stepped by name")
        if self._before is not None and (weight is not None) != bool(self._before):
            raise UserError("session.step was called both with and without weight=: give it in every step or in none")
        self._given = weight is not None
        if weight is None:
            return self._share.weight(batch)
        own = number("session.step: weight", weight)
        if not (math.isfinite(own) and own >= 0):
            raise UserError(f"session.step: weight must be a finite number of at least 0, got {own}")
        factor = own / self._unit if self._share.samples else 0.0
        self.local += factor
        return factor

    def checked(self, words: Words) -> Words:
        """Return the step's words, with the loss averaged as well, and the weight in the script's unit."""
        if words.weight and not self._given:
            raise UserError("session.step was called with weight= on one rank and without on another")
        if self._given and not words.weight:
            raise UserError("the weights of all batches of a step are 0, so there is no mean; remove such data")
        if not self._given:
            return words
        return replace(words, loss=words.loss / words.weight, weight=words.weight * self._unit)

    @property
    def _unit(self) -> float:
        return self._before or float(self._share.total if self._share else 1)
