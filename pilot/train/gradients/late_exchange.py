"""The exchange of an optimizer that is stepped by name: its gradients are summed only when it is stepped.

It is not known earlier for which optimizer a backward pass is. In return, there may be several backward passes, as in a
plain loop: everything that was computed since the gradients were zeroed counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from pilot.train.gradients.bucket import check_gradients
from pilot.train.gradients.exchange import BUCKET_BYTES, Exchange, weakly
from pilot.train.gradients.step_words import Words
from pilot.train.state.placeholder import Collected, Placeholder, Unwanted


class LateExchange(Exchange):
    """An :class:`~pilot.train.gradients.exchange.Exchange` for steps of one micro-batch.

    Until zeroed, a parameter's ``grad`` is the gradient that backward computed, a ``Collected`` once that was taken,
    the sum after the step, or an ``Unwanted`` (:mod:`pilot.train.state.placeholder`).
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], wire_dtype: str | None = None, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        super().__init__(parameters, wire_dtype, bucket_bytes)
        self._unwanted = [Unwanted.of(p, number, self._in_place) for number, p in enumerate(self.parameters)]
        self._gathered = [Collected(p) for p in self.parameters]
        for index, collected in enumerate(self._gathered):
            collected.collect = weakly(self._add_one, index)
        self._given: list[torch.Tensor | None] = [None] * len(self.parameters)

    def idle(self) -> None:
        super().idle()
        self._own: dict[int, torch.Tensor] = {}

    def begin_batch(self, weight: float, *, last: bool) -> None:
        super().begin_batch(weight, last=last)
        self._given = [None] * len(self.parameters)
        self.disown()

    def disown(self) -> None:
        """Require that the current gradients are zeroed before others count. (Sums may be read.)"""
        for index, (parameter, given) in enumerate(zip(self.parameters, self._given, strict=True)):
            if parameter.grad is not None and parameter.grad is not given:
                parameter.grad = self._unwanted[index]

    def backward_ended(self) -> None:
        if not self.open:
            return
        for number, bucket in enumerate(self._buckets):
            gradients = map(self._unless_given, bucket.indices, bucket.gradients())
            self._collect(number, list(gradients))

    def _unless_given(self, index: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return None if gradient is self._given[index] else gradient

    def _finished(self, number: int, _parameter: torch.Tensor) -> None:
        if not self.open:
            return
        gradients = self._buckets[number].gradients()
        missing = next((place for place, gradient in enumerate(gradients) if gradient is None), None)
        if missing is None:
            self._collect(number, gradients)
        else:
            self._buckets[number].watch(missing, weakly(self._finished, number))

    def _collect(self, number: int, gradients: Sequence[torch.Tensor | None]) -> None:
        for index, gradient in zip(self._buckets[number].indices, gradients, strict=True):
            if gradient is None or isinstance(gradient, Placeholder):
                continue
            if gradient is self._given[index]:  # a later backward has added to the sum
                self.parameters[index].grad = self._unwanted[index]
                continue
            check_gradients([gradient])
            self._put(index, gradient, first=True)
            self.parameters[index].grad = self._gathered[index]

    def _add_one(self, index: int, gradient: torch.Tensor) -> None:
        check_gradients([gradient])
        self._put(index, gradient, first=False)

    def _put(self, index: int, gradient: torch.Tensor, *, first: bool) -> None:
        if self._sketch is not None:
            self._sketch.put(self.parameters[index], gradient, first=first)
        if not self._weight:
            return
        if not self._alone:
            self._staging.add(index, gradient, self._weight, first=first)
        elif first:
            self._own[index] = gradient
        else:
            self._own[index].add_(gradient)

    def flush(self) -> None:
        """Send the gradients computed since they were zeroed; return when all buckets have been sent."""
        for number, bucket in enumerate(self._buckets):
            self._collect(number, bucket.gradients())
            for index in bucket.indices:
                self._note_held(index)
            if not self._alone:
                self._staging.send(number, self._holds[bucket.range])
            self._then_ring(number)
        self._staging.flush()

    def _note_held(self, index: int) -> None:
        gradient = self.parameters[index].grad
        if gradient is not None and gradient is not self._gathered[index]:
            self._unwanted[index].refuse()
        self._holds[index] = gradient is not None and self._weight > 0

    def take(self) -> Words:
        """See :class:`~pilot.train.gradients.exchange.Exchange`. The optimizer may be stepped again in this step."""
        used = np.flatnonzero(self._used).tolist()
        self.drop_gradients()
        for index, gradient in zip(used, self._back(used), strict=True):
            self.parameters[index].grad = gradient
        self._given = [parameter.grad for parameter in self.parameters]
        self._check_zeroed()
        return Words.read(self._fields, self._times)

    def _back(self, indices: Sequence[int]) -> list[torch.Tensor]:
        return [self._own[index] for index in indices] if self._alone else self._staging.back(indices)
