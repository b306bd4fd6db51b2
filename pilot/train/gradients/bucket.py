"""The buckets of gradients, and the gradients that cannot be summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from pilot.core.errors import UserError
from pilot.train.state.placeholder import Placeholder, Taken

_grad_of, _layout_of, _requires_grad = attrgetter("grad"), attrgetter("layout"), attrgetter("requires_grad")


class Bucket:
    """The parameters of a bucket, with their numbers in the exchange, and their placeholders.

    ``gradients_held``: the gradients themselves, while they are held, or if there is nothing to add up; ``early``:
    gradients taken after a backward that did not reach all parameters. The hook is on the usually last parameter.
    """

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.parameters: list[nn.Parameter] = []
        self.taken: list[Taken] = []
        self.gradients_held: Sequence[torch.Tensor | None] = []
        self.early: Sequence[torch.Tensor | None] = []
        self._hook: Any = None

    def append(self, index: int, parameter: nn.Parameter) -> None:
        """Add ``parameter`` with number ``index``."""
        self.indices.append(index)
        self.parameters.append(parameter)
        self.taken.append(Taken(parameter))

    @property
    def range(self) -> slice:
        """The range of the parameters' numbers."""
        return slice(self.indices[0], self.indices[-1] + 1)

    def gradients(self) -> list[torch.Tensor | None]:
        """Return the parameters' current gradients, or those taken early."""
        gradients = list(map(_grad_of, self.parameters))
        return list(map(_taken_early, gradients, self.early, self.taken)) if self.early else gradients

    def take_early(self) -> None:
        """Take the gradients that exist by now; a later backward may compute the others."""
        self.early = self.gradients()
        for parameter, gradient, taken in zip(self.parameters, self.early, self.taken, strict=True):
            if gradient is not None and not isinstance(gradient, Placeholder):
                parameter.grad = taken

    def give_back(self) -> None:
        """Give the held gradients back to the parameters."""
        for parameter, gradient in zip(self.parameters, self.gradients_held or repeat(None), strict=False):
            parameter.grad = gradient

    def watch(self, place: int, callback: Callable[[torch.Tensor], None]) -> None:
        """Call ``callback`` whenever the gradient of the parameter at ``place`` is complete, and for no other. (A
        frozen parameter gets no gradient; the session refuses that at the end of the step.)
        """
        if not self.parameters[place].requires_grad:
            return
        self.unwatch()
        self._hook = self.parameters[place].register_post_accumulate_grad_hook(callback)  # type: ignore[no-untyped-call]  # torch has no types here

    def unwatch(self) -> None:
        """Remove the hook."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _taken_early(gradient: torch.Tensor | None, early: torch.Tensor | None, taken: Taken) -> torch.Tensor | None:
    if early is None or isinstance(early, Placeholder):
        return gradient
    if gradient is not taken:
        taken.refuse()  # the script zeroed it or set another one
    return early


def check_gradients(gradients: Sequence[torch.Tensor | None], *, in_backward: bool = False) -> None:
    """Raise :class:`UserError` if gradients cannot be summed; ``in_backward``: backward has computed all of them."""
    made = [gradient for gradient in gradients if gradient is not None]
    for gradient in made if not {torch.Tensor}.issuperset(map(type, made)) else ():
        if isinstance(gradient, Placeholder):
            gradient.refuse()
    if torch.is_grad_enabled() if in_backward else any(map(_requires_grad, made)):
        raise UserError(
            "backward(create_graph=True) leaves gradients that have gradients: compute those of a penalty with"
            " torch.autograd.grad(..., create_graph=True), and call loss.backward() without it"
        )
    if not {torch.strided}.issuperset(map(_layout_of, made)):
        raise UserError("a gradient is sparse, and only dense ones can be summed; remove sparse=True where it is made")
