"""Restores the values that a forward pass, or the script between two steps, may have changed, so that after a void step
its batch runs again as if for the first time.

These are the models' buffers and extra states, all parameters (a script may decay weights before ``session.step``) and
which of them are trained, tracked objects, optimizers and schedulers, and ``session.state`` without its long lists and
large tensors. A successful step must cost almost nothing, so:

* Small values are copied when a step begins. Version counters would not suffice: batch norm's statistics and writes
  through ``.data`` do not change them.
* Large values are copied only if they have changed between a step's beginning and its sum before: their bits are
  compared in the first step, and in epochs' first steps (a network may begin to grow in a later epoch). In these steps
  all values are copied, large ones into host memory. Ranks that take over the state know which values change.
* Other values are copied when a step turns out to be void, so changes after ``session.step`` are restored, too.

If a batch has several phases (see :mod:`pilot.train.steps.step`), the snapshots are those after the last phase that
counts. The script runs the phases before it again, each with its small values from then (``Training.phases``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
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
_FIRST_CHECKS = 4
"""Checks in epochs' first steps take at most 1/1000 of the time, except for the first four."""
FEW_GROUPS = 16
"""Up to this number of groups, options cost less to copy than to compare."""


class Rollback:
    """The rollback of one session, which restores its *marked* snapshots."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._by_name = training.steppers.by_name
        self._snapshots: list[Snapshot] | None = None
        self._changing: list[Snapshot] = []
        self._of_script: list[ObjectSnapshot] = []
        self._checking = False
        self._epoch: int | None = None
        self._spaced = Spaced(_PARTS, _FIRST_CHECKS)

    def begin(self) -> None:
        """Begin or repeat a step."""
        is_first = self._snapshots is None
        if self._snapshots is None:
            self._snapshots = list(self._all())
            for one in self._snapshots:
                one.changes = one.small or one.name in self._training.changing
            self._changing = [one for one in self._snapshots if one.changes]
            self._of_script = [one for one in self._snapshots if isinstance(one, ObjectSnapshot) and one.of_script]
        begins = not is_first and self._epoch != self._training.position.epoch and self._spaced.is_due()
        self._checking = is_first or begins
        self._epoch = self._training.position.epoch
        with self._spaced.doing() if begins else nullcontext():
            self.mark()

    def mark(self) -> None:
        """Take snapshots of the current values."""
        mark_all(self._changing)
        for one in self._others() if self._checking else ():
            one.bits_before = one.bits()
            one.mark()

    def note_changes(self) -> None:
        """Note which values have changed in forward and backward: they will change in other steps, too."""
        for one in self._others() if self._checking else ():
            if one.bits() == one.bits_before:
                one.forget()
            else:
                one.changes = True
                self._changing.append(one)
                self._training.changing.add(one.name)

    def hold(self) -> None:
        """Take snapshots of the other values, because the step is void: changes from now on will be restored, too."""
        mark_all(self._others())

    def back(self) -> None:
        """Restore the snapshots."""
        for one in self._snapshots or ():
            one.back()
        for one in self._others():
            one.forget()  # only values that each step changes keep a copy
        self._training.call_on_restore()

    def phase_ends(self) -> None:
        """End a phase: save the script's values after it, and take snapshots, because another phase may follow."""
        self._training.phases.append({one.name: one.marked for one in self._of_script if one.marked is not None})
        self.mark()

    def repeats(self, phase: int) -> None:
        """Restore the script's values for phase ``phase``, which counts, and which the script runs again: so it decides
        the same. (The snapshots are of the last phase that counts.)
        """
        then = self._training.phases[phase]
        for one in self._of_script:
            if one.name in then:
                one.put(then[one.name])
        self._training.call_on_restore()

    def _others(self) -> list[Snapshot]:
        """Return the snapshots of values that no step has changed."""
        return [one for one in self._snapshots or () if not one.changes]

    def reset(self) -> None:
        """Collect the values anew in the next step, because other parameters may be trained."""
        self._snapshots = None

    def _all(self) -> Iterator[Snapshot]:
        stepped = {id(parameter) for parameter in self._training.trained.trained().values()}
        for name, module in self._training.model.named_modules():
            for key in module._buffers.keys():  # noqa: SIM118  # a scripted module has no other way
                yield TensorSnapshot(f"{name}.{key}", module._buffers, key)
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in stepped:
                    yield TensorSnapshot(f"{name}.{key}", module._parameters, key)
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                yield ObjectSnapshot(f"extra state of {name}", _ExtraState(module))
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
        """Yield the set of trained parameters, and the states and options of optimizers. Few scripts change these in a
        step (by setting a rate, scaling a momentum), so they are handled like large values, unless they are small.
        """
        training, steppers = self._training, self._training.steppers
        trained = StatePair(training.trained.capture, training.trained.restore)
        yield ObjectSnapshot("what is trained", trained, small=self._by_name, of_script=False)
        stepped = StatePair(steppers.capture, training.put_stepped)
        yield ObjectSnapshot("what is stepped", stepped, small=False, copy=in_host_memory)
        few = len(list(steppers.groups())) <= FEW_GROUPS
        options = StatePair(partial(options_of, steppers), partial(set_options, steppers))
        yield ObjectSnapshot("the optimizers' options", options, small=few, of_script=False)


@dataclass(frozen=True, slots=True)
class _ExtraState:
    """The extra state of a module as a state dict."""

    module: nn.Module

    def state_dict(self) -> dict[str, Any]:
        return {"extra": self.module.get_extra_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.module.set_extra_state(state_dict["extra"])
