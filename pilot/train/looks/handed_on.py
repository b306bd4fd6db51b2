"""Tells of what a script, or its model, computes for a batch and hands on to the next one: a hidden state (truncated
backpropagation through time). On several nodes a node's next batch holds samples that follow on others.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import nn

from pilot.train.script import loop_code, refusal
from pilot.train.script.objects import WITH_ITEMS, inner, is_of_the_script
from pilot.train.script.tensor_parts import has_shape

_DEPTH = 3
"""How deep it looks into lists and dicts."""


class HandedOn:
    """Looks for one session, with this ``model``."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._told = False
        self._at: object = None
        self._left: dict[str, _Left] = {}
        self._read = set[str]()

    def step(self, at: object) -> None:
        """The script steps for the batch ``at``."""
        if at != self._at:
            self._at = at
            self._read |= {name for name, left in self._left.items() if left.is_there()}
            self._left = {}

    def look(self, frames: Sequence[FrameType], head: int, samples: int, known: Collection[str]) -> None:
        """Tell, once, of what is handed on. (Sums for a report are single numbers, or detached.)

        Parameters
        ----------
        frames : the running functions, from the one with the session's loop on
        head : where that loop begins
        samples : of the batch that the script has; 0: none
        known : names of what it was told of already
        """
        if self._told:
            return
        loop = loop_code.inner_loop(frames, head) or ((frames[0], head) if frames else None)  # by iteration: its own
        found = chain(loop_code.handed_on(*loop) if loop is not None else (), self._by_forward())
        names = [name for name, value in found if name not in known and _has_outputs(value, samples, _DEPTH)]
        if names:
            self._told = True
            refusal.note(
                "the script hands what its model has computed for a batch on to the next one"
                f" ({', '.join(names)}: a hidden state?); once there are several nodes, a node's next batch holds"
                " samples that follow on others, and a node that joins has nothing from before: begin it anew in each"
                " batch, or make each sample a whole sequence"
            )

    def _by_forward(self) -> Iterator[tuple[str, Any]]:
        """What the script's modules keep in attributes from one forward pass for the next. If some calls set it and
        others read it, only if there was a batch that did not set it: it may have read it.
        """
        for path, module in self._model.named_modules():
            forward = getattr(type(module), "forward", None)
            if isinstance(forward, FunctionType) and is_of_the_script(type(module)):
                kept, always = vars(module), loop_code.replaced_by(forward.__code__)
                for attribute in loop_code.handed_on_by(forward.__code__):
                    name = f"{path or 'model'}.{attribute}"
                    if attribute in always or name in self._read:
                        yield name, kept.get(attribute)
                    else:
                        self._left[name] = _Left(kept, attribute)


class _Left:
    """What a batch has left in an attribute. ``kept``: an object's attributes."""

    def __init__(self, kept: dict[str, Any], attribute: str) -> None:
        self._kept, self._attribute = kept, attribute
        self._tensors = [weakref.ref(one) for one in _tensors_in(kept.get(attribute), _DEPTH)]

    def is_there(self) -> bool:
        """Whether the next batch has not replaced it."""
        now = _tensors_in(self._kept.get(self._attribute), _DEPTH)
        return any(was() is one for was in self._tensors for one in now)


def _tensors_in(value: Any, depth: int) -> list[torch.Tensor]:
    if depth and isinstance(value, WITH_ITEMS):
        return [found for _, one in inner(value) for found in _tensors_in(one, depth - 1)]
    return [value] if isinstance(value, torch.Tensor) else []


def is_of_a_graph(value: Any) -> bool:
    """A forward pass has left it there, for its loss (a hook's ``outputs[name] = output``)."""
    return isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf


def _has_outputs(value: Any, samples: int, depth: int) -> bool:
    """Whether it is, or has, a tensor of several numbers that a forward pass has left there, or one with a row (or, as
    recurrent layers have it, a column) for each of several samples.
    """
    if depth and isinstance(value, WITH_ITEMS):
        return any(_has_outputs(one, samples, depth - 1) for _, one in inner(value))
    if not isinstance(value, torch.Tensor) or not has_shape(value):
        return False
    return value.numel() > 1 if is_of_a_graph(value) else samples > 1 and samples in value.shape[:2]
