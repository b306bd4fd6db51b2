"""How the learning rate scales with the group's size when the minibatch per node is fixed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pilot.core.errors import UserError

RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt, "none": lambda _: 1.0}
"""By name: the factor on the learning rate with k times the batch (linear: Goyal et al. 2017; sqrt: Krizhevsky
2014).
"""


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
