"""What one call of ``session.step`` steps: optimizers with their schedulers and loss scaler; and how the learning rate
scales with the group's size when the minibatch per node is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pilot.checkpoint.tree import copied
from pilot.core.errors import UserError
from pilot.train.state.loading import Stateful
from pilot.train.state.optimizer_state import OwnAttributes, layout_of, state_of, take_over, without_constants


class Scheduler(Stateful, Protocol):
    """The part of torch's learning-rate schedulers that we use."""

    def step(self, *metrics: float) -> None:
        """One step of the schedule; ``ReduceLROnPlateau`` takes a measure."""


Scaler = torch.amp.GradScaler
Optimizers = torch.optim.Optimizer | list[torch.optim.Optimizer] | dict[str, torch.optim.Optimizer]
Schedulers = Scheduler | list[Scheduler] | dict[str, Scheduler]
Scalers = Scaler | dict[str, Scaler]


@dataclass(eq=False)
class Stepper:
    """What one call of ``session.step`` steps."""

    name: str  #: by which the script steps it; empty: there is only one
    optimizers: dict[str, torch.optim.Optimizer]
    schedulers: dict[str, Scheduler]
    scaler: Scaler | None
    effective_rate: float = 0.0  #: the last step's learning rate of the first optimizer's first group

    def groups(self) -> Iterator[dict[str, Any]]:
        """The optimizers' parameter groups."""
        for optimizer in self.optimizers.values():
            yield from optimizer.param_groups

    def step(self, factor: float) -> None:
        """Step the optimizers at ``factor`` times their learning rates; see :func:`step_together`."""
        groups = list(self.groups())
        rates = [group["lr"] for group in groups]
        scaled = [rate * factor if factor != 1.0 else rate for rate in rates]
        for group, rate in zip(groups, scaled, strict=True):
            group["lr"] = rate
        self.effective_rate = float(groups[0]["lr"])
        for optimizer in self.optimizers.values():
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)  # unscales, if :meth:`unscale` did not
        for group, rate, given in zip(groups, rates, scaled, strict=True):
            group["lr"] = rate if group["lr"] is given else group["lr"] / factor  # an optimizer may set its own

    def schedule(self, *metrics: float) -> None:
        """Step the schedulers; :class:`UserError` if one has no more steps (``OneCycleLR`` counts them)."""
        for scheduler in self.schedulers.values():
            try:
                scheduler.step(*metrics)
            except ValueError as error:
                raise UserError(
                    f"{type(scheduler).__name__} cannot continue: {error}; create it for all steps of the run (with"
                    " batch_size= an epoch has fewer steps on more nodes, with sync= by how fast each is: count epochs"
                    " with schedule='epoch', or without sync= use global_batch_size=)"
                ) from error

    def unscale(self) -> None:
        """From now on the gradients are those of the unscaled loss."""
        if self.scaler is not None:
            for optimizer in self.optimizers.values():
                self.scaler.unscale_(optimizer)


def step_together(steppers: Sequence[Stepper], factor: float) -> list[Stepper]:
    """Step these. Returns those whose schedulers follow: not if their loss scaler found a gradient that is not finite,
    which is then so on all ranks. Its scale shrinks exactly then; it changes only once all have been stepped, since one
    scaler may serve several.
    """
    scalers = {id(one.scaler): one.scaler for one in steppers if one.scaler is not None}
    scales = {number: scaler.get_scale() for number, scaler in scalers.items()}
    for stepper in steppers:
        stepper.step(factor)
    for scaler in scalers.values():
        scaler.update()
    return [one for one in steppers if one.scaler is None or one.scaler.get_scale() >= scales[id(one.scaler)]]


class Steppers:
    """All steppers of a session, by name.

    Parameters
    ----------
    optimizers : one; or a list, to be stepped together; or a dict, to be stepped by name
    schedulers, scalers : in the same form, if any (one scaler may serve all)
    """

    def __init__(
        self, optimizers: Optimizers, schedulers: Schedulers | None = None, scalers: Scalers | None = None
    ) -> None:
        named = _named(optimizers)
        others = [type(one).__name__ for one in named.values() if not isinstance(one, torch.optim.Optimizer)]
        if not named or others:
            raise UserError(
                "pilot.train.session needs an optimizer: one, a list (stepped together), or a dict (stepped by name)"
                + "".join(f"; a {kind} is none: if it wraps one, pass that one" for kind in others[:1])
            )
        self.by_name = isinstance(optimizers, dict)
        self.optimizers: dict[str, torch.optim.Optimizer] = named
        self._attributes = {name: OwnAttributes(one) for name, one in named.items()}
        self.schedulers: dict[str, Scheduler] = _named(schedulers)
        _check_form("scheduler", schedulers, optimizers)
        _check_form("scaler", None if isinstance(scalers, Scaler) else scalers, optimizers)
        if not self.by_name:
            self._of = {"": Stepper("", named, self.schedulers, None if isinstance(scalers, dict) else scalers)}
        else:
            self._of = {
                name: Stepper(
                    name,
                    {name: optimizer},
                    {name: self.schedulers[name]} if name in self.schedulers else {},
                    scalers.get(name) if isinstance(scalers, dict) else scalers,
                )
                for name, optimizer in named.items()
            }

    def __iter__(self) -> Iterator[Stepper]:
        return iter(self._of.values())

    def groups(self) -> Iterator[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        for stepper in self:
            yield from stepper.groups()

    def named(self, name: str | None) -> list[Stepper]:
        """The steppers called ``name``; None: all."""
        if name is None:
            return list(self)
        if not self.by_name or name not in self._of:
            known = ", ".join(map(repr, self._of)) if self.by_name else "none: one call steps all optimizers"
            raise UserError(f"session.step: no optimizer is named {name!r}; the names are {known}")
        return [self._of[name]]

    @property
    def scalers(self) -> dict[str, Scaler]:
        """All, by name; one that serves several has the name of the first."""
        found: dict[str, Scaler] = {}
        for stepper in self:
            if stepper.scaler is not None and all(stepper.scaler is not one for one in found.values()):
                found[stepper.name] = stepper.scaler
        return found

    def capture(self) -> dict[str, Any]:
        """The states: of a single optimizer directly, of several by name."""
        states = {name: state_of(one) for name, one in self.optimizers.items()}
        return {
            "optimizer": _form(states),
            "layout": {name: layout_of(self.optimizers[name], state) for name, state in states.items()},
            "attributes": {name: one.capture() for name, one in self._attributes.items()},
            "scheduler": _form({name: _state_of_schedule(one) for name, one in self.schedulers.items()}),
            "scaler": _form({name: one.state_dict() for name, one in self.scalers.items()}),
        }

    def without_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``state``, a result of :meth:`capture`, without the optimizers' states."""
        optimizers = {name: {**_of(state["optimizer"], name), "state": {}} for name in self.optimizers}
        return {**state, "optimizer": _form(optimizers), "layout": {name: [] for name in self.optimizers}}

    def with_own_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``state``, a result of :meth:`capture`, with the states of this process's optimizers and scalers; the
        options of groups, and schedulers, stay those of ``state``.
        """
        own = self.capture()
        optimizers = {
            name: {**_of(state["optimizer"], name), "state": _of(own["optimizer"], name)["state"]}
            for name in self.optimizers
        }
        return {**state, **own, "optimizer": _form(optimizers), "scheduler": state["scheduler"]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a result of :meth:`capture`."""
        for name, optimizer in self.optimizers.items():
            take_over(optimizer, copied(_of(state["optimizer"], name)), state["layout"][name])
            self._attributes[name].restore(state["attributes"][name])
        for name, scheduler in self.schedulers.items():
            scheduler.load_state_dict(copied(_of(state["scheduler"], name)))
        for name, scaler in self.scalers.items():
            if state["scaler"]:  # of an enabled one
                scaler.load_state_dict(copied(_of(state["scaler"], name)))


def options_of(steppers: Steppers, *, scheduled: bool = True) -> dict[str, Any]:
    """The current options of all groups, but for constants; without ``scheduled``, except those set by a scheduler."""
    left_out = ("params", "param_names", *(("lr", "initial_lr") if steppers.schedulers and not scheduled else ()))
    groups = map(without_constants, steppers.groups())
    return {"groups": [copied({key: one for key, one in group.items() if key not in left_out}) for group in groups]}


def set_options(steppers: Steppers, options: Mapping[str, Any]) -> None:
    """Restore a result of :func:`options_of`. (There may be more groups by now.)"""
    for group, its in zip(steppers.groups(), options["groups"], strict=False):
        group.update(copied(its))


def _form(states: dict[str, Any]) -> dict[str, Any]:
    """The form in which states are saved: without the name if there is only one."""
    return states[""] if list(states) == [""] else states


def _of(state: Mapping[str, Any], name: str) -> Any:
    return state[name] if name else state


def _named(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, dict):
        return dict(given)
    if isinstance(given, list | tuple):
        return {str(number): one for number, one in enumerate(given)}
    return {"": given}


def _check_form(what: str, given: Any, optimizers: Any) -> None:
    if given is None or isinstance(given, dict) == isinstance(optimizers, dict):
        unknown = sorted(set(given or ()) - set(optimizers)) if isinstance(given, dict) else []
        if not unknown:
            return
    raise UserError(
        f"pilot.train.session: with a dict of optimizers, which are stepped by name, pass the {what}s as a dict with"
        " the same names; with optimizers that are stepped together, do not pass a dict"
    )


def _state_of_schedule(scheduler: Scheduler) -> dict[str, Any]:
    """:class:`UserError` if it asks a function of the script's for attributes that it does not have (``__slots__``)."""
    try:
        return scheduler.state_dict()
    except AttributeError as error:
        if error.name != "__dict__":
            raise
        raise UserError(
            f"{type(scheduler).__name__} gives no state: {error}; torch saves the attributes of an object that it calls"
            " as a function: its class must not have __slots__, or pass a function"
        ) from error


RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt, "none": lambda _: 1.0}
"""The factor on the learning rate for k times the batch (linear: Goyal et al. 2017; sqrt: Krizhevsky 2014)."""


@dataclass(slots=True)
class LearningRate:
    """The learning rates of the optimizer's groups (and their scheduler) are those of one node."""

    rule: str | None  #: one of ``RULES``; None: the script gives none, so its batch does not grow with the nodes
    nodes: int = 1  #: the batch is this many times that of one node

    def __post_init__(self) -> None:
        if self.rule not in (None, *RULES):
            raise UserError(f"lr_rule must be one of {', '.join(RULES)}; got {self.rule!r}")

    @property
    def factor(self) -> float:
        """The factor on them."""
        return RULES[self.rule or "none"](self.nodes)
