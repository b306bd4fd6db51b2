"""How well scaling curves are learned: ways to extrapolate measurements on a few nodes, for any curves file.

    python -m benchmarks.curves --curves curves.json --json learned.json

The rate of each curve is known at a few counts and estimated at its others. ``ours`` takes its priors from the other
curves of the file, never from the estimated one. The error is the mean of the absolute logarithm of estimate over truth
at the unknown counts. The value is the actual yield of plans made from the estimates, as a fraction of the best plan's,
for ten trainers drawn from the file on 20 to 300 nodes (throughput as objective, rescales cost nothing). Where nothing
is known, each trainer gets the mean rate of all on one node.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls

from benchmarks.planners import KILOSAMPLES_PER_S, NODES
from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import MeasuredRate, Priors, curve_of, estimates, priors_of
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Problem
from pilot.planners import dp
from pilot.research.traces.workload import read_curves

TRAINERS = 10
POOLS = range(20, 301, 20)
LARGEST = 64
"""An underdetermined fit should not grow before this count."""
FAINT = 1e-4
"""Weight of that preference."""

Known = Sequence[tuple[float, float]]
"""Node counts, ascending, and the rates on them."""


@dataclass(frozen=True, slots=True)
class Row:
    """``known`` counts, the mean ``error`` (None: meaningless without a unit) and the ``value`` of plans."""

    method: str
    known: tuple[float, ...]
    error: float | None
    value: float


def proportional(known: Known, nodes: float) -> float:
    """The rate per node of the last known count holds beyond it; linear in between and below the first."""
    return Curve.of(known).at(nodes)


def _least_squares(known: Known, nodes: float, terms: Callable[[float], list[float]]) -> float:
    """n / r(n) is a sum of ``terms`` with non-negative coefficients, fitted relative to the known points.

    Of equally good fits, the one that grows least is taken.
    """
    rows = [[term * per_s / n for term in terms(n)] for n, per_s in known]
    least = np.diag(terms(LARGEST)) * FAINT * known[0][1] / known[0][0]
    least[0] = 0.0
    factors, _ = nnls(np.array([*rows, *least]), np.array([1.0] * len(known) + [0.0] * len(least)))
    return nodes / float(np.dot(terms(nodes), factors))


def _ernest(nodes: float) -> list[float]:
    """Ernest's terms (NSDI'16), per sample and node."""
    return [1.0, math.log2(nodes), nodes - 1]


def _pollux(nodes: float) -> list[float]:
    """Pollux (OSDI'21), section 3.2, with one batch size per node: on one node, a sync costs nothing."""
    return [1.0, float(nodes > 1), max(0.0, nodes - 2)]


def huawei(known: Known, nodes: float) -> float:
    """n · 0.8^log2 n, through the (geometric) mean of the known points."""
    factor = fmean(math.log(per_s / (n * 0.8 ** math.log2(n))) for n, per_s in known)
    return math.exp(factor) * nodes * 0.8 ** math.log2(nodes)


def fleet(known: Known, nodes: float) -> float:
    """FLEET, eq. 1: the loss of rate per node between the last two known counts repeats with every node."""
    if len(known) < 2 or nodes <= known[-1][0]:
        return proportional(known, nodes)
    (n0, r0), (n1, r1) = known[-2:]
    return nodes * r1 / n1 * (r1 / n1 * n0 / r0) ** ((nodes - n1) / (n1 - n0))


METHODS: dict[str, Callable[[Known, float], float]] = {
    "proportional": proportional,
    "non-negative least squares": partial(_least_squares, terms=_ernest),
    "Pollux's form": partial(_least_squares, terms=_pollux),
    "0.8^log2 n": huawei,
    "FLEET, eq. 1": fleet,
}


def _known(curve: Curve, counts: Sequence[float]) -> Known:
    return [(n, curve.at(n)) for n in counts]


def _points(known: Known) -> tuple[MeasuredRate, ...]:
    return tuple(MeasuredRate(n, per_s) for n, per_s in known)


def _ours(known: Known, priors: Priors, curve: Curve) -> Curve:
    return curve_of(estimates(_points(known), None, priors, math.ceil(curve.nodes[-1])))


def _theirs(method: Callable[[Known, float], float], known: Known, curve: Curve) -> Curve:
    at = dict(known)
    return Curve.of((n, at.get(n) or method(known, n)) for n in curve.nodes[1:])


def guesses(curves: Sequence[Curve], counts: Sequence[float]) -> dict[str, list[Curve]]:
    """By method: the estimate of each of ``curves``, known on ``counts``."""
    found: dict[str, list[Curve]] = {"ours": []}
    mean = fmean(curve.single_node_rate() for curve in curves)
    for number, curve in enumerate(curves):
        others = [_points(_known(c, c.nodes[1:])) for i, c in enumerate(curves) if i != number]
        known = _known(curve, counts)
        ours = _ours(known, priors_of(others), curve)
        found["ours"].append(ours if known else ours.scaled(mean))
    if not counts:
        return found | {"linear": [Curve.proportional(mean)] * len(curves)}
    for name, method in METHODS.items():
        found[name] = [_theirs(method, _known(curve, counts), curve) for curve in curves]
    return found


def error(truth: Sequence[Curve], taken: Sequence[Curve], counts: Sequence[float]) -> float:
    """The mean absolute logarithmic error at the curves' counts that are not in ``counts``."""
    return fmean(
        abs(math.log(guess.at(n) / curve.at(n)))
        for curve, guess in zip(truth, taken, strict=True)
        for n in curve.nodes[1:]
        if n not in counts
    )


def value(truth: Sequence[Curve], taken: Sequence[Curve], draws: int) -> float:
    """The actual yield of plans made from ``taken``, as a fraction of the best."""
    choose, parts = random.Random(1), []
    for _ in range(draws):
        which = choose.choices(range(len(truth)), k=TRAINERS)
        for nodes in POOLS:
            made, best = (_plan([curves[i] for i in which], truth, which, nodes) for curves in (taken, truth))
            parts.append(made / best)
    return fmean(parts)


def _plan(taken: Sequence[Curve], truth: Sequence[Curve], which: Sequence[int], nodes: int) -> float:
    most = [math.ceil(truth[i].nodes[-1]) for i in which]
    candidates = (Candidate(TrainerId(f"t{j}"), 0, 1, most[j], curve, 0.0, 0.0) for j, curve in enumerate(taken))
    counts = dp.plan(Problem(nodes, 120.0, tuple(candidates))).counts
    return sum(truth[i].at(count) for i, (_, count) in zip(which, counts, strict=True))


def measure(curves: Sequence[Curve], counts: Sequence[float], draws: int) -> list[Row]:
    """Every method, with the rates on ``counts`` known."""
    made = guesses(curves, counts).items()
    return [
        Row(name, tuple(counts), error(curves, taken, counts) if counts else None, value(curves, taken, draws))
        for name, taken in made
    ]


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="what is known of a few counts is worth")
    for column in ("method", "known on", "error", "value of the plan"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        on = ", ".join(f"{n:g}" for n in row.known) or "none"
        table.add_row(row.method, on, "-" if row.error is None else f"{row.error:.1%}", f"{row.value:.1%}")
    return table


def _counts(text: str) -> list[float]:
    return [float(n) for n in text.split(",")] if text else []


@click.command()
@click.option("--curves", type=click.Path(path_type=Path), help="Curves file of a replay; else FreeTrain's Table 2.")
@click.option("--known", multiple=True, default=("", "1", "1,4"), show_default=True, help="Counts that are known.")
@click.option("--draws", default=10, show_default=True, help="Sets of ten trainers, each on every pool size.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
def main(curves: Path | None, known: Sequence[str], draws: int, out: Path | None) -> None:
    """Compare ways to extrapolate scaling curves."""
    table2 = [Curve.of(zip(NODES, rates, strict=True)) for rates in KILOSAMPLES_PER_S.values()]
    truth = table2 if curves is None else [rate for rate, _ in read_curves(curves)]
    if len(truth) < 2:
        raise click.UsageError("it takes two curves or more: each has its priors from the others")
    rows = [row for counts in known for row in measure(truth, _counts(counts), draws)]
    Console(width=110).print(_table(rows))
    if out is not None:
        out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
