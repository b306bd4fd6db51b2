"""Models that ``fully_shard`` (FSDP2) divides over the processes of a node: each has 1/L of parameters, gradients and
optimizer state, and only shards are summed between nodes.

FSDP averages over the node's processes before anybody sees a gradient, while the session weights each by its samples.
So FSDP is told to sum, and its reduce-scatter first multiplies by this process's weight. The results are the shard's
gradients, which are summed with those of the same local rank on the other nodes while backward continues: the
parameters' hooks are called after the reduce-scatter just as autograd's would be, so
:class:`~pilot.train.gradients.exchange.Exchange` needs nothing else. Forward and backward never wait for another node.

A state comes either from the process of the same local rank on another node, with the same rows, or from a checkpoint,
with whole tensors, of which this process takes its rows.

All processes of a node run the same number of forward passes: one with fewer batches than the others gets some of
another's, which do not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pilot.checkpoint import shards
from pilot.core.errors import UserError
from pilot.train.state.block import encoded
from pilot.train.state.optimizer_state import parameters_of
from pilot.train.state.placeholder import Placeholder
from pilot.train.state.stepper import Steppers

Wanted = Callable[[str, tuple[int, ...]], shards.Rows | None]
"""See :mod:`pilot.checkpoint.reader`."""


class Sharding:
    """The sharding of a session's model, created after the session; FSDP calls it in place of its ``ReduceScatter``.

    ``weight``: of what this process computes from now on; ``size``: number of processes on the node.
    """

    def __init__(self, model: nn.Module, size: int) -> None:
        self.weight = 1.0
        self.size = size
        self._groups: list[Any] = []
        for module in _sharded_modules(model):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_custom_reduce_scatter(self)
            self._groups += _groups_of(module)
        for group in self._groups:
            _explain(group)

    @property
    def reduces(self) -> bool:
        """Whether a backward pass reduces all gradients, leaving none for a later pass."""
        return all(group.reduce_grads for group in self._groups)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for sending or receiving."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        """Sum over the node."""
        if self.weight:
            input_tensor.mul_(self.weight)
        else:
            input_tensor.zero_()  # a batch that does not count may give anything, such as infinity
        reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # torch < 2.13
        return reduce_scatter(output=output_tensor, input=input_tensor, group=group, op=op, async_op=async_op)


def _explain(group: Any) -> None:
    """If FSDP's ``group`` asserts that a gradient is a shard, but it is a placeholder, raise the placeholder's
    error."""
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
    """None if nothing is sharded; :class:`UserError` if a session cannot train what is."""
    sharded = {name: p for name, p in model.named_parameters() if shards.is_sharded(p)}
    if not sharded:
        return None
    _check(model, sharded, steppers, size)
    return Sharding(model, size)


def check_trained(trained: Mapping[str, nn.Parameter]) -> None:
    """:class:`UserError` if one of these (by name) is not sharded: its gradients would not be summed within the
    node."""
    whole = next((name for name, parameter in trained.items() if not shards.is_sharded(parameter)), None)
    if whole is not None:
        raise UserError(
            f"the parameter {whole} is trained but not sharded, while others are: make it part of the model, and call"
            " fully_shard on the whole model as well, after its parts"
        )


def reshard(model: nn.Module) -> None:
    """After a forward pass without backward: until a backward pass, FSDP keeps the root's parameters unsharded."""
    for module in _sharded_modules(model):
        module.reshard()


def _sharded_modules(model: nn.Module) -> Iterator[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        yield from (module for module in model.modules() if isinstance(module, fsdp.FSDPModule))


def _groups_of(module: Any) -> list[Any]:
    """Its parameters, as torch groups them."""
    state = module._get_fsdp_state()
    if not hasattr(state, "_fsdp_param_groups"):
        raise UserError(
            f"sharded models need another torch than {torch.__version__}, which lacks _fsdp_param_groups: install 2.13"
        )
    groups: list[Any] = state._fsdp_param_groups
    return groups


def _check(model: nn.Module, sharded: Mapping[str, nn.Parameter], steppers: Steppers, size: int) -> None:
    for name, parameter in sharded.items():
        place: Any = parameter
        if place.device_mesh.ndim != 1 or place.device_mesh.size() != size or not place.placements[0].is_shard(dim=0):
            raise UserError(
                f"the model's parameter {name} is not sharded by rows over the {size} processes of its replica: call"
                " fully_shard(module, mesh=pilot.train.replica_mesh()), without shard_placement_fn"
            )
    if steppers.by_name:
        raise UserError("a sharded model needs optimizers that are stepped together: pass a list, not a dict")
    if steppers.scalers:
        raise UserError(
            "a sharded model cannot be combined with a loss scaler, because each process would see only its own shard's"
            " gradients: use bfloat16 (MixedPrecisionPolicy(param_dtype=torch.bfloat16)), which needs none"
        )
    for module in _sharded_modules(model):
        for group in _groups_of(module):
            if type(group.offload_policy).__name__ != "OffloadPolicy":
                raise UserError("sharded models with CPU offload are not supported: remove offload_policy")


def models_adopted(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """``state`` for ``model``, with shards instead of plain tensors where the model has shards."""
    held = model.state_dict()
    return {name: as_held(value, held.get(name)) for name, value in state.items()}


def optimizers_adopted(state: Mapping[str, Any], steppers: Steppers) -> dict[str, Any]:
    """``state`` for the optimizers, whose groups already match the state."""
    if "" in steppers.optimizers:
        return _of_optimizer(state, steppers.optimizers[""])
    return {name: _of_optimizer(one, steppers.optimizers[name]) for name, one in state.items()}


def rows_wanted(model: nn.Module, steppers: Steppers) -> Wanted:
    """By path in a checkpoint: the local rows of each sharded parameter, and of optimizer state with its shape."""
    of_model = {leaf.path: leaf.rows for leaf in encoded({"model": model.state_dict()}).leaves}
    of_parameter: dict[str, shards.Rows | None] = {}
    for name, optimizer in steppers.optimizers.items():
        parameters = parameters_of(optimizer)
        folder = f"optimizer/{name}/state" if name else "optimizer/state"
        of_parameter |= {f"{folder}/{index}": shards.rows_of(one) for index, one in enumerate(parameters)}

    def wanted(path: str, shape: tuple[int, ...]) -> shards.Rows | None:
        rows = of_model.get(path) or of_parameter.get(path.rpartition("/")[0])
        return rows if rows is not None and rows.full_shape == shape else None

    return wanted


def as_held(value: Any, held: Any) -> Any:
    """``value``, a whole tensor or the local rows, divided like ``held``; anything else is returned unchanged."""
    rows = shards.rows_of(held) if isinstance(held, torch.Tensor) else None
    if rows is None or not isinstance(value, torch.Tensor) or shards.is_sharded(value):
        return value
    if value.shape == (rows.count, *rows.full_shape[1:]):
        return shards.like(held, value.to(held.device))
    if value.shape == rows.full_shape:
        return shards.like(held, value[rows.first : rows.first + rows.count].to(held.device, copy=True))
    return value


def _of_optimizer(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Optimizer state with a parameter's shape is sharded like the parameter."""
    parameters = parameters_of(optimizer)
    kept = {
        index: {key: as_held(value, parameters[index]) for key, value in its.items()}
        for index, its in state["state"].items()
    }
    return {**state, "state": kept}
