"""Models that ``fully_shard`` (FSDP2) divides over the processes of a node: each has 1/L of parameters, gradients and
optimizer state, and only shards are summed between nodes.

FSDP takes the mean over the node's processes before anybody sees a gradient, while the session weighs each by its
samples. So FSDP is told to sum, and its reduce-scatter multiplies by this process's weight first. What comes out are
the shard's gradients, to be summed with those of the same local rank on the other nodes while backward goes on: the
parameters' hooks are called after the reduce-scatter as autograd's would be, so :class:`~pilot.train.exchange.Exchange`
needs nothing else. Nothing that waits for another node is called in forward or backward.

All processes of a node run equal numbers of forward passes: who has fewer batches than the others gets some of
somebody else's, which count for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pilot.checkpoint import shards
from pilot.core.errors import UserError
from pilot.train.placeholder import Placeholder
from pilot.train.stepper import Steppers


class Sharding:
    """Of one session's model. Made once the session is.

    ``weight``: of what this process computes from here on.

    Parameters
    ----------
    model : in which modules are sharded
    size : of the node
    """

    def __init__(self, model: nn.Module, size: int) -> None:
        self._scatter = _WeightedReduceScatter()
        self.size = size
        self._groups: list[Any] = []
        for module in _sharded_modules(model):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_custom_reduce_scatter(self._scatter)
            self._groups += module._get_fsdp_state()._fsdp_param_groups
        for group in self._groups:
            _explain(group)

    @property
    def weight(self) -> float:
        """See the class."""
        return self._scatter.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self._scatter.weight = weight

    @property
    def reduces(self) -> bool:
        """Whether a backward pass leaves no gradient for a later one to be reduced with."""
        return all(group.reduce_grads for group in self._groups)


class _WeightedReduceScatter:
    """torch's ``ReduceScatter`` (``torch.distributed.fsdp``), of gradients that are weighted first."""

    def __init__(self) -> None:
        self.weight = 1.0

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for what is sent or received."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        """Sum over the node."""
        if self.weight:
            input_tensor.mul_(self.weight)
        else:
            input_tensor.zero_()  # whatever a batch gives that does not count: it may be infinite
        reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # torch < 2.13
        return reduce_scatter(output=output_tensor, input=input_tensor, group=group, op=op, async_op=async_op)


def _explain(group: Any) -> None:
    """Where ``group`` of FSDP asserts that a gradient is a shard, and it is a placeholder, that says what to do."""
    post_backward = group.post_backward

    def explained(*unused: Any) -> None:
        try:
            post_backward(*unused)
        except AssertionError:
            for gradient in (one.sharded_param.grad for one in group.fsdp_params):
                if isinstance(gradient, Placeholder):
                    gradient.refuse()
            raise

    group.post_backward = explained


def sharding_of(model: nn.Module, steppers: Steppers, size: int) -> Sharding | None:
    """None where nothing is sharded; :class:`UserError` where a session cannot train what is."""
    sharded = {name: p for name, p in model.named_parameters() if shards.is_sharded(p)}
    if not sharded:
        return None
    _check(model, sharded, steppers, size)
    return Sharding(model, size)


def reshard(model: nn.Module) -> None:
    """After a forward pass without backward: FSDP keeps the root's parameters whole until one comes."""
    for module in _sharded_modules(model):
        module.reshard()


def _sharded_modules(model: nn.Module) -> Iterator[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        yield from (module for module in model.modules() if isinstance(module, fsdp.FSDPModule))


def _check(model: nn.Module, sharded: Mapping[str, nn.Parameter], steppers: Steppers, size: int) -> None:
    for name, parameter in sharded.items():
        place: Any = parameter
        if place.device_mesh.ndim != 1 or place.device_mesh.size() != size or not place.placements[0].is_shard(dim=0):
            raise UserError(
                f"the model's parameter {name} is not sharded by rows over the {size} processes of its node: call"
                " fully_shard(module, mesh=pilot.train.node_mesh()), without shard_placement_fn"
            )
    whole = [n for n, p in model.named_parameters() if p.requires_grad and n not in sharded]
    if whole:
        raise UserError(
            f"the model's parameter {whole[0]} is trained but not sharded, while others are: call fully_shard on the"
            " whole model as well, after its parts"
        )
    if steppers.apart:
        raise UserError("a sharded model needs optimizers that are stepped together: pass a list, not a dict")
    if steppers.scalers:
        raise UserError(
            "a sharded model cannot be combined with a loss scaler, because each process would see only its own shard's"
            " gradients: use bfloat16 (MixedPrecisionPolicy(param_dtype=torch.bfloat16)), which needs none"
        )
    for module in _sharded_modules(model):
        for group in module._get_fsdp_state()._fsdp_param_groups:
            if type(group.offload_policy).__name__ != "OffloadPolicy":
                raise UserError("sharded models with CPU offload are not supported: remove offload_policy")
