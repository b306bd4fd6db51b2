"""Whether the reported errors of rates match the actual ones: of estimated ones, on a file's curves and on other forms,
and of measured ones.

    python -m benchmarks.curve_errors --curves curves.json --json errors.json

Each curve is known at a few node counts and estimated at its others: a file's curves with priors from the file's other
curves, the other forms with the priors of a pool that has learned nothing. z is the logarithm of estimate over truth,
divided by the reported error; if reported errors are honest, its root mean square is 1, and 68% are within 1 and 95%
within 2. The other forms are random, with a fixed seed: Amdahl's law, Ernest's and Pollux's terms, a ring allreduce,
powers of n.

Measured rates are those of a trainer that comes back to one count again and again, each time for one to five minutes
and after ten minutes to two hours. Its rate is a random walk, each visit has a factor of its own (other nodes, other
load), and so has each report (correlated over ten seconds, as medians of the last steps are). The truth is the rate
that the next visit would find.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import click
from rich.console import Console
from rich.table import Table

from benchmarks.planners import KILOSAMPLES_PER_S, NODES
from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import ON_SUMMIT, MeasuredRate, Priors, estimates, priors_of
from pilot.core.curves.measured import Measured
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.research.traces.workload import read_curves

DRAWN = 30
KNOWN = ("1", "1,4", "1,16", "1,64")


def _drawn(draw: random.Random, mean: float) -> float:
    return math.exp(draw.gauss(mean, 1.0))


def _amdahl(draw: random.Random) -> Callable[[float], float]:
    serial = _drawn(draw, -5.0)
    return lambda n: 1 + serial * (n - 1)


def _ernest(draw: random.Random) -> Callable[[float], float]:
    tree, all_to_one = _drawn(draw, -3.5), _drawn(draw, -6.0)
    return lambda n: 1 + tree * math.log2(n) + all_to_one * (n - 1)


def _pollux(draw: random.Random) -> Callable[[float], float]:
    sync, each = _drawn(draw, -3.0), _drawn(draw, -5.5)
    return lambda n: 1 + sync * (n > 1) + each * max(0.0, n - 2)


def _ring(draw: random.Random) -> Callable[[float], float]:
    sync = _drawn(draw, -2.5)
    return lambda n: 1 + sync * 2 * (n - 1) / n


def _power(draw: random.Random) -> Callable[[float], float]:
    loss = abs(draw.gauss(0, 0.08))
    return lambda n: n**loss


FORMS = {"Amdahl's law": _amdahl, "Ernest's terms": _ernest, "Pollux's terms": _pollux, "ring": _ring, "power": _power}


@dataclass(frozen=True, slots=True)
class Load:
    """By how much the rate on one count varies, relative standard deviations: ``reports`` of a second, ``visits``, and
    its random walk ``per_hour``."""

    reports: float
    visits: float
    per_hour: float


LOADS = {
    "calm": Load(0.01, 0.01, 0.0),
    "noisy": Load(0.1, 0.02, 0.02),
    "shared": Load(0.05, 0.1, 0.02),
    "drifting": Load(0.03, 0.02, 0.06),
}
VISITS = (1, 2, 8)
TRAINERS = 100
CORRELATED = math.exp(-1 / 10)
"""Of one report with the next, a second later."""


@dataclass(frozen=True, slots=True)
class Row:
    """``curves`` known on the counts ``known``, or a rate measured in so many visits: root mean squares of the actual
    error, the reported one, and ``z``; the shares within one and two reported errors (``within_1``, ``within_2``)."""

    curves: str
    known: tuple[int, ...]
    made: float
    told: float
    z: float
    within_1: float
    within_2: float


def measure(name: str, curves: Sequence[Curve], priors: Sequence[Priors], known: Sequence[int]) -> Row:
    """Estimate each of ``curves``, with its ``priors``, at those of its counts that are not ``known``."""
    made: list[float] = []
    told: list[float] = []
    for curve, prior in zip(curves, priors, strict=True):
        points = tuple(MeasuredRate(n, curve.at(n)) for n in known)
        for estimate in estimates(points, None, prior, int(curve.nodes[-1])):
            if estimate.nodes in curve.nodes and not estimate.measured:
                made.append(math.log(estimate.per_s / curve.at(estimate.nodes)))
                told.append(estimate.error)
    return _row(name, known, made, told)


def measure_again(name: str, load: Load, visits: int) -> Row:
    """Visit one count ``visits`` times under ``load``, with each of many trainers."""
    draw, made, told = random.Random(1), [], []
    for _ in range(TRAINERS):
        measured, walk, now_s = Measured(TrainerSpec(TrainerId("t"), max_nodes=1)), 0.0, 0.0
        for visit in range(visits):
            now_s += (away_s := draw.uniform(600.0, 7200.0))
            walk += draw.gauss(0, load.per_hour * math.sqrt(away_s / 3600))
            here, noise = walk + draw.gauss(0, load.visits), draw.gauss(0, load.reports)
            for _ in range(draw.randint(60, 300)):
                now_s += 1.0
                noise = noise * CORRELATED + draw.gauss(0, load.reports * math.sqrt(1 - CORRELATED**2))
                measured.rate(now_s, 1, math.exp(here + noise), visit)
        (point,) = measured.points
        made.append(math.log(point.per_s) - walk - draw.gauss(0, load.visits))
        told.append(point.error)
    return _row(f"measured, {name}", (visits,), made, told)


def _row(name: str, known: Sequence[int], made: Sequence[float], told: Sequence[float]) -> Row:
    z = [error / deviation for error, deviation in zip(made, told, strict=True)]
    within = [fmean(abs(one) < most for one in z) for most in (1, 2)]
    return Row(name, tuple(known), _rms(made), _rms(told), _rms(z), *within)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(fmean(value * value for value in values))


def others_say(curves: Sequence[Curve]) -> list[Priors]:
    """For each curve, the priors that the others give."""
    points = [tuple(MeasuredRate(n, curve.at(n)) for n in curve.nodes[1:]) for curve in curves]
    return [priors_of([*points[:i], *points[i + 1 :]]) for i in range(len(points))]


def all_rows(truth: Sequence[Curve]) -> list[Row]:
    """For ``truth`` and each form, with each of :data:`KNOWN`; and for each of :data:`LOADS`, with each of
    :data:`VISITS`."""
    sets = {"of the file": (truth, others_say(truth))}
    for name, form in FORMS.items():
        draw = random.Random(1)
        times = [form(draw) for _ in range(DRAWN)]
        sets[name] = ([Curve.of((n, n / time(n)) for n in NODES) for time in times], [ON_SUMMIT] * DRAWN)
    known = [tuple(map(int, counts.split(","))) for counts in KNOWN]
    rows = [measure(name, curves, priors, counts) for name, (curves, priors) in sets.items() for counts in known]
    return rows + [measure_again(name, load, visits) for name, load in LOADS.items() for visits in VISITS]


@click.command()
@click.option("--curves", type=click.Path(path_type=Path), help="Curves file of a replay; else FreeTrain's Table 2.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
def main(curves: Path | None, out: Path | None) -> None:
    """Compare the actual errors of rates with the reported ones."""
    table2 = [Curve.of(zip(NODES, rates, strict=True)) for rates in KILOSAMPLES_PER_S.values()]
    rows = all_rows(table2 if curves is None else [rate for rate, _ in read_curves(curves)])
    table = Table(title="errors of rates")
    for column in ("curves", "known on, or visits", "made", "told", "z", "within 1", "within 2"):
        table.add_column(column, justify="left" if column == "curves" else "right")
    for row in rows:
        shares = (f"{row.made:.1%}", f"{row.told:.1%}", f"{row.z:.2f}", f"{row.within_1:.0%}", f"{row.within_2:.0%}")
        table.add_row(row.curves, ", ".join(map(str, row.known)), *shares)
    Console(width=100).print(table)
    if out is not None:
        out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
