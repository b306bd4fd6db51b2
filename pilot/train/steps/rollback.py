"""Restores what a forward pass, or the script between two steps, may change besides the optimizers' parameters, so that
after a void step its batch runs again as if for the first time.

This includes the models' buffers, extra states and plain attributes, all parameters (a script may decay weights before
``session.step``), tracked objects, the optimizers' options and states, and, if optimizers are stepped separately,
``session.state``. A successful step must cost almost nothing, so:

* Small values are copied when a step begins. Version counters would not suffice: batch norm's statistics and writes
through ``.data`` do not change them. * Large values, and plain attributes, are copied only if they were seen to change
between a step's beginning and its sum: their bits are compared in the first step, and in epochs' first steps (a network
may begin to grow in a later epoch). From then on that is known, also to ranks that take over the state. * The rest is
copied when a step turns out to be void, so what the script does after ``session.step`` is restored, too.

Until it is known what changes, in those steps, all are copied: large ones into host memory, where there is space.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from pilot.checkpoint import checksums
from pilot.checkpoint.shards import local_of
from pilot.checkpoint.tree import copied
from pilot.train.looks.spaced import Spaced
from pilot.train.script import refusal
from pilot.train.state.block import encoded
from pilot.train.state.catch_up import Stateful
from pilot.train.state.loading import load
from pilot.train.state.module_numbers import ModuleNumbers, put_in
from pilot.train.state.stepper import options_of, set_options
from pilot.train.state.training import Training
from pilot.train.steps.optimizer_rollback import OptimizerStates

SMALL_BYTES = 1 << 20
"""Size of one tensor, or of all of a tracked object, below which copying is cheaper than checking."""
_SHOWN = 5
_PARTS = 1000
_FIRST_LOOKS = 4
"""Looks in epochs' first steps take one of so many parts of the time, but for the first ones."""
FEW_GROUPS = 16
"""So many groups of options cost less to copy than to think about."""


class Rollback:
    """The rollback of one session. It restores what was *marked*.

    Parameters
    ----------
    training : of the session
    with_user : whether ``session.state`` is restored
    """

    def __init__(self, training: Training, *, with_user: bool) -> None:
        self._training = training
        self._with_user = with_user
        self._kept: list[_Kept] | None = None
        self._changing: list[_Kept] = []
        self._set_at_first: list[_Trained] = []
        self._looking = self._is_first = self._is_kept = False
        self._epoch: int | None = None
        self._spaced = Spaced(_PARTS, _FIRST_LOOKS)

    def begin(self) -> None:
        """A step begins, or is repeated."""
        if self._is_kept:
            self._forget()
        self._is_first = self._kept is None
        if self._kept is None:
            self._kept = list(self._look_around())
            self._changing = [one for one in self._kept if one.changes]
        begins = not self._is_first and self._epoch != self._training.position.epoch and self._spaced.is_due()
        self._looking = self._is_first or begins
        self._epoch = self._training.position.epoch
        with self._spaced.doing() if begins else nullcontext():
            self.mark()

    def mark(self) -> None:
        """Remember the current values."""
        _mark(self._changing)
        if self._looking:
            for one in self._kept or ():
                if not one.changes:
                    one.bits_before = one.bits()
                    one.mark()

    def seen(self) -> None:
        """Forward and backward are over: what changed in the first step will change in others."""
        if self._set_at_first and not self._is_first:
            self._tell_of_first()
        if self._looking:
            for one in self._kept or ():
                if one.changes:
                    continue
                if one.bits() == one.bits_before:
                    one.forget()
                else:
                    one.changes = True
                    self._changing.append(one)
                    self._training.changing.add(one.name)
                    if self._is_first and isinstance(one, _Trained) and one.is_set:
                        self._set_at_first.append(one)

    def hold(self) -> None:
        """The step is void: what the script changes from now on will be restored, too."""
        _mark([one for one in self._kept or () if not one.changes])

    def back(self) -> None:
        """Restore the marked values."""
        self._restore()
        self._forget()
        self._training.tell_restored()

    def keep(self) -> Callable[[], None]:
        """Mark everything as it is now, until the next step begins; returns what restores it."""
        _mark(self._kept or ())
        self._is_kept = True
        return self._restore

    def _restore(self) -> None:
        for one in self._kept or ():
            one.back()

    def _forget(self) -> None:
        """Keep copies only of what each step changes."""
        self._is_kept = False
        for one in self._kept or ():
            if not one.changes:
                one.forget()

    def look_again(self) -> None:
        """Other parameters are trained."""
        self._kept = None

    def _tell_of_first(self) -> None:
        """The second step: tell of parameters that only the first one has set."""
        names = [one.name.removeprefix("trained ") for one in self._set_at_first if not one.has_changed]
        self._set_at_first = []
        if names:
            refusal.note(
                f"the script sets parameters in its first step, and not in the second ({', '.join(names[:_SHOWN])}"
                f"{', ...' if len(names) > _SHOWN else ''}); if it computes them from the first batch (ActNorm) or"
                " draws them, nodes that begin together have different ones, and the trainer stops: run one batch"
                " through the model before pilot.train.session"
            )

    def _look_around(self) -> Iterator[_Kept]:
        for one in self._all():
            one.changes = one.small or one.name in self._training.changing
            yield one

    def _all(self) -> Iterator[_Kept]:
        trained = {id(parameter) for parameter in self._training.trained.trained().values()}
        for name, module in self._training.model.named_modules():
            for key in module._buffers.keys():  # noqa: SIM118  # a scripted module has no other way
                yield _Slot(f"{name}.{key}", module._buffers, key)
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in trained:
                    yield _Slot(f"{name}.{key}", module._parameters, key)
            if _has_extra_state(module):
                yield _Object(f"extra state of {name}", _Extra(module))
        for name, tracked in self._training.tracked.items():
            yield _Object(f"tracked {name}", tracked)
        yield self._options()
        yield OptimizerStates(self._training.steppers)
        numbers = self._training.numbers
        for path, module in numbers.modules():
            yield _Attributes(f"plain attributes of {path}", _Numbers(numbers, module))
        for name, parameter in self._training.trained.trained().items():
            yield _Trained(f"trained {name}", parameter)
        if self._with_user:
            yield _Object("session.state", _User(self._training.user))

    def _options(self) -> _Values:
        """The options of all parameter groups: a script may set a rate for one step."""
        steppers = self._training.steppers
        few = sum(len(one.param_groups) for one in steppers.optimizers.values()) <= FEW_GROUPS
        read, write = partial(options_of, steppers), partial(set_options, steppers)
        return _Values("the optimizers' options", read, write, small=few)


class _Kept(Protocol):
    """Something that can be restored.

    ``changes``: it may change in a forward pass; ``bits_before``: its previous value, while that is not known yet.
    """

    name: str
    changes: bool
    bits_before: Any

    @property
    def small(self) -> bool: ...

    def bits(self) -> Any: ...

    def mark(self) -> None: ...

    def back(self) -> None: ...

    def forget(self) -> None: ...


class _Slot:
    """A tensor of a module, which a forward pass may change or replace."""

    def __init__(self, name: str, holder: dict[str, Any], key: str) -> None:
        self.name = name
        self.changes = False
        self.bits_before: Any = None
        self._holder = holder
        self._key = key
        self.tensor: torch.Tensor | None = None
        self.copy: torch.Tensor | None = None
        self._marked = False

    @property
    def now(self) -> torch.Tensor | None:
        found: torch.Tensor | None = self._holder[self._key]
        return found

    @property
    def small(self) -> bool:
        return self.now is None or self.now.nbytes <= SMALL_BYTES

    @property
    def resized(self) -> bool:
        """Whether its shape was changed in place since it was marked."""
        return self.tensor is not None and self.copy is not None and local_of(self.tensor).shape != self.copy.shape

    def bits(self) -> Any:
        return None if self.now is None else checksums.of_tensors([self.now])

    def mark(self) -> None:
        self.tensor, self._marked = self.now, True
        self.copy = None if self.tensor is None else self._copied(local_of(self.tensor).detach())

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """On a GPU there may be no space for copies of all large ones."""
        return tensor.clone() if self.small or self.changes else tensor.to("cpu", copy=True)

    def back(self) -> None:
        if self._marked:
            if self._holder[self._key] is not self.tensor:
                self._holder[self._key] = self.tensor
            if self.tensor is not None and self.copy is not None:
                # Through .data, because a graph that the step still needs has saved the tensor and would notice a
                # change.
                if self.resized:
                    self.tensor.data = self.copy.to(self.tensor.device, copy=True)
                else:
                    local_of(self.tensor).data.copy_(self.copy)

    def forget(self) -> None:
        self.tensor, self.copy, self._marked = None, None, False


class _Object:
    """What has a state."""

    def __init__(self, name: str, stateful: Stateful) -> None:
        self.name = name
        self.changes = False
        self.bits_before: Any = None
        self._stateful = stateful
        self._state: dict[str, Any] | None = None

    @property
    def small(self) -> bool:
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
        self._state = copied(self._stateful.state_dict())

    def back(self) -> None:
        # Unchanged values are not written: a graph that the step still needs would notice.
        if self._state is not None and self._bits_of(self._state) != self.bits():
            load(copied(self._state), into=self._stateful)

    def forget(self) -> None:
        self._state = None


class _Attributes(_Object):
    """Handled like large values: there are many, and few scripts change them."""

    @property
    def small(self) -> bool:
        return False


class _Trained:
    """A parameter that an optimizer trains, which the script may change, too. The copy is in host memory, because a GPU
    may have no space for it.
    """

    small = False

    def __init__(self, name: str, parameter: torch.Tensor) -> None:
        self.name = name
        self.changes = False
        self.bits_before: Any = None
        self._parameter = parameter
        self._copy: torch.Tensor | None = None

    def bits(self) -> Any:
        return checksums.of_tensors([self._parameter])

    def mark(self) -> None:
        self._copy = local_of(self._parameter).detach().to("cpu", copy=True)

    @property
    def is_set(self) -> bool:
        """Whether all of its numbers are others than when it was marked, and not clamped (to the limits), or masked."""
        now = self._now
        if self._copy is None or not now.numel():
            return False
        return bool((self._copy != now).all()) and bool((now.abs() != now.abs().max()).any())

    @property
    def has_changed(self) -> bool:
        """Since it was marked."""
        return self._copy is not None and not torch.equal(self._copy, self._now)

    @property
    def _now(self) -> torch.Tensor:
        return local_of(self._parameter).detach().to("cpu")

    def back(self) -> None:
        if self._copy is not None:
            local_of(self._parameter).data.copy_(self._copy)

    def forget(self) -> None:
        self._copy = None


class _Values:
    """What is read and written as a whole; if it is not ``small``, it is handled like large values."""

    def __init__(self, name: str, read: Callable[[], Any], write: Callable[[Any], None], *, small: bool) -> None:
        self.name = name
        self.small = small
        self.changes = False
        self.bits_before: Any = None
        self._read, self._write = read, write
        self._values: Any = None

    def bits(self) -> Any:
        return str(self._read())

    def mark(self) -> None:
        self._values = self._read()

    def back(self) -> None:
        if self._values is not None:
            self._write(self._values)

    def forget(self) -> None:
        self._values = None


class _Extra:
    """A module's extra state."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        return {"extra": self._module.get_extra_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._module.set_extra_state(state_dict["extra"])


class _Numbers:
    """The plain attributes of one of the modules."""

    def __init__(self, numbers: ModuleNumbers, module: nn.Module) -> None:
        self._numbers = numbers
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        return self._numbers.of(self._module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        put_in(self._module, state_dict)


class _User:
    """``session.state``."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def state_dict(self) -> dict[str, Any]:
        return self._values

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._values.clear()
        self._values.update(state_dict)


def _has_extra_state(module: nn.Module) -> bool:
    """Whether it has defined one."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _mark(kept: Iterable[_Kept]) -> None:
    """Mark all, with one call for the tensors of a type that have not moved: a GPU copies these all at once."""
    alike: defaultdict[tuple[torch.device, torch.dtype], list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for one in kept:
        if (
            isinstance(one, _Slot)
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
