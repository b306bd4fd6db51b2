"""What the nodes of a seldom-synchronised training share between two rounds: parameters, their outer optimizer, and
averages of buffers and of tracked modules.

At a round's end all nodes add up the changes since its beginning, weighted by samples. Parameters are then stepped by
the outer optimizer, whose gradient is the mean change with the opposite sign; other values change by the mean
(a constant therefore stays the same to the last bit; whole numbers are rounded).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

from pilot.checkpoint import checksums
from pilot.checkpoint.tree import copied
from pilot.core.errors import UserError
from pilot.submission.seldom import DiLoCo
from pilot.train.node.node_ties import combined
from pilot.train.state import identity
from pilot.train.state.stepper import Steppers, options_of, set_options
from pilot.train.state.trained_set import TrainedSet

Place = tuple[dict[str, Any], str]
"""The dict that holds a tensor, and its key: a module may replace its buffers."""


class Outer:
    """The shared values of one session.

    ``values``: a tensor for each, whose ``grad`` is what is summed over the nodes: its change in the round.

    Parameters
    ----------
    settings : the outer optimizer's
    model, tracked : the modules whose buffers are averaged, and all tensors of tracked ones
    trained : the parameters
    steppers : the inner optimizers, which stay as they are
    """

    def __init__(
        self, settings: DiLoCo, model: nn.Module, tracked: dict[str, Any], trained: TrainedSet, steppers: Steppers
    ) -> None:
        self.settings = settings
        self._model, self._tracked, self._trained, self._steppers = model, tracked, trained, steppers
        self._momentum: dict[str, torch.Tensor] = {}
        self.renew()

    def renew(self) -> None:
        """Share what is trained and tracked now; momentum stays with the parameters of the same name."""
        self._parameters = self._trained.trained()
        self._places = dict(self._averaged())
        self._shared = {name: nn.Parameter(one.detach().clone()) for name, one in self._parameters.items()}
        self._changes = {name: nn.Parameter(_like(held[key])) for name, (held, key) in self._places.items()}
        self._opened: dict[str, torch.Tensor] = {}

    @property
    def values(self) -> list[nn.Parameter]:
        """All shared values."""
        return [*self._shared.values(), *self._changes.values()]

    def fingerprint(self) -> int:
        """Return a number that differs if ranks would exchange other values."""
        named = {**self._shared, **self._changes}
        return identity.fingerprint({name: f"{one.dtype} {list(one.shape)}" for name, one in named.items()})

    @torch.no_grad()
    def open(self) -> None:
        """Begin a round: note all values, which are the same on all nodes, and what schedulers have set."""
        for name, parameter in self._parameters.items():
            self._shared[name].copy_(parameter)
        self._opened = {name: held[key].detach().clone() for name, (held, key) in self._places.items()}
        self._options = options_of(self._steppers)
        self._schedules = {name: copied(one.state_dict()) for name, one in self._steppers.schedulers.items()}

    @torch.no_grad()
    def contribute(self) -> None:
        """Set each value's ``grad`` to its change in this round."""
        for name, parameter in self._parameters.items():
            self._shared[name].grad = parameter - self._shared[name]
        for name, (held, key) in self._places.items():
            if held[key].shape != self._opened[name].shape:
                raise UserError(
                    f"sync=: {name} has another shape than when the round began, so nodes cannot average it: create it"
                    " in its final shape"
                )
            self._changes[name].grad = _change(held[key], self._opened[name], self._changes[name].dtype)

    @torch.no_grad()
    def step(self) -> None:
        """Apply the mean changes in ``grad`` (None: nothing changed anywhere), and give the result to the script."""
        rate, momentum = self.settings.outer_lr, self.settings.momentum
        for name, parameter in self._parameters.items():
            if (change := self._shared[name].grad) is not None:
                if momentum:
                    before = self._momentum.get(name)
                    speed = change.clone() if before is None else before.mul_(momentum).add_(change)
                    self._momentum[name] = speed
                    change = change.add(speed, alpha=momentum) if self.settings.nesterov else speed
                self._shared[name].add_(change, alpha=rate)
            parameter.copy_(self._shared[name])
        for name, (held, key) in self._places.items():
            if (change := self._changes[name].grad) is not None:
                before, exact = self._opened[name], change.dtype if _is_real(held[key]) else torch.int64
                held[key].copy_(before.to(exact) + (change if _is_real(held[key]) else change.round().to(exact)))
        for one in self.values:
            one.grad = None

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange what the script has for what it had when the round began, and back; the states of the inner
        optimizers stay.
        """
        opened = [self._shared[name] for name in self._parameters] + [self._opened[name] for name in self._places]
        live = [*self._parameters.values(), *(held[key] for held, key in self._places.values())]
        for now, before in zip(live, opened, strict=True):
            then = before.clone()
            before.copy_(now)
            now.copy_(then)
        options, schedules = options_of(self._steppers), self._schedules
        self._schedules = {name: copied(one.state_dict()) for name, one in self._steppers.schedulers.items()}
        set_options(self._steppers, self._options)
        self._options = options
        for name, one in self._steppers.schedulers.items():
            one.load_state_dict(schedules[name])

    def capture(self) -> dict[str, Any]:
        """Return what is part of the state, beside the parameters themselves: the outer optimizer's momentum."""
        return {"momentum": dict(self._momentum)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a result of :meth:`capture`."""
        its, devices = state.get("momentum", {}), {name: one.device for name, one in self._trained.named.items()}
        self._momentum = {name: one.to(devices[name], copy=True) for name, one in its.items() if name in devices}

    def numbers(self) -> dict[str, int]:
        """Return the checksums by name, 1 to 65521, of parameters as they were when the round began, and of frozen
        ones. (Buffers may change between two rounds, on each rank by its own.)
        """
        places = self._places.items()
        tracked = {name: self._opened[name] for name, (held, key) in places if isinstance(held[key], nn.Parameter)}
        frozen = {name: one for name, one in self._trained.named.items() if name not in self._parameters}
        named = {**self._shared, **tracked, **frozen}
        sums = checksums.of_tensors([one.detach() for one in named.values()])
        return {name: 1 + number for name, number in zip(named, sums, strict=True)}

    def in_node(self) -> int:
        """Return a checksum of the parameters as they are now, which is the same on all processes of a node."""
        return combined(checksums.of_tensors([one.detach() for one in self._parameters.values()]), checksums.MODULUS)

    def _averaged(self) -> Iterator[tuple[str, Place]]:
        """Yield the buffers of the model, and all tensors of tracked modules, with their places, each once."""
        modules = {name: one for name, one in self._tracked.items() if isinstance(one, nn.Module)}
        tracked = ((f"tracked {name}: ", one) for name, one in modules.items())
        seen = {id(parameter) for parameter in self._parameters.values()}
        for prefix, module in chain([("", self._model)], tracked):
            for path, part in module.named_modules():
                kinds: Sequence[dict[str, Any]] = [part._buffers] + ([part._parameters] if prefix else [])
                for held in kinds:
                    for key, tensor in list(held.items()):
                        if tensor is not None and id(tensor) not in seen:
                            seen.add(id(tensor))
                            yield f"{prefix}{path}.{key}", (held, key)


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor for the changes of ``tensor``: of a buffer in float64, which no wire type rounds, because buffers
    may be of other magnitudes than what they are sent beside.
    """
    keeps = isinstance(tensor, nn.Parameter) or tensor.is_complex()
    return torch.zeros_like(tensor, dtype=tensor.dtype if keeps else torch.float64, requires_grad=False)


def _change(now: torch.Tensor, before: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Return by how much a value has changed; None: not at all. Where it has not, it may be infinite."""
    if torch.equal(now, before):
        return None
    if not _is_real(now):
        return (now.to(torch.int64) - before.to(torch.int64)).to(dtype)
    return (now.detach().to(dtype) - before.to(dtype)).masked_fill_(now == before, 0)
