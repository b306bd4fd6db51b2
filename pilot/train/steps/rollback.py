"""Restores what a forward pass, or the script between two steps, may change besides the optimizers' parameters, so that
after a void step its batch runs again as if for the first time.

This includes the models' buffers and extra states, all parameters (a script may decay weights before
``session.step``) and which of them are trained, tracked objects, optimizers and schedulers, and ``session.state``
without its long lists and large tensors. A successful step must cost almost nothing, so:

* Small values are copied when a step begins. Version counters would not suffice: batch norm's statistics and writes
  through ``.data`` do not change them.
* Large values are copied only if they were seen to change between a step's beginning and its sum: their bits are
  compared in the first step, and in epochs' first steps (a network may begin to grow in a later epoch). From then on
  that is known, also to ranks that take over the state.
* The rest is copied when a step turns out to be void, so what the script does after ``session.step`` is restored, too.

If a batch has several phases (see :mod:`pilot.train.steps.step`), what was marked is what there was after the last one
that counts. The script runs those before it again, each with its own values from then (``Training.phases``).

Until it is known what changes, in those steps, all are copied: large ones into host memory, where there is space.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import nn

from pilot.train.state.block import in_host_memory
from pilot.train.state.loading import unsaved_of
from pilot.train.state.state_check import Spaced
from pilot.train.state.stepper import options_of, set_options
from pilot.train.state.training import Training
from pilot.train.steps.snapshots import ObjectSnapshot, SmallUserState, Snapshot, StatePair, TensorSnapshot, mark_all

_PARTS = 1000
_FIRST_LOOKS = 4
"""Looks in epochs' first steps take one of so many parts of the time, but for the first ones."""
FEW_GROUPS = 16
"""So many groups of options cost less to copy than to think about."""


class Rollback:
    """The rollback of one session. It restores what was *marked*."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._apart = training.steppers.apart
        self._kept: list[Snapshot] | None = None
        self._changing: list[Snapshot] = []
        self._of_script: list[ObjectSnapshot] = []
        self._looking = False
        self._epoch: int | None = None
        self._spaced = Spaced(_PARTS, _FIRST_LOOKS)

    def begin(self) -> None:
        """A step begins, or is repeated."""
        is_first = self._kept is None
        if self._kept is None:
            self._kept = list(self._all())
            for one in self._kept:
                one.changes = one.small or one.name in self._training.changing
            self._changing = [one for one in self._kept if one.changes]
            self._of_script = [one for one in self._kept if isinstance(one, ObjectSnapshot) and one.of_script]
        begins = not is_first and self._epoch != self._training.position.epoch and self._spaced.is_due()
        self._looking = is_first or begins
        self._epoch = self._training.position.epoch
        with self._spaced.doing() if begins else nullcontext():
            self.mark()

    def mark(self) -> None:
        """Remember the current values."""
        mark_all(self._changing)
        for one in self._others() if self._looking else ():
            one.bits_before = one.bits()
            one.mark()

    def seen(self) -> None:
        """Forward and backward are over: what changed in the first step will change in others."""
        for one in self._others() if self._looking else ():
            if one.bits() == one.bits_before:
                one.forget()
            else:
                one.changes = True
                self._changing.append(one)
                self._training.changing.add(one.name)

    def hold(self) -> None:
        """The step is void: what the script changes from now on will be restored, too."""
        mark_all(self._others())

    def back(self) -> None:
        """Restore the marked values."""
        for one in self._kept or ():
            one.back()
        for one in self._others():
            one.forget()  # copies are kept only of what each step changes
        self._training.tell_restored()

    def phase_ends(self) -> None:
        """An optimizer was stepped for the batch, and another one may follow."""
        self._training.phases.append({one.name: one.marked for one in self._of_script if one.marked is not None})
        self.mark()

    def repeats(self, phase: int) -> None:
        """The script runs phase ``phase`` of the batch again, which counts: its own values are what they were then, so
        that it decides the same. (Marked are those after the last such phase.)
        """
        then = self._training.phases[phase]
        for one in self._of_script:
            if one.name in then:
                one.put(then[one.name])
        self._training.tell_restored()

    def _others(self) -> list[Snapshot]:
        """What no step was seen to change."""
        return [one for one in self._kept or () if not one.changes]

    def reset(self) -> None:
        """Other parameters are trained."""
        self._kept = None

    def _all(self) -> Iterator[Snapshot]:
        stepped = {id(parameter) for parameter in self._training.trained.trained().values()}
        for name, module in self._training.model.named_modules():
            for key in module._buffers.keys():  # noqa: SIM118  # a scripted module has no other way
                yield TensorSnapshot(f"{name}.{key}", module._buffers, key)
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in stepped:
                    yield TensorSnapshot(f"{name}.{key}", module._parameters, key)
            if _has_extra_state(module):
                yield ObjectSnapshot(
                    f"extra state of {name}", StatePair(partial(_extra_state, module), partial(_set_extra, module))
                )
        for name, tracked in self._training.tracked.items():
            yield ObjectSnapshot(f"tracked {name}", tracked)
            for path, module in tracked.named_modules() if isinstance(tracked, nn.Module) else ():
                for key, _ in unsaved_of(module):
                    yield TensorSnapshot(f"tracked {name}: {path}.{key}", module._buffers, key)
        yield from self._stepped()
        for name, parameter in self._training.trained.trained().items():
            yield TensorSnapshot(f"trained {name}", {name: parameter}, name, trained=True)
        yield ObjectSnapshot("session.state", SmallUserState(self._training.user), small=True)

    def _stepped(self) -> Iterator[ObjectSnapshot]:
        """What is trained and how, which few scripts change in a step, by setting a rate, scaling a momentum or
        replacing it: handled like large values, unless that costs next to nothing.
        """
        training, steppers = self._training, self._training.steppers
        trained = StatePair(training.trained.capture, training.trained.restore)
        yield ObjectSnapshot("what is trained", trained, small=self._apart, of_script=False)
        stepped = StatePair(steppers.capture, training.put_stepped)
        yield ObjectSnapshot("what is stepped", stepped, small=False, copy=in_host_memory)
        few = len(list(steppers.groups())) <= FEW_GROUPS
        options = StatePair(partial(options_of, steppers), partial(set_options, steppers))
        yield ObjectSnapshot("the optimizers' options", options, small=few, of_script=False)


def _has_extra_state(module: nn.Module) -> bool:
    """Whether it has defined one."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _extra_state(module: nn.Module) -> dict[str, Any]:
    return {"extra": module.get_extra_state()}


def _set_extra(module: nn.Module, state: dict[str, Any]) -> None:
    module.set_extra_state(state["extra"])
