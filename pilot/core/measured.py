"""What is measured of a trainer: its scaling curve, its rescale costs (MalleTrain's Job Monitor), its checkpoints, and
how often it loses all of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from pilot.core.curve import Curve, is_rate
from pilot.core.spec import TrainerSpec

KEPT_COSTS = 5
"""A trainer's rescale cost is the median of so many, the time of a checkpoint the longest of so many."""

KEPT_OF_POOL = 20
"""What a rescale costs in a pool is the median of so many, of all its trainers."""


@dataclass(slots=True)
class RescaleCosts:
    """The last ``kept`` measured costs of rescales up and down, in seconds."""

    kept: int
    up_s: list[float] = field(default_factory=list)
    down_s: list[float] = field(default_factory=list)

    def note(self, *, up: bool, seconds: float) -> None:
        """Take in what a rescale cost."""
        costs = self.up_s if up else self.down_s
        costs.append(seconds)
        del costs[: -self.kept]

    def median_s(self, *, up: bool) -> float | None:
        """What one costs; None: none was measured."""
        costs = self.up_s if up else self.down_s
        return median(costs) if costs else None


@dataclass(slots=True)
class Measured:
    """The given curve and costs until something is measured, then what was measured (unless ``fixed_curve``)."""

    _spec: TrainerSpec
    wipeouts: int = 0
    _rates: dict[int, float] = field(default_factory=dict)
    _costs: RescaleCosts = field(default_factory=lambda: RescaleCosts(KEPT_COSTS))
    _writes_s: list[float] = field(default_factory=list)
    _trained_s: float = 0.0
    _trains_since_s: float | None = None
    _curve: Curve | None = None

    @property
    def rates(self) -> dict[int, float]:
        """Measured samples per second by nodes, the newest value of each."""
        return dict(self._rates)

    @property
    def curve(self) -> Curve:
        """The scaling curve to plan with."""
        return self._curve or self._spec.curve or Curve.proportional()

    @property
    def known(self) -> bool:
        """Whether somebody has measured or said how fast it is."""
        return self._curve is not None or self._spec.curve is not None

    def rescale_s(self, pool: RescaleCosts, *, up: bool) -> float:
        """R_j^up, or R_j^dw (FreeTrain eq. 13): its own, else what others in its ``pool`` measured, where nobody has
        said what it costs, else what was said or is assumed."""
        spec = self._spec
        if (own_s := self._costs.median_s(up=up)) is not None:
            return own_s
        if spec.assumed_costs and (pool_s := pool.median_s(up=up)) is not None:
            return pool_s
        return spec.rescale_up_s if up else spec.rescale_down_s

    @property
    def write_s(self) -> float | None:
        """What one rank needs for a checkpoint: the longest of the last ones, for a grace must do; None: none yet."""
        return max(self._writes_s, default=None)

    def trained_s(self, now_s: float) -> float:
        """How long it has trained until now."""
        return self._trained_s + (now_s - self._trains_since_s if self._trains_since_s is not None else 0.0)

    def trains(self, now_s: float, *, now: bool) -> None:
        """Take in whether it trains from ``now_s`` on."""
        if now == (self._trains_since_s is not None):
            return
        self._trained_s, self._trains_since_s = self.trained_s(now_s), now_s if now else None

    def wrote(self, alone_s: float) -> None:
        """Take in what writing a checkpoint took."""
        self._writes_s.append(alone_s)
        del self._writes_s[:-KEPT_COSTS]

    def rate(self, nodes: int, samples_per_s: float) -> None:
        """Take in a rate measured on ``nodes`` nodes; a falling curve is valid, a rate of 0 is no measure, nor is one
        that no machine can have."""
        if samples_per_s <= 0 or not is_rate(samples_per_s):
            return
        self._rates[nodes] = samples_per_s
        if not self._spec.fixed_curve:
            self._curve = Curve.of(sorted(self._rates.items()))

    def cost(self, grew: bool, seconds: float) -> None:
        """Take in what a rescale up (``grew``) or down cost."""
        if not self._spec.fixed_curve:
            self._costs.note(up=grew, seconds=seconds)
