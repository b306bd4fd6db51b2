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


@dataclass(frozen=True, slots=True)
class LearningRate:
    """The factor on the learning rates of the optimizer's groups (and their scheduler).

    After a change of size it moves linearly from the old factor to the new one over ``warmup_steps``, beginning with
    step ``changed_step``. It starts at 1, the factor of one node.
    """

    rule: str
    warmup_steps: int = 0
    old: float = 1.0
    new: float = 1.0
    changed_step: int = 0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UserError(f"lr_rule must be one of {', '.join(RULES)}; got {self.rule!r}")
        if self.warmup_steps < 0:
            raise UserError(f"warmup_steps must not be negative, got {self.warmup_steps}")

    def factor(self, step: int) -> float:
        """The factor for step ``step``."""
        if self.old == self.new or step >= self.changed_step + self.warmup_steps:
            return self.new
        return self.old + (self.new - self.old) * (step - self.changed_step + 1) / (self.warmup_steps + 1)

    def resized(self, nodes: int, step: int) -> LearningRate:
        """From ``step`` on the batch is ``nodes`` times that of one node."""
        new = RULES[self.rule](nodes)
        if new == self.new:
            return self
        old = self.factor(step - 1) if step > 0 else self.old
        return LearningRate(self.rule, self.warmup_steps, old, new, step)
