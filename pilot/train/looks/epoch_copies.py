"""Tells of copies of the parameters that a script makes at an epoch's beginning, for all of its steps: a teacher for
this epoch, the anchor of a proximal term, the snapshot of SVRG; also of an average that is tracked. A process that
joins in the middle of the epoch runs its beginning, too, and would copy the parameters of then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import torch
from torch import nn

from pilot.checkpoint import checksums
from pilot.train.looks.moving import Moving
from pilot.train.looks.spaced import Spaced
from pilot.train.script import refusal
from pilot.train.script.objects import found_in, what_the_script_sees
from pilot.train.script.tensor_parts import is_plain
from pilot.train.state.training import Training

_SHOWN = 5
_PARTS = 1000
"""Looks take one of so many parts of the time."""


class EpochCopies:
    """Looks for one session. ``training``: what it knows; ``told``: what the script was told of otherwise."""

    def __init__(self, training: Training, told: Sequence[str]) -> None:
        self._training = training
        self._otherwise = told
        self._first_step: int | None = None
        self._before: dict[int, int] = {}
        self._looks = self._told = False
        self._moving = Moving(training)
        self._copied: list[torch.Tensor] = []
        self._spaced = Spaced(_PARTS)

    def epoch_begins(self) -> None:
        """The body of ``session.epochs`` begins. What is a copy now, such as the best weights, was made for something
        else; and so was what equals parameters that have not moved yet, or to which they are set back (lottery ticket).
        """
        training = self._training
        step = training.position.step
        may = not (self._told or training.on_restore or training.sharding is not None)
        if self._first_step is None:
            self._first_step = step
            if may:
                self._moving.modules()  # as they are at first
        self._looks = may and step != self._first_step and self._spaced.is_due()
        if self._looks:
            with self._spaced.doing():
                moving = (one.parameters() for one in self._moving.modules())
                self._copied = [*training.trained.trained().values(), *chain.from_iterable(moving)]
                self._before = {id(value): _sum_of(value) for _, value in self._like(_are_alike)}

    def pass_begins(self) -> None:
        """The loop over the loader begins."""
        if not self._looks:
            return
        with self._spaced.doing():
            names = [name for name, one in self._like(_is_copy) if self._before.get(id(one)) != _sum_of(one)]
            others = tuple(f"{name}." for name in self._otherwise)
            made = list(dict.fromkeys(name for name in names if not f"{name}.".startswith(others)))
        if made:
            self._told = True
            refusal.note(
                f"the script copies the model's parameters at an epoch's beginning ({', '.join(made[:_SHOWN])}"
                f"{', ...' if len(made) > _SHOWN else ''}), and a node that joins in the middle of the epoch copies"
                " those of then: what training depends on belongs in session.state or session.track"
            )

    def _like(self, wanted: Callable[[torch.Tensor, torch.Tensor], bool]) -> Iterator[tuple[str, torch.Tensor]]:
        """The script's tensors that are so to one of the parameters."""
        training = self._training
        known = {id(value) for _, value in _tensors_in({"state": training.user, "tracked": training.tracked})}
        memory = {parameter.untyped_storage().data_ptr() for parameter in self._copied}
        for name, value in _tensors_in(what_the_script_sees()):
            own = is_plain(value) and id(value) not in known and value.untyped_storage().data_ptr() not in memory
            if own and any(wanted(value, parameter) for parameter in self._copied):
                yield name, value


def _tensors_in(values: dict[str, object]) -> Iterator[tuple[str, torch.Tensor]]:
    """Also the parameters of modules, by the module's name."""
    for name, value in found_in(values, lambda one: isinstance(one, nn.Module | torch.Tensor)):
        yield from ((name, one) for one in (value.parameters() if isinstance(value, nn.Module) else [value]))


def _are_alike(value: torch.Tensor, parameter: torch.Tensor) -> bool:
    return value.shape == parameter.shape and value.dtype == parameter.dtype and value.device == parameter.device


def _is_copy(value: torch.Tensor, parameter: torch.Tensor) -> bool:
    """A tensor of equal numbers may be equal by chance."""
    same = _are_alike(value, parameter) and torch.equal(value, parameter)
    return same and bool((value != value.flatten()[:1]).any())


def _sum_of(value: torch.Tensor) -> int:
    return checksums.of_tensors([value])[0]
