"""The exchanges of a session: one for all optimizers that are stepped together, or one for each optimizer that is
stepped by name. Groups identify exchanges by number. In a sharded model each process sends its shard, summed in the
node.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pilot.checkpoint import shards
from pilot.comm.narrow import KINDS
from pilot.core.errors import UserError
from pilot.train.between.between import Between
from pilot.train.gradients.exchange import Exchange
from pilot.train.gradients.late_exchange import LateExchange
from pilot.train.node.node_group import NodeGroup
from pilot.train.state.sharding import Sharding, check_trained
from pilot.train.state.stepper import Stepper
from pilot.train.state.training import Training


class Exchanges:
    """The exchanges of one session, in ``each`` by number.

    Parameters
    ----------
    training : has the parameters and optimizers
    wire_dtype : see :class:`~pilot.train.gradients.exchange.Exchange`
    group, between : sum the gradients of the node's processes, and over the nodes (except for optimizers stepped by
        name, whose set of gradients varies from step to step)
    """

    def __init__(
        self,
        training: Training,
        wire_dtype: str | None,
        group: NodeGroup | None = None,
        between: Between | None = None,
    ) -> None:
        if wire_dtype not in (None, *KINDS):
            raise UserError(f"wire_dtype must be {' or '.join(KINDS)} or None, got {wire_dtype!r}")
        self._training = training
        self._group = group
        self._between = between if between is not None and between.in_use else None
        self._wire_dtype = wire_dtype
        self._names = [stepper.name for stepper in training.steppers]
        self.each = self._made()

    def renew(self) -> bool:
        """Replace the exchanges if other parameters are trained now; return whether they are. Call it between steps."""
        if not self._training.trained.changed():
            return False
        self.replace()
        return True

    def replace(self) -> None:
        """Replace the exchanges, and their memory. Call it between steps."""
        for exchange in self.each:
            exchange.close()
        self.each = self._made()

    def number(self, stepper: Stepper) -> int:
        """Return the number of the exchange with the gradients of ``stepper``."""
        return self._names.index(stepper.name)

    def parameters(self, steppers: Sequence[Stepper]) -> list[nn.Parameter]:
        """Return the parameters that ``steppers`` step."""
        return [parameter for one in steppers for parameter in self.each[self.number(one)].parameters]

    def idle(self) -> None:
        """Call :meth:`Exchange.idle <pilot.train.gradients.exchange.Exchange.idle>` of each exchange."""
        for exchange in self.each:
            exchange.idle()

    def backward_ended(self) -> None:
        """Call :meth:`Exchange.backward_ended <pilot.train.gradients.exchange.Exchange.backward_ended>` of each."""
        for exchange in self.each:
            exchange.backward_ended()

    def only(self, steppers: Sequence[Stepper]) -> None:
        """Require that the gradients of other steppers are zeroed before they count, because these were stepped."""
        stepped = {self.number(stepper) for stepper in steppers}
        for number, exchange in enumerate(self.each):
            if number not in stepped and isinstance(exchange, LateExchange):
                exchange.disown()

    def _made(self) -> list[Exchange]:
        trained, steppers, wire = self._training.trained, self._training.steppers, self._wire_dtype
        trained.laid_out()
        if steppers.by_name:
            return [LateExchange(trained.of(stepper), wire) for stepper in steppers]
        if (sharding := self._training.sharding) is not None:
            check_trained(trained.trained())
            return [ShardedExchange(trained.of(stepper), wire, sharding, self._between) for stepper in steppers]
        return [Exchange(trained.of(one), wire, group=self._group, between=self._between) for one in steppers]


class ShardedExchange(Exchange):
    """An :class:`~pilot.train.gradients.exchange.Exchange` of a sharded model. ``sharding`` weights the gradients."""

    _sharing = 1

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        wire_dtype: str | None,
        sharding: Sharding,
        between: Between | None,
    ) -> None:
        self._sharding = sharding
        super().__init__(parameters, wire_dtype, between=between)

    def begin_batch(self, weight: float, *, last: bool) -> None:
        """See :class:`~pilot.train.gradients.exchange.Exchange`. The gradient of each process has a part of every batch
        of the node, because backward reduces them, so it always counts.
        """
        self._check_reduced(weight)
        self._sharding.weight = weight
        super().begin_batch(1.0 if self._sharding.size > 1 else weight, last=last)

    def flush(self) -> None:
        self._check_reduced(0.0)
        super().flush()

    def _check_reduced(self, weight: float) -> None:
        """Raise :class:`UserError` if gradients left for a later batch have another ``weight`` than that."""
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
