"""Tells of hooks that clip, normalize, or take the signs of a gradient (``p.register_hook(lambda g: g.clamp(-1, 1))``):
each rank's gets the gradient of its own part of the batch, and the mean of what they make is another one than a single
node's.

Known by the names of what the hook calls: to call it with another gradient might change what it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, pairwise
from types import CodeType
from typing import Any

from pilot.train.looks.attached import HOOKS_OF_PARAMETERS
from pilot.train.script import refusal
from pilot.train.script.bytecode import instructions
from pilot.train.script.objects import own_code
from pilot.train.script.statements import is_in_place
from pilot.train.state.training import Training

_NOT_LINEAR = {
    *("clamp", "clamp_", "clamp_min", "clamp_max", "clip", "clip_", "sign", "sign_", "sgn", "tanh", "renorm", "topk"),
    *("normalize", "clip_grad_norm_", "clip_grad_value_"),
}
_SIZES = {"norm", "vector_norm", "std", "amax"}
"""By which a hook may divide."""
_DIVIDES = {"/", "/="}
_DEPTH = 2
_SHOWN = 3


class GradientHooks:
    """Looks for one session. ``training``: what it trains."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._told = False

    def look(self) -> None:
        """Tell once."""
        found = () if self._told else [(name, does) for name, hook in self._hooks() if (does := _not_linear(hook))]
        if found:
            self._told = True
            names = [name for name, _ in found]
            refusal.note(
                f"a hook on the gradient of {', '.join(names[:_SHOWN])}{', ...' if names[_SHOWN:] else ''} does what is"
                f" not linear ({found[0][1]}): each rank's gets the gradient of its own part of the batch, and the mean"
                " of what they make is another one than that of a single node: do that between session.sum() and"
                " session.step(), or call session.clip_grad_norm"
            )

    def _hooks(self) -> Iterator[tuple[str, Any]]:
        """On what is trained, and on gradients of modules."""
        for name, parameter in self._training.trained.trained().items():
            before, after = (getattr(parameter, kind, None) or {} for kind in HOOKS_OF_PARAMETERS)
            yield from ((name, one) for one in chain(filter(_changes, before.values()), after.values()))
        for path, module in self._training.model.named_modules():
            yield from ((path or "the model", one) for one in module._backward_hooks.values() if _changes(one))


def _not_linear(hook: Any) -> str:
    """What it calls that is not, or empty."""
    function = _function(hook)
    if code := own_code(function):
        return _named_in(code, function.__globals__, _DEPTH)
    name = getattr(function, "__name__", "")
    return name if name in _NOT_LINEAR else ""


def _named_in(code: CodeType, around: Mapping[str, Any], depth: int) -> str:
    """Also in the script's functions that it calls."""
    whole = instructions(code)
    loaded = {one.argval: one.opname for one in whole if one.opname in ("LOAD_ATTR", "LOAD_GLOBAL")}
    names = [name for name, by in loaded.items() if by == "LOAD_ATTR" or callable(around.get(name))]
    does = [name for name in names if name in _NOT_LINEAR]
    if any(one.argrepr in _DIVIDES for one in whole if one.opname == "BINARY_OP"):
        does += [f"/ {name}" for name in names if name in _SIZES]
    called = [found for name in names if depth and (found := own_code(around.get(name)))]
    return next(iter(does), "") or next(filter(None, (_named_in(one, around, depth - 1) for one in called)), "")


def _changes(hook: Any) -> bool:
    """Whether it gives another gradient, or changes the one that it gets: one that only shows it does neither."""
    code = own_code(_function(hook))
    if code is None or any(map(is_in_place, code.co_names)):
        return True
    whole = instructions(code)
    given = [one for one, then in pairwise(whole) if then.opname == "RETURN_VALUE"]
    given += [one for one in whole if one.opname == "RETURN_CONST"]
    return any(one.opname not in ("LOAD_CONST", "RETURN_CONST") for one in given)


def _function(hook: Any) -> Any:
    """Of a partial function, a method or an object."""
    while isinstance(hook, partial):
        hook = hook.func
    plain = getattr(hook, "__func__", hook)
    return plain if hasattr(plain, "__name__") else type(plain).__call__
