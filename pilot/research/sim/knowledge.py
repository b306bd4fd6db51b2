"""The core's knowledge of scaling curves in a replay; the true ones are in the curves file.

``truth``: the true curve. ``measured``: the rates that trainers report, with noise (:mod:`pilot.research.sim.driver`);
then the speeds on types of nodes are measured, too, and else they are known.
``guess:...``: a user's guess before the first run, which the core keeps; FreeTrain plans by such a curve if none was
measured (MalleTrain §5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.plan.objective import OBJECTIVES
from pilot.core.trainer.spec import Profiling, TrainerSpec
from pilot.research.traces.workload import WorkloadRow

TRUTH = "truth"
MEASURED = "measured"
LINEAR = "guess:linear"
HUAWEI = "guess:huawei"
OTHER = "guess:other"
FACTOR = "guess:factor"

WORDS = (
    "truth, measured, guess:linear, guess:huawei, guess:other, guess:N (curve N of the file) or guess:factor:SD (SD"
    " from 0 to 1)"
)

FACTOR_SD = 0.3
"""The default spread of the logarithm for ``guess:factor``."""

ReadCurves = Sequence[tuple[Curve, Curve | None]]
"""As :func:`pilot.research.traces.workload.read_curves` gives them."""


def check(know: str) -> str:
    """Return ``know``. Raises UserError if it is not in the vocabulary."""
    if know in (TRUTH, MEASURED, LINEAR, HUAWEI, OTHER, FACTOR) or _curve_index(know) is not None:
        return know
    spread = _spread(know)
    if not 0 <= spread <= 1:
        raise UserError(f"{know!r}: choose from {WORDS}")
    return know


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The core's knowledge of each trainer."""

    know: str = TRUTH  #: a word of the vocabulary
    curves: ReadCurves = ()  #: of the curves file
    profile: Profiling = Profiling.AUTO  #: how trainers are profiled if their curves are measured
    seed: int = 0  #: of the random part of a guess
    share: bool = False  #: trainers on one curve are assumed to run one script, and share measurements

    def spec(self, row: WorkloadRow) -> TrainerSpec:
        """The spec of ``row`` as the core knows it."""
        if self.know == TRUTH:
            return row.spec
        if self.know == MEASURED:
            script = f"curve {row.curve}" if self.share else ""
            unknown = replace(row.spec, curve=None, objective_curve=None, fixed_curve=False, speeds=())
            return replace(unknown, profile=self.profile, script=script)
        return replace(row.spec, curve=self._guess(row), objective_curve=None)

    def _guess(self, row: WorkloadRow) -> Curve:
        truth = row.spec.curve or Curve.proportional()
        one = truth.single_node_rate()
        if self.know == LINEAR:
            return Curve.proportional(one)
        if self.know == HUAWEI:
            return huawei_curve(one, _doublings(row.spec.max_nodes))
        if self.know == OTHER:
            if len(self.curves) < 2:
                raise UserError("--know guess:other: the curves file has one curve, there is no other to guess")
            return self.curves[(row.curve + 1) % len(self.curves)][0]
        if (index := _curve_index(self.know)) is not None:
            if index >= len(self.curves):
                raise UserError(f"--know {self.know}: the curves file has curves 0 to {len(self.curves) - 1}")
            return self.curves[index][0]
        spread, draw = _spread(self.know), Random(f"{self.seed} {row.spec.trainer}")
        return Curve.of((n, truth.at(n) * math.exp(draw.gauss(0, spread))) for n in truth.nodes[1:])


TRUE_CURVES = Knowledge()


def objective_name(curves: ReadCurves) -> str | None:
    """The shipped objective that gives the values of the curves file, for curves that the core does not know; None: the
    file has no values. Raises UserError if no shipped objective gives them."""
    values = [(rate, value) for rate, value in curves if value is not None]
    if not values:
        return None
    spec = TrainerSpec(TrainerId("any"))
    for name in ("throughput", "scaling-efficiency"):
        if all(_same(OBJECTIVES[name](spec, rate), value) for rate, value in values):
            return name
    raise UserError("objective_per_s in the curves file matches no named objective; choose one with --objective")


def _same(one: Curve, other: Curve) -> bool:
    """Whether both curves have the same values, up to rounding."""
    return all(math.isclose(one.at(n), other.at(n), rel_tol=1e-3) for n in other.nodes[1:])


def huawei_curve(one: float, counts: Iterable[int]) -> Curve:
    """The curve of all jobs in Huawei's paper (§5.1): each doubling of the nodes keeps 0.8 of the speed of a node."""
    return Curve.of((n, one * n * 0.8 ** math.log2(n)) for n in counts)


def _doublings(most: int) -> list[int]:
    return sorted({most, *(1 << i for i in range(most.bit_length()))})


def _curve_index(know: str) -> int | None:
    text = know.removeprefix("guess:")
    return int(text) if text != know and text.isascii() and text.isdigit() and len(text) < 10 else None


def _spread(know: str) -> float:
    """The spread of the random factor in ``know``; NaN if it has none."""
    if know == FACTOR:
        return FACTOR_SD
    text = know.removeprefix(f"{FACTOR}:")
    try:
        return float(text) if text != know else math.nan
    except ValueError:
        return math.nan
