"""Tells of what a script keeps in variables and objects of its own and changes in its loop: a counter of steps that a
schedule uses, the best measure so far, a pool of images, a random generator. A process that joins has them as they are
before the loop.

Whether training depends on them cannot be seen, so nothing is refused.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, islice
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import nn

from pilot.train.looks.attached import attached, functions_of, of_running
from pilot.train.looks.before_its_step import BeforeItsStep
from pilot.train.looks.by_the_clock import ByTheClock
from pilot.train.looks.clocks import durations, is_a_time
from pilot.train.looks.dataset_changes import DatasetChanges
from pilot.train.looks.dataset_marks import DatasetMarks
from pilot.train.looks.epoch_numbers import EpochNumbers
from pilot.train.looks.epoch_outputs import EpochOutputs
from pilot.train.looks.epoch_sums import EpochSums
from pilot.train.looks.filled_by_some import FilledBySome
from pilot.train.looks.handed_on import HandedOn
from pilot.train.looks.left_at_beginning import LeftAtBeginning
from pilot.train.looks.left_by_turns import LeftByTurns
from pilot.train.looks.library_numbers import LibraryNumbers
from pilot.train.looks.loop_place import LoopPlace
from pilot.train.looks.marks import (
    ARRAYS,
    CHANGEABLE,
    DEPTH,
    FUNCTIONS,
    Further,
    Place,
    Shared,
    marks_in,
    memory_of,
)
from pilot.train.looks.module_switches import ModuleSwitches
from pilot.train.looks.naming import shown
from pilot.train.looks.own_files import OwnFiles
from pilot.train.looks.own_loss import OwnLoss
from pilot.train.looks.own_statistics import OwnStatistics
from pilot.train.looks.rank_only import RankOnly
from pilot.train.looks.sample_counts import SampleCounts
from pilot.train.looks.shared_with_state import SharedWithState
from pilot.train.looks.spaced import Spaced
from pilot.train.looks.tracked_parts import TrackedParts, counted
from pilot.train.script import attribute_code, loop_code, refusal, step_uses
from pilot.train.script.bytecode import running_at
from pilot.train.script.harmless import Harmless
from pilot.train.script.inlined import inlined
from pilot.train.script.objects import NOT_THE_SCRIPTS, package_of, spaces
from pilot.train.script.plain_marks import PLAIN
from pilot.train.script.step_uses import StepUses
from pilot.train.state.training import Training

_PARTS = 100
"""Looks take one of so many parts of the time, but for the first ones."""
_WHOLE = {2, 3, 7, 11}
"""In which of the looks in steps all that the loop calls is read, too: twice in the first epoch, and when other values
are known."""
_WHOLE_EPOCHS = 3
"""At the beginning of how many epochs the same is read."""
_FIRST_LOOKS = 16
_MOST_OF_MODULES = 1000
"""A look at more values of the script's other modules would take long."""


class OwnValues:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._before: dict[Place, Any] = {}
        self._arrays: dict[Place, weakref.ref[Any] | None] = {}
        self._first: dict[int, weakref.ref[Any]] = {}
        self._shared = SharedWithState(training)
        self._by_turns = LeftByTurns(lambda place: place not in self._arrays)
        self._by_turns_of_whole = LeftByTurns(self._is_new_attribute)
        self._left_over: dict[Place, None] = {}
        self._told: set[Place] = set()
        self._handed_on = HandedOn(training.model)
        self.rank_only = RankOnly(training)
        self._epoch_numbers: EpochNumbers | None = None
        self._epoch_sums = EpochSums(training)
        self._filled = FilledBySome()
        self._left_at_beginning = LeftAtBeginning()
        self._counts = SampleCounts(training)
        self._loss = OwnLoss(training)
        self._statistics = OwnStatistics(training)
        self._files = OwnFiles()
        self._clock = ByTheClock()
        self._of_libraries = LibraryNumbers()
        self._harmless = Harmless()
        self._in_steps = self._epochs = 0
        self._knows_whole = False
        self._before_its_step = BeforeItsStep(training)
        self._dataset = DatasetMarks()
        self._outputs = EpochOutputs(training, lambda: self._dataset.lists(self._known()), self._dataset.has)
        self._changes = DatasetChanges(training)
        self._switches = ModuleSwitches(training)
        self.pass_ends = self._changes.pass_ends
        self.told_at_beginning = self._outputs.told
        self._collate_fn: object = None
        self._epoch: int | None = None
        self._spaced = Spaced(_PARTS, _FIRST_LOOKS)
        self._looks = True
        self._loop = LoopPlace()
        self._modules: list[tuple[ModuleType, str]] = []
        self._anew: set[Place] = set()
        self._for_after: set[str] = set()
        self._anew_in: set[Place] = set()
        self._at_beginning: set[Place] = set()
        self._begun: dict[Place, Any] = {}

    def begin(self, dataset: object, collate_fn: object, *, by_epoch: bool) -> None:
        """The loop over ``dataset`` begins: a process that joins will have these values."""
        self._collate_fn = getattr(collate_fn, "__self__", collate_fn)  # it may be a method of an object
        self._epoch_numbers = EpochNumbers(is_rate_of_step=self._training.is_scheduled_by_step) if by_epoch else None
        self._changes.begin(dataset)
        self._switches.begin()
        self._files.begin()
        self._dataset.begin(dataset)
        self._loop.begin()
        self._modules = list(islice(_of_other_modules(), _MOST_OF_MODULES))
        self._before = {place: mark for place, mark in self._seen(self._known()) if not isinstance(mark, Shared)}
        self._arrays = {
            (which, name): weakref.ref(value) if isinstance(value, ARRAYS) else None
            for which, values in spaces()
            for name, value in values.items()
        }
        self._first = {id(value()): value for value in self._arrays.values() if value is not None}
        for _, function in functions_of(self._training.model, self._training.steppers):
            with suppress(TypeError):  # not every object can be referred to
                self._first[id(function)] = weakref.ref(function)
        self._shared.begin()

    def epoch_begins(self) -> None:
        """The body of ``session.epochs`` begins."""
        self._switches.epoch_begins()
        self._outputs.epoch_begins()  # which has hooks of its own until the pass begins
        self._changes.epoch_begins(self._names_told())

    def pass_begins(self) -> None:
        """The loop over the loader begins."""
        self._outputs.pass_begins()
        self._changes.pass_begins(self._loop.frames(), self._loop.head, self._names_told())

    def _names_told(self) -> set[str]:
        return {name for _, name in self._told}.union(self._outputs.told)

    def step(self) -> None:
        """The script steps. What a dataset, or an attribute that each epoch's beginning sets, has at an epoch's first
        step is what a process that joins has.
        """
        self._loop.step()
        position = self._training.position
        self._handed_on.step((position.epoch, position.step))
        if self._epoch != position.epoch:
            self._epoch = position.epoch
            self._outputs.step(self._loop.frames(), self._loop.head)
            self._switches.step(self._loop.frames(), self._loop.head)
            self._looks = not self._training.on_restore and self._spaced.is_due()
            if self._looks:
                with self._spaced.doing():
                    self._epoch_has_begun()

    def _epoch_has_begun(self) -> None:
        self._look_at_code()
        frames, by_epoch = self._loop.frames(), self._epoch_numbers is not None
        self._left_over |= dict.fromkeys(self._by_turns.by_another(frames, self._loop.head, by_epoch=by_epoch))
        self._before |= self._dataset.epoch_begins(frames, self._loop.head, by_epoch=by_epoch)
        self._files.look(frames, self._loop.head)
        self._epochs += 1
        if by_epoch and self._epochs <= _WHOLE_EPOCHS:
            self._harmless.look(lambda: self._look_at_attributes(inlined(frames, self._loop.head, self._training.user)))
        if self._at_beginning:
            known = self._known()
            others = dict(self._seen(known, self._at_beginning))
            for place in self._begun:  # it may be of a function that has ended, and whose number another has by now
                self._before.pop(place, None)
            self._begun = {place: mark for place, mark in self._seen(known) if place not in others}
            self._before |= self._begun

    def look(self, samples: int, *, at_end: bool = False) -> None:
        """Tell, once, of each that has changed, unless the script says that it restores its values itself. ``samples``:
        of the batch that it has, if any; ``at_end``: of an epoch's body.
        """
        if self._looks and not self._training.on_restore:
            with self._spaced.doing():
                frames = self._loop.frames()
                uses_of = cache(lambda: step_uses.uses_of(frames, self._loop.head, self._training.user))
                self._told |= self._counts.look(frames, self._loop.head, uses_of)
                self._look(uses_of, at_end=at_end)
                self._shared.look(frames, self._anew, at_end=at_end)
                self._handed_on.look(frames, self._loop.head, samples, {name for _, name in self._told})
                self._read(frames, self._loop.head, uses_of)
                if not at_end:
                    self._loss.look(frames, uses_of)
                    self._statistics.look(frames, uses_of)
                    self._in_steps += 1
                    if self._in_steps in _WHOLE:
                        self._files.look(frames, self._loop.head)
                        self._read_uses(uses_of())
                        self._harmless.look(lambda: self._read_whole(frames))

    def _read_whole(self, running: Sequence[FrameType]) -> None:
        """The loop with all that it calls."""
        whole = inlined(running, self._loop.head, self._training.user)
        if whole is None:
            return
        self._look_at_attributes(whole)
        frames, head = [whole[0]], whole[1]
        uses_of = cache(lambda: step_uses.uses_of(frames, head, self._training.user))
        self._told |= self._counts.look(frames, head, uses_of)
        self._loss.look(frames, uses_of)
        self._statistics.look(frames, uses_of)
        self._read(frames, head, uses_of)
        self._read_uses(uses_of())

    def _read_uses(self, uses: StepUses) -> None:
        """What else the steps may compute with."""
        self._clock.look(uses)
        told = self._names_told()
        self._left_over |= dict.fromkeys((0, path) for path in self._of_libraries.changed(uses) if path not in told)

    def _read(self, frames: Sequence[FrameType], head: int, uses_of: Callable[[], StepUses]) -> None:
        """The code of these functions, the first of which has the session's loop, which begins at ``head``."""
        told = {name for _, name in self._told}
        known = told | {name.replace(".", refusal.DOT) for name in told}
        self.rank_only.look(frames)
        self._before_its_step.look(frames)
        if self._epoch_numbers is not None:
            self._epoch_numbers.look(frames, head, known, self._training.position.epoch)
            self._epoch_sums.look(frames, head, uses_of)
            self._filled.look(frames, head)
            self._left_at_beginning.look(frames, head)

    def _look(self, uses_of: Callable[[], StepUses], *, at_end: bool) -> None:
        for place in [one for one in self._before if one[0] in self._first and self._first[one[0]]() is None]:
            del self._before[place]  # another array, or hook, may have its number by now
        parts = TrackedParts.of(self._training.tracked)
        known, without = self._known() | parts.known, self._anew_in | parts.attributes
        if self._knows_whole:  # which says what becomes of attributes that each epoch's beginning sets
            without |= self._at_beginning
        before = self._before
        if self._epoch_numbers is None and not at_end:
            self._left_over |= dict.fromkeys(
                self._by_turns.by_another(self._loop.frames(), self._loop.head, by_epoch=False)
            )
        seen = dict(chain(self._seen(known, without), self._dataset.look(at_end=at_end).items()))
        shared = {place: mark for place, mark in seen.items() if isinstance(mark, Shared)}
        trained = set(map(memory_of, self._training.trained.trained().values()))
        for place in [one for one, mark in shared.items() if mark.memory not in trained]:
            del seen[place]
        changed = [place for place, now in seen.items() if before.get(place, now) != now and not is_a_time(now)]
        outgrown = ((0, name) for name in self._training.numbers.outgrown())
        made = self._made(place for place in seen if place not in shared)
        made = chain(
            made,
            self._by_turns.by_some(self._loop.frames(), self._loop.head, known),
            self._left_over,
            self._replaced(known),
            self._made_for_after(),
            outgrown,
        )
        variables = ((which, name, value) for which, values in spaces() for name, value in list(values.items()))
        saved = {(which, name) for which, name, value in variables if parts.has_variable(name, value)}
        changed = [place for place in chain(changed, made) if place not in self._told | saved]
        if changed:
            took = {name.rpartition(".")[2] for name in durations(self._loop.frames())}
            changed = [place for place in changed if place[1].rpartition(".")[2] not in took]
        may_be_last = at_end and all(_variable_of(name) in self._for_after for _, name in changed)
        if changed and not may_be_last:  # the last turn may set what follows the loop reads
            self._told.update(changed)
            names = shown({place[1]: seen.get(place) for place in changed}, uses_of)
            refusal.note(
                f"the script keeps values of its own that change in its loop ({names}), and a node that joins, or a run"
                " that resumes, has them as they are before the loop: what training depends on belongs in session.state"
                " or session.track, from where the loop reads it"
            )

    def _look_at_code(self) -> None:
        frames = self._loop.frames()
        for frame, head in self._loops(frames):
            which = id(frame.f_globals if frame.f_locals is frame.f_globals else frame)
            anew = loop_code.set_anew(frame.f_code, head) | loop_code.set_from_some_turn_on(frame.f_code, head)
            self._anew |= {(which, name) for name in anew}
            self._for_after |= loop_code.kept_for_after(frame.f_code, head)
        if frames and self._loop.head in loop_code.heads(frames[0].f_code, running_at(frames[0])):
            its = attribute_code.set_before_calls(frames, self._loop.head, by_epoch=self._epoch_numbers is not None)
            self._anew_in |= {(id(owner), f".{name}") for owner, name in its}
        self._at_beginning |= {
            (id(owner), f".{name}") for owner, name in attribute_code.set_at_beginning(frames, self._loop.head)
        }

    def _loops(self, frames: Sequence[FrameType]) -> Iterator[tuple[FrameType, int]]:
        """Where the session's loop begins, and the outermost ones of other functions."""
        for frame in frames:
            heads = loop_code.heads(frame.f_code, running_at(frame))
            if heads:
                yield frame, self._loop.head if self._loop.head in heads and self._loop.is_in(frame) else heads[0]

    def _seen(self, known: set[int], without: Collection[Place] = ()) -> Iterator[tuple[Place, Any]]:
        """``without`` these attributes, by object."""
        every = list(spaces())
        variables = [value for _, values in every for value in list(values.values())]
        further = Further(variables)
        for which, values in every:
            for name, value in list(values.items()):
                if (which, name) in self._anew:
                    continue
                place = id(value) if isinstance(value, ARRAYS) else which
                for path, mark in marks_in(name, value, known, without, DEPTH, further.variable()):
                    yield (place, path), mark
        others = [*self._training.numbers.others(), ("collate_fn", self._collate_fn)]
        kept = ((0, name, value) for name, value in others)
        frames = list(refusal.frames())
        steppers = self._training.steppers
        read = {name for frame in frames for name in attribute_code.attributes_read(frame.f_code)}
        schedulers = {f"scheduler {name}".rstrip(): one for name, one in steppers.schedulers.items()}
        numbers = counted({**self._training.tracked, **schedulers}, read)
        its = chain(attached(self._training.model, steppers), numbers)
        for which, name, value in chain(kept, its):
            place = id(value) if isinstance(value, ARRAYS) else which
            for path, mark in marks_in(name, value, known, without, DEPTH):
                yield (place, path), mark
        looked_at = known | {id(value) for value in variables if value is not None and not isinstance(value, PLAIN)}
        for name, value in functions_of(self._training.model, self._training.steppers):
            for path, mark in marks_in(name, value, looked_at, {*without, *of_running(value, frames)}, DEPTH):
                yield (id(value), path), mark
        yield from islice(self._of_modules(known, without), _MOST_OF_MODULES)

    def _of_modules(self, known: set[int], without: Collection[Place]) -> Iterator[tuple[Place, Any]]:
        for module, name in self._modules:
            if name in (held := vars(module)):
                value = held[name]
                place = id(value) if isinstance(value, ARRAYS) else id(module)
                for path, mark in marks_in(f"{module.__name__}.{name}", value, known, without, DEPTH - 1):
                    yield (place, path), mark

    def _made(self, seen: Iterable[Place]) -> Iterator[Place]:
        """Attributes that objects, or functions, from before the loop have got in it, if the script asks whether they
        have them: the first batch makes them.
        """
        asked = {name for frame in self._loop.frames() for name in attribute_code.asked_for(frame.f_code)}
        for which, path in seen:
            owner, _, name = path.rpartition(".")
            kind = self._before.get((which, owner))
            if isinstance(kind, type | CodeType) and (which, path) not in self._before:
                by_owner = (
                    attribute_code.asked_for_by(kind) if isinstance(kind, type) else attribute_code.asked_for(kind)
                )
                if name in asked or name in by_owner:
                    yield which, path

    def _look_at_attributes(self, whole: tuple[FrameType, int] | None) -> None:
        """Of objects: variables, as the whole loop has them."""
        self._knows_whole = whole is not None and self._epoch_numbers is not None
        if whole is not None:
            (frame, head), by_epoch = whole, self._epoch_numbers is not None
            self._files.look([frame], head)
            some = self._by_turns_of_whole.by_some([frame], head, self._known())
            another = self._by_turns_of_whole.by_another([frame], head, by_epoch=by_epoch)
            self._outputs.look_at_whole(frame, head)
            self._left_over |= dict.fromkeys((0, name.replace(refusal.DOT, ".")) for _, name in chain(some, another))

    def _is_new_attribute(self, place: Place) -> bool:
        """Whether it is one, as the whole loop has it, of an object from before the loop that had none; not if it was
        told of.
        """
        path = place[1].replace(refusal.DOT, ".")
        owner = path.rpartition(".")[0]
        its = {name: mark for (_, name), mark in self._before.items() if name in (owner, path)}
        return isinstance(its.get(owner), type) and path not in {*its, *self._names_told()}

    def _replaced(self, known: set[int]) -> Iterator[Place]:
        """Tensors and arrays that each turn of the loop leaves to the next one, or some turns to what follows it, in a
        variable from before the loop.
        """
        for frame, head in self._loops(self._loop.frames() or list(refusal.frames())):
            for name in (*loop_code.read_first(frame.f_code, head), *loop_code.kept_for_after(frame.f_code, head)):
                for which, values in ((id(frame), frame.f_locals), (id(frame.f_globals), frame.f_globals)):
                    place, value = (which, name), values.get(name)
                    if place in self._arrays and isinstance(value, ARRAYS) and id(value) not in known:
                        was = self._arrays[place]
                        if was is None or was() is not value:
                            yield place

    def _made_for_after(self) -> Iterator[Place]:
        """Variables that there were not before the loop, and that some of its turns set for what follows it: those of a
        run that resumes may not.
        """
        for frame, head in self._loops(self._loop.frames() or list(refusal.frames())):
            which = id(frame.f_globals if frame.f_locals is frame.f_globals else frame)
            for name in loop_code.kept_for_after(frame.f_code, head):
                if (which, name) not in self._arrays and frame.f_locals.get(name) is not None:
                    yield which, name

    def _known(self) -> set[int]:
        """What the session has, and what its optimizers change; of tensors also their memory, which others may share
        (``model.state_dict()``).
        """
        training = self._training
        steppers, tracked = training.steppers, training.tracked.values()
        ours: list[Any] = [training.user, *tracked, *training.trained.named.values()]
        ours += [one for one in training.user.values() if isinstance(one, CHANGEABLE)]
        for module in (training.model, *(one for one in tracked if isinstance(one, nn.Module))):
            for part in module.modules():
                held = chain(part._parameters.values(), part._buffers.values())
                ours += [part, *(tensor for tensor in held if tensor is not None)]
        ours += [*steppers.schedulers.values(), *steppers.scalers.values()]
        for one in steppers.optimizers.values():
            ours += [one, one.state, one.param_groups, *one.param_groups]
            states = chain.from_iterable(its.values() for its in one.state.values() if isinstance(its, dict))
            ours += [value for value in states if isinstance(value, torch.Tensor)]
        return {*map(id, ours), *(memory_of(one) for one in ours if isinstance(one, ARRAYS))}


def _of_other_modules() -> Iterator[tuple[ModuleType, str]]:
    """What the script's other modules have, and not those from which it runs: first plain values, and no functions and
    classes, which are many.
    """
    held = [(one, name, value) for one in _other_modules() for name, value in vars(one).items() if name[:2] != "__"]
    yield from ((module, name) for module, name, value in held if isinstance(value, PLAIN))
    seen = {id(value) for _, values in spaces() for value in values.values()}
    for module, name, value in held:
        if not isinstance(value, (*PLAIN, *FUNCTIONS, type, ModuleType)) and id(value) not in seen:
            seen.add(id(value))
            yield module, name


def _other_modules() -> list[ModuleType]:
    """The script's own modules, apart from those whose functions are running."""
    running = {id(frame.f_globals) for frame in refusal.frames()}
    latest_first = reversed(list(sys.modules.values()))  # a script's own come after packages that it uses
    every = ((one, getattr(one, "__file__", None)) for one in latest_first)
    own = [one for one, file in every if type(file) is str and not refusal.is_of_a_library(file)]
    others = (one for one in own if package_of(one.__name__) not in NOT_THE_SCRIPTS)  # torch.ops has no path
    return [one for one in others if id(vars(one)) not in running]


def _variable_of(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]
