"""What a session trains, and what it does not: refused when the session is made, also where the script runs alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pilot.core.errors import UserError
from pilot.train.state import encoded

SUMMED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
"""The dtypes of parameters whose gradients can be summed."""


def admit(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """:class:`UserError` where ranks could not train ``model`` with ``optimizer`` and stay equal."""
    _check_tensors(model)
    _check_modules(model)
    _check_optimizer(optimizer)
    _check_same_parameters(model, optimizer)


def _check_tensors(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        _check_tensor(f"the model's parameter {name}", parameter)
        if parameter.requires_grad and parameter.dtype not in SUMMED:
            raise UserError(
                f"the model's parameter {name} is of {parameter.dtype}: gradients are summed of float32, float64,"
                " bfloat16, float16, complex64 and complex128; store it as one of these"
            )
    for name, buffer in model.named_buffers():
        _check_tensor(f"the model's buffer {name}", buffer)


def _check_tensor(what: str, tensor: torch.Tensor) -> None:
    if is_lazy(tensor):
        raise UserError(f"{what} has no shape yet: run one batch through the model before the optimizer is made")
    if tensor.is_meta:
        raise UserError(f"{what} is on the meta device: give it memory (model.to_empty) before the optimizer is made")
    if tensor.is_quantized:
        raise UserError(f"{what} is quantized: train the model as it is before it is quantized")
    if tensor.layout is not torch.strided:
        raise UserError(f"{what} is of layout {tensor.layout}: a session trains dense tensors only")


def _check_modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad:
            raise UserError(f"the model's module {name} makes sparse gradients: leave out its sparse=True")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise UserError(
                f"the model's module {name} has max_norm={module.max_norm}: it would change those rows in forward that"
                " this rank looks up, so ranks would differ; limit the norms after session.step, on all rows"
            )
    encoded({"model": dict(model.state_dict())})  # get_extra_state may give anything


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UserError("SparseAdam takes sparse gradients, which are not summed: use Adam, without sparse=True")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise UserError(f"{kind}(differentiable=True) steps no parameters of a model: leave it out")
        if group.get("capturable") and not all(parameter.is_cuda for parameter in group["params"]):
            raise UserError(f"{kind}(capturable=True) needs parameters on a GPU: leave it out")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(f"{kind}.step needs a closure: a session steps once for each batch; use an optimizer without")


def _check_same_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What is summed is what the model trains; what is stepped is what the optimizer has."""
    modelled = {id(parameter) for parameter in model.parameters()}
    stepped = set()
    for place, parameter in _of_groups(optimizer):
        stepped.add(id(parameter))
        if id(parameter) not in modelled:
            raise UserError(
                f"the optimizer has a parameter that the model has not: {place}, of shape {list(parameter.shape)};"
                " give pilot.train.session a model that holds all that is trained (such as an nn.ModuleList of two)"
            )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in stepped:
            raise UserError(
                f"the model's parameter {name} requires a gradient and the optimizer has it not: give it to the"
                " optimizer, or call requires_grad_(False) on it before the session is made"
            )


def _of_groups(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            yield f"number {index} of its group {number}", parameter
