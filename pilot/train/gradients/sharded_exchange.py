"""The gradients of a sharded model: each process sends its shard, which the node has summed already."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pilot.checkpoint import shards
from pilot.core.errors import UserError
from pilot.train.gradients.exchange import Exchange
from pilot.train.state.sharding import Sharding


class ShardedExchange(Exchange):
    """See the module, and :class:`~pilot.train.gradients.exchange.Exchange`.

    Parameters
    ----------
    parameters, wire_dtype : as there
    sharding : weights a batch's gradients
    """

    _sharing = 1

    def __init__(self, parameters: Sequence[nn.Parameter], wire_dtype: str | None, sharding: Sharding) -> None:
        self._sharding = sharding
        super().__init__(parameters, wire_dtype)

    def begin_batch(self, weight: float, *, last: bool) -> None:
        """See :class:`~pilot.train.gradients.exchange.Exchange`. Every process gets a part of every batch of the node,
        because the others' gradients are reduced, too.
        """
        self._check_reduced(weight)
        self._sharding.weight = weight
        super().begin_batch(1.0 if self._sharding.size > 1 else weight, last=last)

    def flush(self) -> None:
        self._check_reduced(0.0)
        super().flush()

    def _check_reduced(self, weight: float) -> None:
        """Check that gradients left for a later batch get the same ``weight`` as that batch."""
        if not self._first and weight != self._sharding.weight and not self._sharding.reduces:
            raise UserError(
                "model.set_requires_gradient_sync(False) leaves a batch's gradients to be summed with those of the next"
                " one, which must be a batch of the same step and as large: leave it out (between nodes gradients are"
                " summed once per step anyway)"
            )

    def _add(self, number: int, gradients: Sequence[torch.Tensor | None]) -> None:
        super()._add(number, [shards.local_of(one) if one is not None else None for one in gradients])

    def _gradient(self, parameter: nn.Parameter, summed: torch.Tensor) -> torch.Tensor:
        return shards.like(parameter, summed)
