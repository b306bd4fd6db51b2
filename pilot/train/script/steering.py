"""Which statements of a script affect its training other than by the loss: those that set an optimizer's options, step
a scheduler by a number, update averages, clip or change gradients, or change parameters in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from pilot.train.script.loop_code import statements_of, value_of
from pilot.train.script.statements import Statement, is_in_place

_SCHEDULER = "sched"
"""In the names of classes that are no subclass of torch's."""
_CLIPS = {"clip_grad_norm", "clip_grad_norm_", "clip_grad_value_"}
_OPTIONS = {"lr", "weight_decay", "momentum", "betas"}
_UPDATES = ("step", "update")
_GRADIENTS = {"grad", "data"}


def steering(frame: FrameType, head: int) -> frozenset[int]:
    """Where those statements begin in the loop of ``frame`` that begins at ``head``."""
    return frozenset(one.begin for one in statements_of(frame.f_code, head) if steers(one, frame))


def steers(one: Statement, frame: FrameType) -> bool:
    """Whether this one does."""
    return (
        sets_options(one, frame)
        or not _CLIPS.isdisjoint(one.attributes | one.reads)
        or changes_parameters(one, frame)
        or any(updates(path.split("."), frame) for path in one.reads)
    )


def changes_parameters(one: Statement, frame: FrameType) -> bool:
    """In place: ``p.add_(...)``, ``codebook.weight.data[unused] = ...``."""
    is_method = any(map(is_in_place, one.attributes)) and _is_of_parameters(one, frame)
    return is_method or _stores_in_parameters(one, frame)


def parameters_in(one: Statement, frame: FrameType) -> list[nn.Parameter]:
    """Those that it has in variables, or in attributes of objects in them."""
    held = _held(one.reads | one.stores_in, frame)
    return [value for value in held if isinstance(value, nn.Parameter)]


def sets_options(one: Statement, frame: FrameType) -> bool:
    """``group["lr"] = ...``; also before there is a ``group``."""
    if one.stores and ("param_groups" in one.attributes or not _OPTIONS.isdisjoint(one.texts)):
        return True
    return any(isinstance(held, dict) and "params" in held for held in _held(one.stores_in, frame))


def _stores_in_parameters(one: Statement, frame: FrameType) -> bool:
    is_data = any(path.rpartition(".")[2] in _GRADIENTS for path in one.stores_in)
    return is_data or any(isinstance(value, nn.Parameter) for value in _held(one.stores_in, frame))


def _is_of_parameters(one: Statement, frame: FrameType) -> bool:
    held = _held(one.reads, frame)
    return not _GRADIENTS.isdisjoint(one.attributes) or any(isinstance(value, nn.Parameter) for value in held)


def updates(path: list[str], frame: FrameType) -> bool:
    """Whether this is such a function: ``scheduler.step_update(count)``, ``average.update(model, decay)``."""
    if len(path) < 2 or not path[-1].startswith(_UPDATES):
        return False
    held = value_of(frame, *path[:-1])
    if isinstance(held, nn.Module):
        return next(held.parameters(), None) is not None  # not a metric
    return isinstance(held, LRScheduler) or _SCHEDULER in type(held).__name__.lower()


def _held(paths: Iterable[str], frame: FrameType) -> list[object]:
    return [value_of(frame, *path.split(".")) for path in paths]
