"""What a user says of a trainer."""

from __future__ import annotations

from dataclasses import dataclass

from pilot.core.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """One elastic training task as submitted.

    Parameters
    ----------
    trainer : its id
    min_nodes, max_nodes : the sizes on which it can run (FreeTrain §3.1)
    curve : samples per second by nodes; None: proportional until measured
    fixed_curve : keep the given curve, whatever is measured
    rescale_up_s, rescale_down_s : what a rescale costs; updated by what is measured unless ``fixed_curve``
    priority : factor for the priority-weighted objective
    objective_curve : value per second by nodes where it is not derived from ``curve`` (replays of published sets)
    """

    trainer: TrainerId
    min_nodes: int = 1
    max_nodes: int = 64
    curve: Curve | None = None
    fixed_curve: bool = False
    rescale_up_s: float = 20.0
    rescale_down_s: float = 10.0
    priority: float = 1.0
    objective_curve: Curve | None = None

    def __post_init__(self) -> None:
        if self.min_nodes < 1:
            raise UserError(f"trainer {self.trainer}: min_nodes must be at least 1, got {self.min_nodes}")
        if self.min_nodes > self.max_nodes:
            raise UserError(f"trainer {self.trainer}: min_nodes {self.min_nodes} exceeds max_nodes {self.max_nodes}")
        if self.rescale_up_s < 0 or self.rescale_down_s < 0:
            raise UserError(f"trainer {self.trainer}: a rescale cost is negative; give seconds, 0 or more")
        if not self.priority > 0:
            raise UserError(f"trainer {self.trainer}: priority must be greater than 0, got {self.priority}")
