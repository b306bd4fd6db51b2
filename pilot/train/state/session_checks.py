"""Refuses what a session cannot train, when the session is created; also if the script runs alone."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any, SupportsFloat

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pilot.checkpoint.tree import copied
from pilot.core.errors import UserError
from pilot.protocol.remaining_work import BY_SESSION
from pilot.train.state.block import encoded
from pilot.train.state.stepper import Scheduler, Steppers
from pilot.train.state.trained_set import SUMMED, of_groups


def admit(model: nn.Module, steppers: Steppers) -> None:
    """:class:`UserError` if ranks could not train ``model`` with ``steppers`` and stay identical."""
    _check_tensors(model)
    _check_modules(model)
    for optimizer in steppers.optimizers.values():
        _check_optimizer(optimizer)
    _check_parameters(model, steppers)


def check_tracked(name: str, stateful: object, tracked: Collection[str], *, looping: bool, has_entered: bool) -> None:
    """:class:`UserError` if ``session.track`` cannot accept it. ``has_entered``: the process has entered a group, and
    has the group's state.
    """
    if looping or name in tracked:
        raise UserError(f"call session.track({name!r}, ...) before session.epochs, once per name")
    if has_entered:
        raise UserError(
            f"session.track({name!r}, ...) comes after the script has asked for session.rank, size, steps or samples,"
            " for loader.batch_size, or for an evaluation, which wait for the group and its state: call it before them"
            " (len(loader) waits for the group, too, unless global_batch_size is given without micro_batch_size)"
        )
    if not all(callable(getattr(stateful, method, None)) for method in ("state_dict", "load_state_dict")):
        raise UserError(
            f"session.track({name!r}, ...) needs an object with state_dict and load_state_dict, not a"
            f" {type(stateful).__name__}; keep plain values in session.state"
        )


def check_scheduled(steppers: Steppers, tracked: Iterable[object]) -> None:
    """:class:`UserError` if a scheduler was created that other nodes would not have. It is recognised because torch
    wraps the optimizer's ``step`` for it.
    """
    kept = steppers.schedulers or any(not isinstance(one, nn.Module) for one in tracked)
    if not kept and any(hasattr(one.step, "_wrapped_by_lr_sched") for one in steppers.optimizers.values()):
        raise UserError(
            "a learning-rate scheduler was created for the optimizer, but nodes that join would not have its state:"
            " pass it to pilot.train.session with schedule=, or step it yourself and call"
            " session.track('scheduler', it); if it is no longer used (a learning-rate finder's), create the optimizer"
            " anew"
        )


def check_callback(function: object) -> None:
    """:class:`UserError` if ``session.on_restore`` could not call it; it might be called only when a node joins."""
    try:
        fits = callable(function) and inspect.signature(function).bind() is not None
    except TypeError:
        fits = False
    except ValueError:  # not every function of C has a signature
        fits = True
    if not fits:
        raise UserError("session.on_restore takes a function that needs no arguments; it is called as function()")


def check_scheduler(scheduler: object) -> None:
    """:class:`UserError` if it has not what the session uses of a scheduler."""
    for method in ("step", "state_dict", "load_state_dict"):
        if not callable(getattr(scheduler, method, None)):
            raise UserError(
                f"{type(scheduler).__name__} has no {method}, which a scheduler needs so that nodes that join continue"
                " where it is: give it step, state_dict and load_state_dict, use torch's LambdaLR, or set the learning"
                " rate in the loop from session.steps"
            )


def check_whole(name: str, stateful: Any) -> None:
    """:class:`UserError` if its state has shards, or cannot be loaded."""
    for path, tensor in stateful.state_dict(keep_vars=True).items() if isinstance(stateful, nn.Module) else ():
        if isinstance(tensor, torch.Tensor):
            check_changeable(f"session.track({name!r}, ...): {path}", tensor)
    if any(leaf.rows is not None for leaf in encoded({name: stateful.state_dict()}).leaves):
        raise UserError(f"session.track({name!r}, ...) holds shards of a sharded model, which is not supported")
    try:
        stateful.load_state_dict(copied(stateful.state_dict()))
    except Exception as error:
        raise UserError(
            f"session.track({name!r}, ...): its load_state_dict does not take what its state_dict gave"
            f" ({type(error).__name__}: {' '.join(str(error).split())}), so nodes that join could not load it"
        ) from error


def reported(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What ``session.report`` was given, as numbers; :class:`UserError` if it cannot use a name or a value."""
    if taken := sorted(BY_SESSION.intersection(metrics)):
        raise UserError(f"session.report: {', '.join(taken)} is reserved; choose another name")
    return {name: number(f"session.report: {name}", value) for name, value in metrics.items()}


def single(loss: Any) -> float | torch.Tensor:
    """What ``session.step`` was given as loss; not converted to a number yet if it is on a GPU, which would wait for
    all of backward.
    """
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss.detach()
    return number("session.step: the loss", loss)


def norm_of(max_norm: Any, others: Collection[object]) -> float:
    """What ``session.clip_grad_norm`` was given."""
    if others or not isinstance(max_norm, SupportsFloat):
        raise UserError(
            "session.clip_grad_norm takes the largest norm and nothing else, as the session knows the parameters:"
            " session.clip_grad_norm(1.0)"
        )
    return number("session.clip_grad_norm: the norm", max_norm)


def check_count(what: str, count: object) -> None:
    """:class:`UserError` if it is no number, as an argument of a command line without its type."""
    if not isinstance(count, SupportsFloat):
        raise UserError(f"{what} needs a number, got {count!r}")


def number(what: str, value: Any) -> float:
    """``value`` as a number; :class:`UserError` if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        told = str(error).splitlines()[0]
        raise UserError(f"{what} must be a number, got {type(value).__name__} ({told})") from None


def _check_tensors(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        _check_trainable(f"the model's parameter {name}", parameter)
    for name, buffer in model.named_buffers():
        _check_tensor(f"the model's buffer {name}", buffer)


def _check_trainable(what: str, parameter: nn.Parameter) -> None:
    _check_tensor(what, parameter)
    if parameter.requires_grad and parameter.dtype not in SUMMED:
        raise UserError(
            f"{what} is of {parameter.dtype}: gradients can be summed for float32, float64, bfloat16, float16,"
            " complex64 and complex128; use one of these"
        )


def check_changeable(what: str, tensor: torch.Tensor | None) -> None:
    """:class:`UserError` if torch does not let anyone load a state into it."""
    if tensor is not None and not is_lazy(tensor) and tensor.is_inference():
        raise UserError(
            f"{what} was made in torch.inference_mode(), so a node that joins could not load a state into it: make it"
            " in torch.no_grad() instead, or take its .clone()"
        )


def _check_tensor(what: str, tensor: torch.Tensor) -> None:
    if is_lazy(tensor):
        raise UserError(f"{what} has no shape yet: run one batch through the model before creating the optimizer")
    check_changeable(what, tensor)
    if tensor.is_meta:
        raise UserError(f"{what} is on the meta device: allocate it (model.to_empty) before creating the optimizer")
    if tensor.is_quantized:
        raise UserError(f"{what} is quantized: train the model before quantizing it")
    if tensor.layout is not torch.strided:
        raise UserError(f"{what} is of layout {tensor.layout}: a session trains dense tensors only")


def _check_modules(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            _check_embedding(f"the model's module {path}" if path else "the model", module)
    state = model.state_dict()
    encoded({"model": dict(state)})  # get_extra_state may return anything
    _check_state(model, state)


def _check_embedding(what: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    is_trained = module.weight.requires_grad
    if module.sparse and is_trained:
        raise UserError(f"{what} makes sparse gradients: remove its sparse=True")
    if module.max_norm is not None:
        raise UserError(
            f"{what} has max_norm={module.max_norm}: forward would change the rows that this rank looks up, so ranks"
            " would differ; limit the norms of all rows after session.step"
        )
    if module.scale_grad_by_freq and is_trained:
        raise UserError(
            f"{what} has scale_grad_by_freq=True: it would divide by how often a row occurs in this rank's batch, so"
            " the gradient would depend on the number of nodes; remove it"
        )


def _check_state(model: nn.Module, state: dict[str, Any]) -> None:
    """Check that the state has the parameters unchanged, and can be loaded: hooks may change, omit or rename them."""
    held = {_memory(value) for value in state.values() if isinstance(value, torch.Tensor)}
    for name, parameter in model.named_parameters():
        if parameter.numel() and _memory(parameter) not in held:
            raise UserError(
                f"the model's state_dict() changes or omits its parameter {name} (by a hook, or its own state_dict"
                " method), so nodes that join would train a different model: make such changes where the script"
                " saves, not in the module"
            )
    if not state.keys() >= {name for name, _ in model.named_parameters()}:
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise UserError(
                "the model's state_dict() renames parameters, and its load_state_dict does not accept the new names,"
                f" so nodes that join could not load it ({str(error).splitlines()[-1].strip()})"
            ) from error


def _memory(tensor: torch.Tensor) -> tuple[int, torch.dtype, torch.Size]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer).__name__
    if "_optimizer_step_pre_hooks" not in vars(optimizer):
        raise UserError(
            f"{kind} does not call torch.optim.Optimizer.__init__, without which it has no state that nodes could take"
            " over; if it steps another optimizer, pass that one to pilot.train.session, do the rest after"
            " session.step, and pass the state of the outer one to session.track"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UserError("SparseAdam takes sparse gradients, which cannot be summed: use Adam, without sparse=True")
    for group in optimizer.param_groups:
        if "lr" not in group:
            raise UserError(
                f"{kind} has a parameter group without 'lr', which a session scales with the number of nodes: set"
                " group['lr'] (to 1.0, if the optimizer does not use it)"
            )
        if group.get("differentiable"):
            raise UserError(f"{kind}(differentiable=True) does not step a model's parameters: remove it")
        if group.get("capturable") and not all(parameter.is_cuda for parameter in group["params"]):
            raise UserError(f"{kind}(capturable=True) needs parameters on a GPU: remove it")
    if missing := [key for key in ("state", "param_groups") if key not in optimizer.state_dict()]:
        raise UserError(
            f"{kind}.state_dict() has no {missing[0]!r}, so nodes that join could not take over its state; if it steps"
            " another optimizer, pass that one to pilot.train.session, do the rest after session.step, and pass the"
            " state of the outer one to session.track"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"{kind}.step needs a closure, but a session steps once per batch; use an optimizer without one"
        )


def _check_parameters(model: nn.Module, steppers: Steppers) -> None:
    """Check that each trained parameter is stepped by exactly one optimizer."""
    stepped: dict[int, str] = {}
    names = {id(parameter): f", {name}," for name, parameter in model.named_parameters()}
    for place, parameter in of_groups(steppers):
        _check_trainable(place, parameter)
        if id(parameter) in stepped:
            raise UserError(
                f"{place}{names.get(id(parameter), '')} is {stepped[id(parameter)].removeprefix('the parameter ')} as"
                " well, but only one may step it: give it to one of them, and that one the sum of the losses that the"
                " two minimize"
            )
        stepped[id(parameter)] = place
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in stepped:
            raise UserError(
                f"the model's parameter {name} requires a gradient but no optimizer has it: give it to the"
                " optimizer, or call requires_grad_(False) on it before creating the session"
            )


_COUNTED = ("step", "samples", "epoch")
"""What a scheduler may count."""


def as_one(model: nn.Module | dict[str, nn.Module]) -> nn.Module:
    """Several models as one, each under its name; without torch.compile's wrappers, so that names do not change."""
    if isinstance(model, nn.Module):
        return getattr(model, "_orig_mod", model)
    if isinstance(model, dict) and model and all(isinstance(one, nn.Module) for one in model.values()):
        try:
            return nn.ModuleDict({name: getattr(one, "_orig_mod", one) for name, one in model.items()})
        except (KeyError, TypeError) as error:
            raise UserError(f"pilot.train.session: a model cannot have this name: {error}") from None
    raise UserError(
        f"pilot.train.session takes a model, or a dict of several by name, and got a {type(model).__name__}: tensors"
        " that are in no model belong into one (torch.nn.Module, or ParameterList and ParameterDict)"
    )


def check_schedule(schedulers: Collection[Scheduler], schedule: str | None) -> None:
    for scheduler in schedulers:
        check_scheduler(scheduler)
    kinds = {isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau) for one in schedulers}
    plateau = True in kinds
    if len(kinds) > 1:
        raise UserError("ReduceLROnPlateau and other schedulers count differently: use one kind per session")
    if plateau and schedule in (None, *_COUNTED):
        raise UserError(
            "ReduceLROnPlateau needs a measure: schedule='loss', and session.report(loss=...) at each epoch's end"
        )
    for scheduler in schedulers if not plateau else ():
        parameters = inspect.signature(scheduler.step).parameters.values()
        if needed := [p.name for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]:
            raise UserError(
                f"{type(scheduler).__name__}.step needs {', '.join(needed)}, which pilot.train.session does not know:"
                " step it yourself, by the epoch or session.steps, and call session.track('scheduler', it)"
            )
    if schedulers and schedule is None:
        raise UserError(
            "say what the scheduler counts: pilot.train.session(..., schedule='step') if a plain loop calls"
            " scheduler.step() for each batch, schedule='epoch' if for each epoch (schedule='samples': like"
            " 'step', but equally far after the same samples on any number of nodes)"
        )
    if not plateau and schedule not in (None, *_COUNTED):
        raise UserError(f"schedule must be 'step', 'samples' or 'epoch', got {schedule!r}")
