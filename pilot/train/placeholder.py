"""What stands in ``p.grad`` while the gradient is on its way, or is that of another step: whatever uses it is refused.

Nothing is stored, so nothing is copied; to put one there costs less than a microsecond.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import torch

from pilot.core.errors import UserError

_ZEROING = {"zero_.default", "_foreach_zero_.default"}


class Placeholder(torch.Tensor):
    """Of one parameter's gradient: it has its shape, dtype and device, and no memory."""

    why = ""
    _parameter: weakref.ref[torch.Tensor]

    @staticmethod
    def __new__(cls, parameter: torch.Tensor) -> Placeholder:
        """For ``parameter``."""
        made: Placeholder = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        made._parameter = weakref.ref(parameter)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch types the disabled one
        """Every use of it comes here."""
        found = list(_placeholders([*args, *(kwargs or {}).values()]))
        if func.__name__ not in _ZEROING:
            found[0].refuse()
        for placeholder in found:
            placeholder.zeroed()
        return found[0] if func.__name__ == "zero_.default" else None

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch's takes its own keywords
        return f"{type(self).__name__}(shape={list(self.shape)})"

    def zeroed(self) -> None:
        """``zero_grad(set_to_none=False)`` came to it."""
        self.refuse()

    def refuse(self) -> NoReturn:
        """Say what to do instead."""
        raise UserError(self.why)


class Taken(Placeholder):
    """The gradient of the batch under way, which backward made and the session has taken."""

    why = (
        "between backward and session.step the gradients are on their way to the other nodes: clip with"
        " session.clip_grad_norm; to use or change them call session.sum() first, then session.step; call backward once"
        " for each batch (accumulate with micro_batch_size, add losses up before, checkpoint with use_reentrant=False);"
        " and leave optimizer.step() to session.step"
    )


class Stale(Placeholder):
    """The gradient of a step that is over, which the script did not zero yet."""

    why = (
        "zero_grad is missing: the gradients of the step before would be added to those of this batch; call"
        " optimizer.zero_grad() before backward"
    )

    def zeroed(self) -> None:
        """As with None: backward makes a new one."""
        parameter = self._parameter()
        if parameter is not None:
            parameter.grad = None


def _placeholders(values: Iterable[Any]) -> Iterator[Placeholder]:
    for value in values:
        if isinstance(value, Placeholder):
            yield value
        elif isinstance(value, list | tuple):
            yield from _placeholders(value)
