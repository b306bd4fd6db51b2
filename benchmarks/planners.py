"""From an event to a plan: every planner on every installed solver, on problems of growing size.

    python -m benchmarks.planners --json planners.json

The trainers have the scaling curves of FreeTrain's Table 2 (scaling efficiency as objective) and random feasible node
counts (as in FreeTrain §3.6). ``total`` is the whole call, ``build`` building and writing the model, ``solve`` the
solver; ``cpu`` is the call's CPU time, the solver's process included: on a busy machine it tells the planner's work
from waiting. The largest problem is beyond ``dp``: its row and those of ``milp`` then show the plan by prices, and
``gap`` how far it is at most from the optimum.
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from pilot import planners
from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Plan, Problem

SIZES = ((100, 10, 64), (800, 35, 64), (4600, 100, 64), (100_000, 500, 1000))
"""Nodes, trainers, and the most nodes of each."""

NODES = (1, 2, 4, 8, 16, 32, 64)
KILOSAMPLES_PER_S = {
    "AlexNet": (7.1, 13.1, 21.1, 40.5, 74.0, 130.8, 202.1),
    "ResNet18": (5.2, 10.6, 20.4, 39.6, 78.0, 144.8, 262.7),
    "MnasNet": (3.2, 6.0, 11.5, 23.1, 43.9, 83.5, 160.5),
    "MobileNets": (3.0, 5.9, 11.4, 22.0, 42.5, 82.3, 155.2),
    "ShuffleNet": (2.8, 5.3, 10.0, 20.4, 38.9, 74.1, 145.1),
    "VGG-16": (1.2, 2.4, 4.7, 9.3, 18.3, 36.2, 70.2),
    "DenseNet": (1.0, 2.0, 3.8, 7.6, 15.0, 28.8, 57.8),
}
"""FreeTrain Table 2, over ``NODES``."""

EFFICIENCY = tuple(
    Curve.of(zip(NODES, (rate / rates[0] for rate in rates), strict=True)) for rates in KILOSAMPLES_PER_S.values()
)


@dataclass(frozen=True, slots=True)
class Row:
    """Times of one planner at one size, in seconds."""

    planner: str
    solver: str
    nodes: int
    trainers: int
    plans: int
    optimal: int
    gap_worst: float | None
    total_median_s: float
    total_worst_s: float
    cpu_median_s: float
    cpu_worst_s: float
    build_median_s: float
    solve_median_s: float


def problem(nodes: int, trainers: int, seed: int, t_fwd_s: float = 120.0, most: int = NODES[-1]) -> Problem:
    """A random problem: some of the nodes are held, by trainers in random order, each with up to ``most`` nodes."""
    choose, free, candidates = random.Random(seed), nodes, []
    for i in range(trainers):
        held = min(choose.randint(0, most), free)
        free -= held
        candidates.append(Candidate(TrainerId(f"t{i}"), held, 1, most, choose.choice(EFFICIENCY), 18.0, 12.0))
    choose.shuffle(candidates)
    return Problem(nodes, t_fwd_s, tuple(candidates))


def measure(name: str, solver: str, nodes: int, trainers: int, most: int, plans: int) -> Row:
    """Solve ``plans`` problems, after a warm-up that is not counted."""
    plan = planners.make(name, solver or planners.SOLVERS[0])
    plan(problem(nodes, trainers, seed=-1, most=most))
    made = [timed(plan, problem(nodes, trainers, seed, most=most)) for seed in range(plans)]
    totals, cpus = [total_s for total_s, _, _ in made], [cpu_s for _, cpu_s, _ in made]
    optimal, gaps = sum(p.gap == 0.0 for _, _, p in made), [p.gap for _, _, p in made if p.gap is not None]
    return Row(
        name,
        solver,
        nodes,
        trainers,
        plans,
        optimal,
        max(gaps, default=None),
        total_median_s=median(totals),
        total_worst_s=max(totals),
        cpu_median_s=median(cpus),
        cpu_worst_s=max(cpus),
        build_median_s=median(p.build_s for _, _, p in made),
        solve_median_s=median(p.solve_s for _, _, p in made),
    )


def timed(plan: Callable[[Problem], Plan], given: Problem) -> tuple[float, float, Plan]:
    """Elapsed and CPU time, and the plan."""
    started_s, cpu_s = time.perf_counter(), _cpu_s()
    made = plan(given)
    return time.perf_counter() - started_s, _cpu_s() - cpu_s, made


def _cpu_s() -> float:
    """CPU time of this process and of the children that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(of.ru_utime + of.ru_stime for of in used)


def installed() -> list[str]:
    """The solvers that are; others are told."""
    found = []
    for solver in planners.SOLVERS:
        try:
            planners.make("milp", solver)
        except UserError as error:
            click.echo(f"left out: {error}", err=True)
        else:
            found.append(solver)
    return found


def _table(rows: list[Row]) -> Table:
    table = Table(title="event → plan, seconds")
    times = ("median", "worst", "cpu", "worst cpu", "build", "solve")
    for column in ("planner", "solver", "nodes × trainers", *times, "optimal", "gap"):
        table.add_column(column, justify="left" if column in ("planner", "solver") else "right")
    for r in rows:
        elapsed = (r.total_median_s, r.total_worst_s, r.cpu_median_s, r.cpu_worst_s, r.build_median_s, r.solve_median_s)
        size, optimal = f"{r.nodes:,} × {r.trainers}", f"{r.optimal}/{r.plans}"
        gap = "-" if r.gap_worst is None else f"{r.gap_worst:.0e}"
        table.add_row(r.planner, r.solver, size, *(f"{t:.3f}" for t in elapsed), optimal, gap)
    return table


@click.command()
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
@click.option("--plans", default=20, show_default=True, help="Plans of each planner and size.")
def main(out: Path | None, plans: int) -> None:
    """Measure how long each planner takes."""
    cases = [("equal-share", ""), ("dp", ""), *(("milp", solver) for solver in installed())]
    rows = [measure(name, solver, *size, plans) for size in SIZES for name, solver in cases]
    Console(width=120).print(_table(rows))
    if out is not None:
        out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
