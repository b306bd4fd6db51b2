"""What modules keep in plain attributes: a temperature that forward lowers, a counter, the phase of training, a list of
weights, a tensor that is no buffer, or one that ``state_dict()`` leaves out. Those that have changed since the first
step are part of the state, like buffers. What a script sets before, it sets on every node, and perhaps differently on
each (``model.rank = session.rank``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from itertools import chain, islice
from types import NoneType
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pilot.checkpoint.leaves import bytes_in_line, why_no_array, why_no_tensor
from pilot.checkpoint.shards import local_of
from pilot.checkpoint.tree import copied
from pilot.train.state.packed import MAPPINGS, SEQUENCES, SETS, WRITTEN, is_key, packed, unpacked

Numbers = dict[str, dict[str, Any]]
"""By the module's path and the attribute's name."""
Owned = Callable[[], Collection[int]]
"""The memory of parameters and buffers."""

SMALL_BYTES = 1 << 20
"""The largest tensor or array that is copied."""
_MOST = 1000
_DEPTH = 8
"""How many values a list or dict may hold, in all, and how deep."""

_PLAIN = {bool, int, float, str, NoneType} | WRITTEN
_BYTES = {bytes, bytearray}
_MANY = MAPPINGS | SEQUENCES | SETS
_TRACKED = "tracked "
"""Paths of tracked modules begin so."""
_OF_TORCH = vars(nn.Module()).keys()
_UNSAVED = "buffer "
"""Names of buffers with ``persistent=False`` begin so."""


class ModuleNumbers:
    """The plain attributes (numbers, flags, texts, bytes, None, small tensors and arrays, and lists, tuples, sets and
    dicts of these) of modules, apart from torch's own.

    Parameters
    ----------
    model : with all its parts
    tracked : what the script tracks; its modules count, too
    """

    def __init__(self, model: nn.Module, tracked: Mapping[str, object]) -> None:
        self._model = model
        self._tracked = tracked
        self._first: Numbers | None = None
        self._restored: Numbers = {}

    def begin(self) -> None:
        """A step begins."""
        if self._first is None:
            self._first = copied(self._now())

    def now(self) -> Numbers:
        """A copy of all of them, for a state."""
        return cast(Numbers, packed(copied(self._now())))

    def of(self, module: nn.Module) -> dict[str, Any]:
        """A copy of those of one of the modules, for a state."""
        return cast(dict[str, Any], packed(copied(_attributes(module, self._owned))))

    def capture(self) -> Numbers:
        """Those that have changed, for a state. What the others are is up to the script, which may be edited before it
        resumes.
        """
        changed: Numbers = {}
        for path, values in self._now().items():
            restored = self._restored.get(path, {})
            first = values if self._first is None else self._first.get(path, {})
            its = {k: v for k, v in values.items() if k in restored or k not in first or not same(first[k], v)}
            if its:
                changed[path] = its
        return cast(Numbers, packed(copied(changed)))

    def restore(self, changed: Numbers) -> None:
        """Take over what :meth:`capture` gave."""
        first = self._first or {}
        self.put({path: packed(first[path]) for path in self.capture() if path in first})
        self.put(changed)
        self._restored = copied(changed)

    def put(self, numbers: Numbers) -> None:
        """Set these, from a state."""
        for path, module in self.modules() if numbers else ():
            put_in(module, numbers.get(path, {}))

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """By path. (A scripted module keeps its attributes elsewhere.)"""
        tracked = ((f"{_TRACKED}{name}: ", one) for name, one in self._tracked.items() if isinstance(one, nn.Module))
        for prefix, model in chain([("", self._model)], tracked):
            for path, one in model.named_modules():
                if not isinstance(one, torch.jit.ScriptModule):
                    yield prefix + path, one

    def _now(self) -> Numbers:
        owned = cache(self._owned)
        return {path: _attributes(module, owned) for path, module in self.modules()}

    def _owned(self) -> Collection[int]:
        return {_memory(one) for _, module in self.modules() for one in _registered(module)}


def put_in(module: nn.Module, values: dict[str, Any]) -> None:
    """Set these attributes of ``module``, from a state."""
    for name, value in unpacked(copied(values)).items():
        _put(module, name, value)


def _attributes(module: nn.Module, owned: Owned) -> dict[str, Any]:
    return {name: value for name, value in _held(module) if type(value) in _PLAIN or _fits(value, owned)}


def _held(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What may be in attributes, also that which is too large."""
    yield from ((name, value) for name, value in vars(module).items() if name not in _OF_TORCH)
    for name in sorted(module._non_persistent_buffers_set & module._buffers.keys()):
        yield _UNSAVED + name, module._buffers[name]


def _registered(module: nn.Module) -> Iterator[torch.Tensor]:
    """What is in the model's state."""
    saved = (one for name, one in module._buffers.items() if name not in module._non_persistent_buffers_set)
    return (one for one in chain(module._parameters.values(), saved) if one is not None and not is_lazy(one))


def _memory(tensor: torch.Tensor) -> int:
    tensor = local_of(tensor)
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def _fits(value: Any, owned: Owned) -> bool:
    """Whether it is copied: not what is large, and no view of a parameter or buffer (in memory that is ``owned``)."""
    if type(value) not in _MANY:
        return _is_plain(value, owned)
    few = list(islice(_leaves(value), _MOST + 1))
    return len(few) <= _MOST and all(_is_plain(one, owned) for one in few)


def bytes_of_few(value: Any) -> int | None:
    """Of what is copied in no time: a number, a text, a small tensor or array, or a short list, set or dict of these;
    None: it is something else.
    """
    few = list(islice(_leaves(value), _MOST + 1))
    if len(few) > _MOST or not all(_is_plain(one, set) for one in few):
        return None
    return sum(getattr(one, "nbytes", len(one) if isinstance(one, str | bytes | bytearray) else 8) for one in few)


def _leaves(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    kind = type(value)
    if not depth or kind not in _MANY or (kind in MAPPINGS and not _has_keys(value)):
        yield value
    else:
        for one in value.values() if kind in MAPPINGS else value:
            yield from _leaves(one, depth - 1)


def _has_keys(value: Mapping[Any, Any]) -> bool:
    return {type(key) for key in value} <= {str, int} or all(map(is_key, value))


def _is_plain(value: Any, owned: Owned) -> bool:
    if type(value) is torch.Tensor:
        fits = not value.requires_grad and not why_no_tensor(value) and value.nbytes <= SMALL_BYTES
        return fits and _memory(value) not in owned()
    if type(value) is np.ndarray:
        return not why_no_array(value) and value.nbytes <= SMALL_BYTES
    if type(value) in _BYTES:
        return len(value) <= SMALL_BYTES
    return type(value) in _PLAIN or isinstance(value, np.number | np.bool_)


def same(one: Any, other: Any) -> bool:
    """Whether values that a state may hold are of the same types, and equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        alike = one.dtype == other.dtype and one.device == other.device
        return alike and _equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return torch.equal(one, other)
    except NotImplementedError:  # torch compares no numbers of 8 bits
        return one.shape == other.shape and torch.equal(bytes_in_line(one), bytes_in_line(other))


def _put(module: nn.Module, name: str, value: Any) -> None:
    """Lists, dicts and buffers stay the same objects, because modules may share them."""
    if name.startswith(_UNSAVED):
        _put_buffer(module, name.removeprefix(_UNSAVED), value)
        return
    held: Any = vars(module).get(name)
    value = _moved(value, _device(held, module))
    if same(held, value):
        return
    if type(held) is type(value) and type(value) in (list, bytearray):
        held[:] = value
    elif type(held) is type(value) and type(value) in MAPPINGS:
        held.clear()
        held.update(value)
    else:
        vars(module)[name] = value


def _put_buffer(module: nn.Module, name: str, value: torch.Tensor | None) -> None:
    held = module._buffers.get(name)
    if value is not None:
        value = value.to(_device(held, module))
    if same(held, value) and name in module._buffers:
        return
    if value is not None and held is not None and (held.shape, held.dtype) == (value.shape, value.dtype):
        held.data.copy_(value)
    elif name in module._buffers:
        module._buffers[name] = value
    else:
        module.register_buffer(name, value, persistent=False)


def _device(held: Any, module: nn.Module) -> torch.device | None:
    """Where tensors that came from another rank, or from a file, belong."""
    tensors = (one for one in chain(_leaves(held), _registered(module)) if isinstance(one, torch.Tensor))
    return next((one.device for one in tensors), None)


def _moved(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(_moved(one, device) for one in value)
    if isinstance(value, dict):
        return type(value)({key: _moved(one, device) for key, one in value.items()})
    return value
