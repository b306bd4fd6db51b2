"""Which parameters are trained, and in which group of which optimizer: a part of the state, so a script may change it.

The known parameters are those of the model and the optimizers when the session is created. They have the model's names;
those that only an optimizer has are named by ``param_names``, or ``optimizer.(its name.)group.number``. When a rank
takes over a state, its parameters are frozen or unfrozen, its optimizers' groups are created, and its modules' training
or evaluation modes are set as in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from pilot.core.errors import UserError
from pilot.train.state.stepper import Stepper, Steppers

SUMMED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
"""The dtypes of parameters whose gradients can be summed."""

Rows = dict[str, Any]


class TrainedSet:
    """The trained set of one session.

    ``named``: the known parameters; ``bare``: those of them that are in no model; ``empty``: those without elements.
    """

    def __init__(self, model: nn.Module, steppers: Steppers) -> None:
        self._model = model
        self._steppers = steppers
        self._modelled = dict(model.named_parameters())
        self.bare = dict(_bare(self._modelled, steppers))
        self.named: dict[str, nn.Parameter] = self._modelled | self.bare
        self._parameters = list(self.named.values())
        self.empty = [parameter for parameter in self._parameters if not parameter.numel()]
        self._name_of = {id(parameter): name for name, parameter in self.named.items()}
        self._readding = [_Readding(optimizer) for optimizer in steppers.optimizers.values()]
        self._laid_out = self._now()
        self._saved = model.state_dict().keys()
        self._layouts = {name: _layout(p) for name, p in self.named.items()}

    def of(self, stepper: Stepper) -> list[nn.Parameter]:
        """The parameters that ``stepper`` steps, in the model's order. If several are stepped separately, a script may
        freeze the parameters of one while it trains another, so these are all parameters in its groups.
        """
        its = {id(p) for group in stepper.groups() for p in group["params"]}
        return [
            p
            for p in self.named.values()
            if id(p) in its and p.numel() and (p.requires_grad or (self._steppers.by_name and p.dtype in SUMMED))
        ]

    def trained(self) -> dict[str, nn.Parameter]:
        """The trained parameters of all optimizers, by name."""
        its = {id(p) for stepper in self._steppers for p in self.of(stepper)}
        return {name: p for name, p in self.named.items() if id(p) in its}

    def changed(self) -> bool:
        """Whether it has changed since the last :meth:`laid_out`; for the cost see ``benchmarks.guards``."""
        return self._now() != self._laid_out

    def laid_out(self) -> None:
        """The exchange now matches the current set."""
        self._laid_out = self._now()

    def check_step(self) -> None:
        """:class:`UserError` if it has changed since the pass over the loader began, because other nodes would not
        know."""
        if self.changed():
            raise UserError(
                f"{self._difference()} between two batches: change what is trained inside session.epochs but"
                " before the loop over the loader, so that all nodes do it between the same two steps"
            )

    def check_frozen(self) -> None:
        """:class:`UserError` if torch would step a frozen parameter, because it has a gradient from before."""
        for _, parameter in of_groups(self._steppers):
            if not parameter.requires_grad and parameter.grad is not None:
                raise UserError(
                    f"the parameter {self._name_of[id(parameter)]} was frozen and still has a gradient, of zero or of"
                    " the last step before, with which torch would step it, but on a node that joins it has none: call"
                    " zero_grad() without set_to_none=False, for it too"
                )

    def check_model(self) -> None:
        """:class:`UserError` if there are unknown parameters; walks over all modules."""
        now = dict(self._model.named_parameters())
        if names := sorted(now.keys() ^ self._modelled.keys()):
            raise UserError(f"the model's parameters have changed since the session was created ({names[0]}){_INSTEAD}")
        if names := [name for name, p in now.items() if p is not self._modelled[name]]:
            raise UserError(
                f"another parameter has taken the place of {names[0]} since the session was created; the optimizer has"
                " the one from before: write into that one (.data.copy_(...), load_state_dict), or if forward computes"
                " it and no gradient trains it, make it a buffer (register_buffer)"
            )
        if names := sorted(self._model.state_dict().keys() ^ self._saved):
            raise UserError(
                f"the names in the model's state_dict() have changed since the session was created ({names[0]}): nodes"
                " that join later could not load it. Register buffers in __init__, or with persistent=False"
            )
        for name, parameter in self.named.items():
            if parameter.requires_grad and _layout(parameter) != self._layouts[name]:
                raise UserError(
                    f"the parameter {name} has another dtype, device or memory format than when the session was"
                    " created: call model.to(...) before pilot.train.session, and create the optimizer after it"
                )
        stepped = set()
        for place, parameter in of_groups(self._steppers):
            stepped.add(id(parameter))
            if id(parameter) not in self._name_of:
                raise UserError(f"{place} was added after the session was created{_INSTEAD}")
        for name, parameter in self._modelled.items():
            if parameter.requires_grad and id(parameter) not in stepped:
                raise UserError(
                    f"the model's parameter {name} was unfrozen but the optimizer does not have it: add it with"
                    " add_param_group"
                )

    def capture(self) -> Rows:
        """The set as part of the state, with the modules' modes; the groups' options are in the optimizers' states."""
        evaluating = [name for name, module in self._model.named_modules() if not module.training]
        return self.members() | {"evaluating": evaluating}

    def members(self) -> Rows:
        """Which parameters require a gradient, and in which groups they are."""
        return {
            "requires_grad": [name for name, parameter in self.named.items() if parameter.requires_grad],
            "groups": {
                name: [[self._name_of[id(p)] for p in group["params"]] for group in optimizer.param_groups]
                for name, optimizer in self._steppers.optimizers.items()
            },
        }

    def described(self) -> dict[str, str]:
        """A description to compare. (Without what a script may freeze within a step.)"""
        groups = {f"the groups of the optimizer {name}": str(its) for name, its in self.members()["groups"].items()}
        if self._steppers.by_name:
            return groups
        return groups | {
            f"the parameter {name}": "trained" if parameter.requires_grad else "frozen"
            for name, parameter in self.named.items()
        }

    def restore(self, rows: Rows) -> None:
        """Restore the result ``rows`` of :meth:`capture`; the optimizers' states are restored afterwards."""
        evaluating, trained = set(rows["evaluating"]), set(rows["requires_grad"])
        for name, module in self._model.named_modules():
            if module.training == (name in evaluating):
                module.training = not module.training
        for name, parameter in self.named.items():
            if parameter.requires_grad != (name in trained):
                parameter.requires_grad_(name in trained)
        for (name, optimizer), readding in zip(self._steppers.optimizers.items(), self._readding, strict=True):
            groups = [[self.named[one] for one in group] for group in rows["groups"][name]]
            for group, parameters in zip(optimizer.param_groups, groups, strict=False):
                group["params"] = parameters
            del optimizer.param_groups[len(groups) :]
            for parameters in groups[len(optimizer.param_groups) :]:
                readding.add(parameters)

    def _now(self) -> tuple[list[bool], list[list[int]]]:
        required = [] if self._steppers.by_name else list(map(_requires_grad, self._parameters))
        return required, [list(map(id, group["params"])) for group in self._steppers.groups()]

    def _difference(self) -> str:
        required, _ = self._laid_out
        for (name, parameter), was in zip(self.named.items(), required, strict=False):
            if parameter.requires_grad != was:
                return f"the parameter {name} was {'frozen' if was else 'unfrozen'}"
        return "the optimizer's parameter groups have changed"


class _Readding:
    """Ignores a script's ``add_param_group`` for a group that there is already: a rank that joins in the middle of an
    epoch runs the beginning of the epoch's body, too.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._add: Callable[[dict[str, Any]], None] = optimizer.add_param_group
        self._optimizer = optimizer
        setattr(optimizer, "add_param_group", self._asked)  # noqa: B010  # the script's own object is watched

    def add(self, parameters: list[nn.Parameter]) -> None:
        """Add a group from the state; its options come with the optimizer's state."""
        first = self._optimizer.param_groups[0] if self._optimizer.param_groups else {}
        names = {"param_names": [str(n) for n in range(len(parameters))]} if "param_names" in first else {}
        self._add({"params": parameters} | names)

    def _asked(self, group: dict[str, Any]) -> None:
        given = group["params"]
        listed = [given] if isinstance(given, torch.Tensor) else list(given)
        its = {id(p[1] if isinstance(p, tuple) else p) for p in listed}
        if any({id(p) for p in held["params"]} == its for held in self._optimizer.param_groups):
            return
        if not isinstance(given, set):  # torch refuses a set
            group["params"] = listed
        self._add(group)


_requires_grad = attrgetter("requires_grad")


def _layout(parameter: nn.Parameter) -> tuple[torch.dtype, torch.device, tuple[int, ...]]:
    return parameter.dtype, parameter.device, parameter.stride()


def of_groups(steppers: Steppers) -> Iterator[tuple[str, nn.Parameter]]:
    """All parameters of the optimizers, with their places."""
    for name, optimizer in steppers.optimizers.items():
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                place = f"the parameter number {index} of group {number} of the optimizer{name and f' {name!r}'}"
                yield place, parameter


def _bare(modelled: Mapping[str, nn.Parameter], steppers: Steppers) -> Iterator[tuple[str, nn.Parameter]]:
    known = {id(parameter) for parameter in modelled.values()}
    taken = set(modelled)
    for optimizer_name, optimizer in steppers.optimizers.items():
        for number, group in enumerate(optimizer.param_groups):
            names = group.get("param_names", [])
            for index, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    known.add(id(parameter))
                    by_place = f"optimizer.{optimizer_name and f'{optimizer_name}.'}{number}.{index}"
                    name = names[index] if names and names[index] not in taken else by_place
                    taken.add(name)
                    yield name, parameter


_INSTEAD = (
    ": nodes that join later would not have it. Create all parameters before pilot.train.session; freeze those that"
    " are for later (requires_grad_(False)), and unfreeze them, or add their group, when it is time"
)
