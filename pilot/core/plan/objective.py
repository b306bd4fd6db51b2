"""The objective of plans: O_j, the value per second of a trainer on n nodes (FreeTrain §3.1 and §5.2)."""

from __future__ import annotations

import math
from collections.abc import Callable

from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.trainer.spec import TrainerSpec

Objective = Callable[[TrainerSpec, Curve], Curve]
"""From a trainer and its scaling curve (samples per second) to its value per second."""


def throughput(_spec: TrainerSpec, curve: Curve) -> Curve:
    """Samples per second. Favours fast trainers over heavy ones."""
    return curve


def scaling_efficiency(_spec: TrainerSpec, curve: Curve) -> Curve:
    """Throughput in units of the trainer's own rate on one node: n nodes at full efficiency are worth n."""
    single = curve.single_node_rate()
    return curve.scaled(1.0 / single) if single > 0 else curve


def priority_weighted(spec: TrainerSpec, curve: Curve) -> Curve:
    """Scaling efficiency times the trainer's priority."""
    return scaling_efficiency(spec, curve).scaled(spec.priority)


def mean_completion_time(spec: TrainerSpec, curve: Curve) -> Curve:
    """Scaling efficiency, which plans weight by the work left (:mod:`pilot.core.plan.remaining`)."""
    return scaling_efficiency(spec, curve)


IN_NODES = (scaling_efficiency, priority_weighted)
"""In units of the trainer's own rate on one node."""

OBJECTIVES: dict[str, Objective] = {
    "scaling-efficiency": scaling_efficiency,
    "throughput": throughput,
    "priority": priority_weighted,
    "mean-completion-time": mean_completion_time,
}

_ONE_NODE = "seconds of its training on one node"
_UNITS = {
    "scaling-efficiency": _ONE_NODE,
    "throughput": "samples",
    "priority": f"{_ONE_NODE} times its priority",
    "mean-completion-time": "trainers completed",
}


def worth_sentence(objective: str) -> str:
    """In which unit an objective counts what a plan is worth, in words."""
    unit = _UNITS.get(objective)
    return f"The worth is counted in {unit}." if unit else f"The worth is what {objective} returns, times seconds."


def per_node_value(value: Callable[[TrainerSpec, int], float], name: str = "of the user") -> Objective:
    """An objective from a user's function of (trainer, nodes) → value per second, evaluated at every node count.

    It raises :class:`UserError` with ``name`` if the function fails or returns an invalid value.
    """

    def objective(spec: TrainerSpec, _curve: Curve) -> Curve:
        return Curve.of((n, _value(value, name, spec, n)) for n in range(1, spec.max_nodes + 1))

    return objective


def _value(value: Callable[[TrainerSpec, int], float], name: str, spec: TrainerSpec, nodes: int) -> float:
    where = f"the objective {name}, of trainer {spec.trainer} on {nodes} nodes,"
    try:
        found = float(value(spec, nodes))
    except Exception as error:  # whatever a user's function raises
        raise UserError(f"{where} fails: {type(error).__name__}: {error}") from None
    if not 0 <= found < math.inf:
        raise UserError(f"{where} is {found}; it must be a finite number, 0 or more")
    return found


def named_objective(name: str) -> Objective:
    """The shipped objective ``name``."""
    if name not in OBJECTIVES:
        raise UserError(f"no objective named {name!r}; there are {', '.join(OBJECTIVES)}, and module:function")
    return OBJECTIVES[name]
