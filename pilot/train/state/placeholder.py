"""Replaces ``p.grad`` while the gradient is in flight, or belongs to another step; any use of it is an error.

It has no memory, so nothing is copied; setting one costs less than a microsecond.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, Self

import torch

from pilot.core.errors import UserError

_ZEROING = {"zero_.default", "_foreach_zero_.default"}


class Placeholder(torch.Tensor):
    """A placeholder for one parameter's gradient: it has the gradient's shape, dtype and device, but no memory."""

    why = ""
    _parameter: weakref.ref[torch.Tensor]

    @staticmethod
    def __new__(cls, parameter: torch.Tensor) -> Placeholder:
        """Create one for ``parameter``."""
        made: Placeholder = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        made._parameter = weakref.ref(parameter)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch types the disabled one
        """Called for every use of it."""
        found = list(_placeholders([*args, *(kwargs or {}).values()]))
        if func.__name__ == "add_.Tensor" and found[0] is args[0] and len(found) == 1:  # usually by autograd
            found[0].added(args[1])
            return found[0]
        if func.__name__ not in _ZEROING:
            found[0].refuse()
        for placeholder in found:
            placeholder.zeroed()
        if func.__name__ == "zero_.default":
            return found[0]
        for gradient in args[0]:
            if not isinstance(gradient, Placeholder):
                gradient.zero_()
        return None

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch's takes its own keywords
        return f"{type(self).__name__}(shape={list(self.shape)})"

    def zeroed(self) -> None:
        """``zero_grad(set_to_none=False)`` was called."""
        self.refuse()

    def added(self, gradient: torch.Tensor) -> None:
        """Another backward adds ``gradient`` to it."""
        del gradient
        self.refuse()

    def forget(self) -> None:
        """Remove it, so that backward creates a new gradient."""
        parameter = self._parameter()
        if parameter is not None:
            parameter.grad = None

    def refuse(self) -> NoReturn:
        """Raise an error that says what to do instead."""
        raise UserError(self.why)


class Taken(Placeholder):
    """The gradient of the current batch, which backward made and the session has taken."""

    why = (
        "between backward and session.step the gradients are on their way to the other nodes: clip with"
        " session.clip_grad_norm; to use or change them, call session.sum() first, then session.step; call backward"
        " once per batch (accumulate with micro_batch_size, add losses before backward, checkpoint with"
        " use_reentrant=False, get an input's gradient from torch.autograd.grad); and leave optimizer.step() to"
        " session.step"
    )


class Stale(Placeholder):
    """The gradient of a previous step, which the script has not zeroed yet."""

    why = (
        "zero_grad is missing: the previous step's gradients would be added to those of this batch; call"
        " optimizer.zero_grad() before backward"
    )
    number: int
    in_place: list[int]

    @classmethod
    def of(cls, parameter: torch.Tensor, number: int, in_place: list[int]) -> Self:
        """Create one for ``parameter``, whose ``number`` is added to ``in_place`` if it is zeroed in place."""
        made = cls(parameter)
        made.number, made.in_place = number, in_place
        return made

    def zeroed(self) -> None:
        """See :class:`Placeholder`."""
        self.in_place.append(self.number)
        self.forget()


class Collected(Placeholder):
    """The gradient of an optimizer that is stepped separately: the session has taken it, and backward may add to it."""

    why = (
        "between backward and session.step the gradients are not those of the whole group: clip with"
        " session.clip_grad_norm; to use or change them, call session.sum(name=...) first, then session.step; and leave"
        " optimizer.step() to session.step"
    )
    collect: Callable[[torch.Tensor], None]

    def added(self, gradient: torch.Tensor) -> None:
        """See :class:`Placeholder`."""
        self.collect(gradient)

    def zeroed(self) -> None:
        """See :class:`Placeholder`."""
        self.forget()


class Unwanted(Stale):
    """The gradient of an optimizer that is stepped separately, which must be zeroed before it is used.

    It is from a previous step, or was made before another optimizer's step. (A rank that repeats this step because
    another one died could not reproduce it.)
    """

    why = (
        "a gradient was not zeroed after another optimizer's step: call this optimizer's zero_grad() between that step"
        " and its own backward (which drops what other losses left in its parameters); or step them together, with"
        " session.step without a name"
    )

    def added(self, gradient: torch.Tensor) -> None:
        """See :class:`Placeholder`."""
        del gradient


def _placeholders(values: Iterable[Any]) -> Iterator[Placeholder]:
    for value in values:
        if isinstance(value, Placeholder):
            yield value
        elif isinstance(value, list | tuple):
            yield from _placeholders(value)
