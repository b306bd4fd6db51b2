"""What is measured of a trainer: its scaling curve and its rescale costs (MalleTrain's Job Monitor)."""

from __future__ import annotations

from statistics import median

from pilot.core.curve import Curve
from pilot.core.spec import TrainerSpec

KEPT_COSTS = 5
"""A rescale cost is the median of so many: one slow file system does not make a trainer immovable."""


class Measured:
    """The given curve and costs until something is measured, then what was measured (unless ``fixed_curve``)."""

    def __init__(self, spec: TrainerSpec) -> None:
        self._spec = spec
        self._rates: dict[int, float] = {}
        self._up_s: list[float] = []
        self._down_s: list[float] = []
        self._curve = spec.curve or Curve.proportional()

    @property
    def rates(self) -> dict[int, float]:
        """Measured samples per second by nodes, the newest value of each."""
        return dict(self._rates)

    @property
    def curve(self) -> Curve:
        """The scaling curve to plan with."""
        return self._curve

    @property
    def rescale_up_s(self) -> float:
        """R_j^up (FreeTrain eq. 13)."""
        return median(self._up_s) if self._up_s else self._spec.rescale_up_s

    @property
    def rescale_down_s(self) -> float:
        """R_j^dw (FreeTrain eq. 13)."""
        return median(self._down_s) if self._down_s else self._spec.rescale_down_s

    def rate(self, nodes: int, samples_per_s: float) -> None:
        """Take in a rate measured on ``nodes`` nodes; a falling curve is valid, a rate of 0 is no measure."""
        if samples_per_s <= 0:
            return
        self._rates[nodes] = samples_per_s
        if not self._spec.fixed_curve:
            self._curve = Curve.of(sorted(self._rates.items()))

    def cost(self, grew: bool, seconds: float) -> None:
        """Take in what a rescale up (``grew``) or down cost."""
        if self._spec.fixed_curve:
            return
        kept = self._up_s if grew else self._down_s
        kept.append(seconds)
        del kept[:-KEPT_COSTS]
