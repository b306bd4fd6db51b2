"""Snapshots of the values that :class:`~pilot.train.steps.rollback.Rollback` restores: copied, compared, put back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import NoneType
from typing import Any

import numpy as np
import torch

from pilot.checkpoint import checksums
from pilot.checkpoint.leaves import why_no_array, why_no_tensor
from pilot.checkpoint.shards import local_of
from pilot.checkpoint.tree import copied
from pilot.train.state.block import encoded
from pilot.train.state.loading import Stateful, filled, load

SMALL_BYTES = 1 << 20
"""Size of a tensor, or of a tracked object, up to which copying is cheaper than checking."""
_MOST = 1000
_DEPTH = 8
"""The number and depth of values in a collection in ``session.state`` up to which copying takes almost no time."""
_PLAIN = (bool, int, float, str, bytes, bytearray, NoneType, np.number, np.bool_)


@dataclass(eq=False)
class TensorSnapshot:
    """The snapshot of a tensor in a module, which a forward pass may change or replace; or, if it is ``trained``, of a
    parameter that an optimizer trains, and that the script may change, too.

    ``changes``: the tensor may change in a forward pass; ``bits_before``: its value, while that is not known yet.
    """

    name: str
    holder: dict[str, Any]
    key: str
    trained: bool = False
    changes: bool = False
    bits_before: Any = None
    tensor: torch.Tensor | None = None
    copy: torch.Tensor | None = None
    _marked: bool = False

    @property
    def now(self) -> torch.Tensor | None:
        found: torch.Tensor | None = self.holder[self.key]
        return found

    @property
    def small(self) -> bool:
        return not self.trained and (self.now is None or self.now.nbytes <= SMALL_BYTES)

    @property
    def resized(self) -> bool:
        """Whether the tensor's shape was changed in place since the snapshot."""
        return self.tensor is not None and self.copy is not None and local_of(self.tensor).shape != self.copy.shape

    def bits(self) -> Any:
        return None if self.now is None else checksums.of_tensors([self.now])

    def mark(self) -> None:
        self.tensor, self._marked = self.now, True
        self.copy = None if self.tensor is None else self._copied(local_of(self.tensor).detach())

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy; in host memory if it is large or trained, because a GPU may have no space for all of these."""
        on_device = self.small or (self.changes and not self.trained)
        return tensor.clone() if on_device else tensor.to("cpu", copy=True)

    def back(self) -> None:
        if self._marked:
            if self.holder[self.key] is not self.tensor:
                self.holder[self.key] = self.tensor
            if self.tensor is not None and self.copy is not None:
                # Through .data, because a graph that the step still needs has saved the tensor and would notice a
                # change.
                if self.resized:
                    self.tensor.data = self.copy.to(self.tensor.device, copy=True)
                else:
                    local_of(self.tensor).data.copy_(self.copy)

    def forget(self) -> None:
        self.tensor, self.copy, self._marked = None, None, False


class ObjectSnapshot:
    """The snapshot of an object's state dict. ``changes``, ``bits_before``: see :class:`TensorSnapshot`.

    Parameters
    ----------
    stateful : the object
    small : whether to treat it as small; None: by its size
    of_script : whether the script may base decisions on it, if it is small
    copy : copies the state dict
    """

    def __init__(
        self,
        name: str,
        stateful: Stateful,
        *,
        small: bool | None = None,
        of_script: bool = True,
        copy: Callable[[dict[str, Any]], dict[str, Any]] = copied,
    ) -> None:
        self.name = name
        self.changes = False
        self.bits_before: Any = None
        self._stateful = stateful
        self.small = self._is_small() if small is None else small
        self.of_script = of_script and self.small
        self._copy = copy
        self.marked: dict[str, Any] | None = None

    def _is_small(self) -> bool:
        leaves = encoded({self.name: self._stateful.state_dict()}).leaves
        return sum(leaf.size for leaf in leaves) <= SMALL_BYTES

    def bits(self) -> Any:
        return self._bits_of(self._stateful.state_dict())

    def _bits_of(self, state: dict[str, Any]) -> Any:
        taken = encoded({self.name: state})
        return str(taken.tree), [
            checksums.of_tensors([leaf.source]) if isinstance(leaf.source, torch.Tensor) else leaf.source.tobytes()
            for leaf in taken.leaves
        ]

    def mark(self) -> None:
        self.marked = self._copy(self._stateful.state_dict())

    def back(self) -> None:
        if self.marked is not None:
            self.put(self.marked)

    def put(self, state: dict[str, Any]) -> None:
        """Load ``state`` into the object, if it differs: a graph that the step still needs would notice a write."""
        if self._bits_of(state) != self.bits():
            load(copied(state), into=self._stateful)

    def forget(self) -> None:
        self.marked = None


Snapshot = TensorSnapshot | ObjectSnapshot


@dataclass(frozen=True, slots=True)
class StatePair:
    """A stateful object made of two functions."""

    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], Any]


class SmallUserState:
    """The values of ``session.state`` that are quick to copy, up to :data:`SMALL_BYTES`; the keys of others."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def state_dict(self) -> dict[str, Any]:
        few, left = {}, SMALL_BYTES
        for key, value in self._values.items():
            size = _bytes_of_few(value)
            if size is not None and size <= left:
                few[key], left = value, left - size
        return {"few": few, "others": [key for key in self._values if key not in few]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        few = state_dict["few"]
        for key in self._values.keys() - few.keys() - set(state_dict["others"]):
            del self._values[key]
        for key, value in few.items():
            self._values[key] = filled(self._values.get(key), value)


def _bytes_of_few(value: Any) -> int | None:
    """Return the size of a value that takes almost no time to copy; None for any other value."""
    few = list(islice(_leaves(value, _DEPTH), _MOST + 1))
    if len(few) > _MOST or not all(map(_is_plain, few)):
        return None
    return sum(getattr(one, "nbytes", len(one) if isinstance(one, str | bytes | bytearray) else 8) for one in few)


def _is_plain(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not why_no_tensor(value)
    return not why_no_array(value) if isinstance(value, np.ndarray) else isinstance(value, _PLAIN)


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    if not depth or not isinstance(value, list | tuple | set | frozenset | dict):
        yield value
    else:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one, depth - 1)


def mark_all(snapshots: Iterable[Snapshot]) -> None:
    """Take all snapshots, with one call for tensors of a type that have not moved: a GPU copies these at once."""
    alike: defaultdict[tuple[torch.device, torch.dtype], list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for one in snapshots:
        if (
            isinstance(one, TensorSnapshot)
            and one.copy is not None
            and one.tensor is not None
            and one.tensor is one.now
            and not one.resized
            and one.copy.device == one.tensor.device
        ):
            alike[one.copy.device, one.copy.dtype].append((one.copy, local_of(one.tensor).detach()))
        else:
            one.mark()
    for pairs in alike.values():
        copies, tensors = zip(*pairs, strict=True)
        torch._foreach_copy_(copies, tensors)
