"""Tells of what a script keeps in variables and objects of its own and changes in its loop: a counter of steps that a
schedule uses, the best measure so far, a pool of images, a random generator. A process that joins has them as they are
before the loop.

Whether training depends on them cannot be seen, so nothing is refused.
"""

from __future__ import annotations

import argparse
import enum
import itertools
import math
import random
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from types import FrameType, FunctionType, GeneratorType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import Dataset, Subset, TensorDataset

from pilot.train import checksums, loop_code, refusal
from pilot.train.epoch_numbers import EpochNumbers
from pilot.train.epoch_outputs import EpochOutputs
from pilot.train.handed_on import HandedOn, is_of_a_graph
from pilot.train.iterators import place_of
from pilot.train.rank_only import RankOnly
from pilot.train.spaced import Spaced
from pilot.train.training import Training
from pilot.train.training_loader import TrainingLoader
from pilot.train.untracked import WITH_ITEMS, inner, is_of_the_script

_PARTS = 100
"""Looks take one of so many parts of the time, but for the first ones."""
_FIRST_LOOKS = 16
_DEPTH = 3
_SHOWN = 5
_MOST_PARTS = 1000
_SMALL_BYTES = 1 << 20
_SAMPLED = 1 << 14
"""A tensor or array up to this size is read whole; of a larger one, so many numbers."""
_PLAIN = (bool, int, float, str, np.number, np.bool_)
_TENSORS = (torch.Tensor, nn.Parameter)
_ARRAYS = (torch.Tensor, np.ndarray)
_MANY = (list, dict, set, deque)
_CHANGEABLE = (*_MANY, *_ARRAYS)
_HOLDERS = (argparse.Namespace, SimpleNamespace)
"""Objects in which scripts keep values, without a class of their own."""

_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"),
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
)

_Place = tuple[int, str]
"""A frame or a module's variables (which one), and a name in it; or a tensor or array in a variable, and its name; or
one of the session's parts (0: a module) or a hook, and a name.
"""


class OwnValues:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._before: dict[_Place, Any] = {}
        self._arrays: dict[_Place, weakref.ref[Any] | None] = {}
        self._first: dict[int, weakref.ref[Any]] = {}
        self._shared: dict[str, tuple[str, Any]] = {}
        self._kept: dict[str, weakref.ref[Any]] = {}
        self._told: set[_Place] = set()
        self._handed_on = HandedOn(training.model)
        self.rank_only = RankOnly(training)
        self._epoch_numbers: EpochNumbers | None = None
        self._outputs = EpochOutputs(training, self._lists_of_dataset)
        self.epoch_begins, self.pass_begins = self._outputs.epoch_begins, self._outputs.pass_begins
        self.told_at_beginning = self._outputs.told
        self._dataset: object = None
        self._indices: list[Subset[Any]] = []
        self._collate_fn: object = None
        self._epoch: int | None = None
        self._spaced = Spaced(_PARTS, _FIRST_LOOKS)
        self._looks = True
        self._frame = self._head = 0
        self._anew: set[_Place] = set()
        self._at_beginning: set[_Place] = set()
        self._begun: dict[_Place, Any] = {}

    def begin(self, dataset: object, collate_fn: object, *, by_epoch: bool) -> None:
        """The loop over ``dataset`` begins: a process that joins will have these values."""
        self._collate_fn = getattr(collate_fn, "__self__", collate_fn)  # it may be a method of an object
        self._epoch_numbers = EpochNumbers() if by_epoch else None
        while isinstance(dataset, Subset):
            self._indices.append(dataset)
            dataset = dataset.dataset
        self._dataset = dataset
        if frame := next(refusal.frames(), None):  # none of the script's if all of it is installed
            self._frame, self._head = id(frame), max(loop_code.heads(frame.f_code, frame.f_lasti), default=0)
        self._before = dict(self._seen(self._known()))
        self._arrays = {
            (which, name): weakref.ref(value) if isinstance(value, _ARRAYS) else None
            for which, values in _spaces()
            for name, value in values.items()
        }
        self._first = {id(value()): value for value in self._arrays.values() if value is not None}
        self._shared = self._shared_now()

    def step(self) -> None:
        """The script steps. What a dataset, or an attribute that each epoch's beginning sets, has at an epoch's first
        step is what a process that joins has.
        """
        if self._epoch != self._training.position.epoch:
            self._epoch = self._training.position.epoch
            self._outputs.step(self._in_loop(), self._head)
            self._looks = not self._training.on_restore and self._spaced.is_due()
            if self._looks:
                with self._spaced.doing():
                    self._epoch_has_begun()

    def _epoch_has_begun(self) -> None:
        self._before |= self._of_dataset()
        self._look_at_code()
        if self._at_beginning:
            known = self._known()
            others = dict(self._seen(known, self._at_beginning))
            for place in self._begun:  # it may be of a function that has ended, and whose number another has by now
                self._before.pop(place, None)
            self._begun = {place: mark for place, mark in self._seen(known) if place not in others}
            self._before |= self._begun

    def look(self, samples: int) -> None:
        """Tell, once, of each that has changed, unless the script says that it restores its values itself. ``samples``:
        of the batch that it has, if any.
        """
        if self._looks and not self._training.on_restore:
            with self._spaced.doing():
                self._look()
                frames, known = self._in_loop(), {name for _, name in self._told}
                self.rank_only.look(frames)
                self._handed_on.look(frames, self._head, samples, known)
                if self._epoch_numbers is not None:
                    self._epoch_numbers.look(frames, self._head, known)

    def _look(self) -> None:
        for place in [one for one in self._before if one[0] in self._first and self._first[one[0]]() is None]:
            del self._before[place]  # another array may have its number by now
        known = self._known()
        before, kept = self._before, [value for value in self._training.user.values() if isinstance(value, _PLAIN)]
        seen = dict(chain(self._seen(known), self._of_dataset().items()))
        changed = [place for place, value in seen.items() if before.get(place, value) != value and value not in kept]
        made = chain(self._made(seen), self._made_variables(known), self._replaced(known))
        changed = [place for place in chain(changed, made) if place not in self._told]
        if changed:
            self._told.update(changed)
            names = list(dict.fromkeys(name for _, name in changed))
            refusal.note(
                f"the script keeps values of its own that change in its loop ({', '.join(names[:_SHOWN])}"
                f"{', ...' if len(names) > _SHOWN else ''}), and a node that joins, or a run that resumes, has them as"
                " they are before the loop: what training depends on belongs in session.state or session.track"
            )
        self._look_at_shared()

    def _look_at_shared(self) -> None:
        now = self._shared_now()
        changed = [name for name, was in self._shared.items() if name in now and now[name] != was]
        if changed:
            name, key = changed[0], self._shared[changed[0]][0]
            self._shared = {}
            refusal.note(
                f"the script changes session.state[{key!r}] by another name, which it has from before the loop"
                f" ({name}); on a node that joins, or in a run that resumes, session.state holds another object then:"
                f" write session.state[{key!r}] where it is used"
            )

    def _shared_now(self) -> dict[str, tuple[str, Any]]:
        """Variables and attributes of the script that are tensors and arrays of ``session.state``, with the keys and
        contents. (Lists and dicts stay the same where a state is received.)
        """
        keys = {id(one): (key, one) for key, one in self._training.user.items() if isinstance(one, _ARRAYS)}
        found = {}
        for name, value in ((name, value) for _, values in _spaces() for name, value in list(values.items())):
            held = _held(value) if keys and is_of_the_script(type(value)) else ()
            for path, one in [("", value), *held]:
                if id(one) in keys:
                    key, shared = keys[id(one)]
                    found[name + path] = key, dict(_marks("", shared, set(), (), _DEPTH))
        return found

    def _look_at_code(self) -> None:
        frames = self._in_loop()
        for frame, head in self._loops(frames):
            which = id(frame.f_globals if frame.f_locals is frame.f_globals else frame)
            self._anew |= {(which, name) for name in loop_code.set_anew(frame.f_code, head)}
        self._at_beginning |= {
            (id(owner), f".{name}") for owner, name in loop_code.set_at_beginning(frames, self._head)
        }

    def _in_loop(self) -> list[FrameType]:
        """The running functions, from the one with the session's loop on."""
        return list(itertools.dropwhile(lambda frame: id(frame) != self._frame, [*refusal.frames()][::-1]))

    def _loops(self, frames: Sequence[FrameType]) -> Iterator[tuple[FrameType, int]]:
        """Where the session's loop begins, and the outermost ones of other functions."""
        for frame in frames:
            heads = loop_code.heads(frame.f_code, frame.f_lasti)
            if heads:
                yield frame, self._head if self._head in heads and id(frame) == self._frame else heads[0]

    def _seen(self, known: set[int], without: Collection[_Place] = ()) -> Iterator[tuple[_Place, Any]]:
        """``without`` these attributes, by object."""
        for which, values in _spaces():
            for name, value in list(values.items()):
                if (which, name) in self._anew:
                    continue
                place = id(value) if isinstance(value, _ARRAYS) else which
                for path, mark in _marks(name, value, known, without, _DEPTH):
                    yield (place, path), mark
        others = [*self._training.numbers.others(), ("collate_fn", self._collate_fn)]
        kept = ((0, name, value) for name, value in others)
        for which, name, value in chain(kept, self._attached()):
            place = id(value) if isinstance(value, _ARRAYS) else which
            for path, mark in _marks(name, value, known, without, _DEPTH):
                yield (place, path), mark

    def _attached(self) -> Iterator[tuple[int, str, Any]]:
        """What the script has put on parameters (``p.average``), hooks, which may have a state, and what optimizers
        keep in attributes.
        """
        steppers, holders = self._training.steppers, [*self._training.model.named_modules()]
        for path, module in holders:
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    yield from ((id(parameter), f"{path}.{key}.{name}", one) for name, one in vars(parameter).items())
        optimizers = (("optimizer", one) for one in steppers.optimizers.values())
        for path, one in chain(holders, optimizers):
            for kind in _HOOKS:
                for hook in vars(one).get(kind, {}).values():
                    value = getattr(hook, "__self__", hook)
                    yield id(value), f"{path or 'model'}.hook", value
        yield from ((id(one), f"optimizer.{name}", value) for one, name, value in steppers.other_attributes())

    def _of_dataset(self) -> dict[_Place, Any]:
        """Also labels and weights of its samples. Not what it keeps in lists and dicts: samples that it has read."""
        arrays = {name: value for name, value in inner(self._dataset) if isinstance(value, _ARRAYS)}
        found = numbers_and_generators(self._dataset)
        found |= {name: mark for name, value in arrays.items() if (mark := _mark(value, is_variable=True)) is not None}
        return {(id(self._dataset), f"dataset.{name}"): mark for name, mark in found.items()}

    def _lists_of_dataset(self) -> dict[str, Any]:
        """Its arrays, apart from what the session has, and its lists with the arrays and numbers in these; also the
        indices of a ``Subset``. (None: a place for a sample that was not read yet.)
        """
        dataset, known = self._dataset, self._known()
        kept: list[tuple[Any, Any]]
        kept = [("tensors", dataset.tensors)] if isinstance(dataset, TensorDataset) else inner(dataset)
        kept += [("indices", one.indices) for one in self._indices]
        its = [(f"dataset.{name}", value) for name, value in kept if isinstance(value, (*_ARRAYS, list, tuple))]
        marks = chain.from_iterable(_marks(name, value, known, (), _DEPTH) for name, value in its)
        return {path: mark for path, mark in marks if mark is not None}

    def _made(self, seen: Collection[_Place]) -> Iterator[_Place]:
        """Attributes that objects from before the loop have got in it, if the script asks whether they have them: the
        first batch makes them.
        """
        asked = {name for frame in self._in_loop() for name in loop_code.asked_for(frame.f_code)}
        for which, path in seen:
            owner, _, name = path.rpartition(".")
            kind = self._before.get((which, owner))
            asks = isinstance(kind, type) and (name in asked or name in loop_code.asked_for_by(kind))
            if asks and (which, path) not in self._before:
                yield which, path

    def _made_variables(self, known: set[int]) -> Iterator[_Place]:
        """Variables that there were not before the loop, and that some of its turns set for others, which may have
        none: at an epoch's end, or by a first batch (``if i == 0``). These are the same as when it looked before.
        """
        frames = self._in_loop()
        loop = loop_code.inner_loop(frames, self._head)
        found = {}
        if loop is not None:
            (frame, begin), code = loop, loop[0].f_code
            head = self._head if frame is frames[0] else begin
            at_end = loop_code.left_at_end(code, head, begin)
            which = id(frame.f_globals if frame.f_locals is frame.f_globals else frame)
            names = loop_code.may_be_kept(code, head, begin).difference(code.co_varnames[: code.co_argcount])
            for name in [one for one in names if one in frame.f_locals and (which, one) not in self._arrays]:
                value = frame.f_locals[name]
                if _is_made(value) and id(value) not in known:
                    found[name] = weakref.ref(value)
                if name in at_end or (name in found and name in self._kept and self._kept[name]() is value):
                    yield which, name
        self._kept = found

    def _replaced(self, known: set[int]) -> Iterator[_Place]:
        """Tensors and arrays that each turn of the loop leaves to the next one in a variable from before the loop."""
        for frame, head in self._loops(self._in_loop() or list(refusal.frames())):
            for name in loop_code.read_first(frame.f_code, head):
                for which, values in ((id(frame), frame.f_locals), (id(frame.f_globals), frame.f_globals)):
                    place, value = (which, name), values.get(name)
                    if place in self._arrays and isinstance(value, _ARRAYS) and id(value) not in known:
                        was = self._arrays[place]
                        if was is None or was() is not value:
                            yield place

    def _known(self) -> set[int]:
        """What the session has, and what its optimizers change; of tensors also their memory, which others may share
        (``model.state_dict()``).
        """
        training = self._training
        steppers, tracked = training.steppers, training.tracked.values()
        ours: list[Any] = [training.user, *tracked, *training.trained.named.values()]
        ours += [one for one in training.user.values() if isinstance(one, _CHANGEABLE)]
        for module in (training.model, *(one for one in tracked if isinstance(one, nn.Module))):
            for part in module.modules():
                held = chain(part._parameters.values(), part._buffers.values())
                ours += [part, *(tensor for tensor in held if tensor is not None)]
        ours += [*steppers.schedulers.values(), *steppers.scalers.values()]
        for one in steppers.optimizers.values():
            ours += [one, one.state, one.param_groups, *one.param_groups]
            states = chain.from_iterable(its.values() for its in one.state.values() if isinstance(its, dict))
            ours += [value for value in states if isinstance(value, torch.Tensor)]
        return {*map(id, ours), *(_memory(one) for one in ours if isinstance(one, _ARRAYS))}


def numbers_and_generators(holder: object) -> dict[str, Any]:
    """What an object of the script has in attributes, by name: what changes if these do."""
    marks = {
        name: _itself(value) if isinstance(value, _PLAIN) else _random_state(value) for name, value in inner(holder)
    }
    return {name: mark for name, mark in marks.items() if mark is not None}


def _spaces() -> Iterator[tuple[int, dict[str, Any]]]:
    """The variables of the script's running functions, and of their modules."""
    seen = set()
    for frame in refusal.frames():
        if frame.f_locals is not frame.f_globals:
            yield id(frame), frame.f_locals
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            yield id(frame.f_globals), frame.f_globals


def _marks(
    name: str, value: Any, known: set[int], without: Collection[_Place], depth: int
) -> Iterator[tuple[str, Any]]:
    """What changes if ``value``, or something in it, does."""
    if name.startswith("__") or name == "_" or id(value) in known or isinstance(value, Dataset):
        return
    if value is None or isinstance(value, (*_PLAIN, enum.Enum)):
        yield name, _itself(value)
    elif not isinstance(value, _ARRAYS) or _memory(value) not in known:
        if (mark := _mark(value, is_variable=depth == _DEPTH)) is not None:
            yield name, mark
        if depth > 1:
            for path, one in _held(value):
                if (id(value), path) not in without:
                    # A trainer's callbacks; the transitions of a memory.
                    same_depth = isinstance(value, WITH_ITEMS) and (type(one) is tuple or is_of_the_script(type(one)))
                    yield from _marks(name + path, one, known, without, depth if same_depth else depth - 1)


def _itself(value: Any) -> Any:
    """What is not a number does not equal itself."""
    return repr(value) if isinstance(value, float | np.floating) and math.isnan(value) else value


def _mark(value: Any, *, is_variable: bool) -> Any:
    """Variables hold batches, too: of a tensor there only a change in place counts."""
    if isinstance(value, _MANY):
        return len(value) - sum(is_of_a_graph(one) for _, one in inner(value))
    if is_of_a_graph(value):
        return None
    if type(value) in _TENSORS and value.layout is torch.strided and not value.is_inference():
        return _content(value, is_variable=is_variable)
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return xxhash.xxh3_64_intdigest(_sampled(value, value.size).tobytes())
    if isinstance(value, GeneratorType) and not refusal.is_of_a_library(value.gi_code.co_filename):
        return None if _loops_over_the_loader(value) else value.gi_frame and value.gi_frame.f_lasti
    if isinstance(value, nn.Module) or is_of_the_script(type(value)):
        return type(value)  # what it holds has its own marks, but before it is made there is None
    if isinstance(value, Iterator):
        return repr(value) if isinstance(value, itertools.count) else place_of(value)
    return _random_state(value)


def _is_made(value: Any) -> bool:
    """Computed, or copied: no number, which may be a constant, and nothing of a library's."""
    return isinstance(value, (*_ARRAYS, nn.Module)) or is_of_the_script(type(value))


def _loops_over_the_loader(generator: GeneratorType[Any, Any, Any]) -> bool:
    """Then its place is the session's."""
    frame = generator.gi_frame
    return frame is not None and any(isinstance(one, TrainingLoader) for one in frame.f_locals.values())


def _content(value: torch.Tensor, *, is_variable: bool) -> Any:
    """Writes through ``.data`` or an array leave the version as it was."""
    if value.is_meta or value.is_quantized:
        return None
    seen = checksums.of_tensors([_sampled(value.detach(), value.numel())])
    if value.nbytes <= _SMALL_BYTES:
        return seen
    return seen, value._version, None if is_variable else value.data_ptr()


def _sampled(value: Any, count: int) -> Any:
    """A tensor or array, or some of its numbers, if it is large."""
    if value.nbytes <= _SMALL_BYTES:
        return value
    return value.reshape(-1)[:: -(-count // _SAMPLED)]


def _memory(value: Any) -> int:
    """Where its numbers begin; 0: nowhere."""
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    return value.data_ptr() if type(value) in _TENSORS and value.layout is torch.strided else 0


def _random_state(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return str(value.get_state())
    return value.getstate() if type(value) is random.Random else None


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """What ``value`` holds, with its place there: also the variables of a function's closure and of a generator, and
    what an object has from its class until it is first changed.
    """
    if isinstance(value, WITH_ITEMS):
        yield from ((f"[{key!r}]", one) for key, one in inner(value))
    elif isinstance(value, nn.Module):
        yield from ((f".{name}", one) for name, one in _of_module(value))
    elif isinstance(value, partial):
        bound = [(".func", value.func), *((f"[{number}]", one) for number, one in enumerate(value.args))]
        yield from (*bound, *((f".{name}", one) for name, one in value.keywords.items()))
    elif isinstance(value, FunctionType) and not refusal.is_of_a_library(value.__code__.co_filename):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # it has no value yet
                yield f".{name}", cell.cell_contents
        yield from ((f".{name}", one) for name, one in inner(value))
    elif isinstance(value, GeneratorType) and not refusal.is_of_a_library(value.gi_code.co_filename):
        yield from ((f".{name}", one) for name, one in list(value.gi_frame.f_locals.items() if value.gi_frame else ()))
    elif isinstance(value, type) and is_of_the_script(value):
        yield from ((f".{name}", one) for name, one in list(vars(value).items()))
    elif is_of_the_script(type(value)) or isinstance(value, _HOLDERS):
        held = {name: one for name, one in vars(type(value)).items() if isinstance(one, _PLAIN)} | dict(inner(value))
        yield from ((f".{name}", one) for name, one in held.items())


def _of_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Its tensors, apart from batch statistics, and those of all of its parts; and attributes that the script has."""
    for path, part in islice(module.named_modules(), _MOST_PARTS):
        tensors = part._parameters if isinstance(part, _NormBase) else part._parameters | part._buffers
        yield from ((f"{path}.{name}".lstrip("."), one) for name, one in tensors.items() if one is not None)
    of_torch = vars(nn.Module()).keys()
    if is_of_the_script(type(module)):
        yield from ((name, one) for name, one in inner(module) if name not in of_torch)
