"""Plans for nodes of several types: how long they take, how far they are from the bound, and whether solvers agree.

    python -m benchmarks.mixed_planners --json mixed.json

The pools have half of their nodes of one type, 30% of a second and 20% of a third, or those and a few slow nodes of
each as well. Trainers are those of ``benchmarks.planners`` (scaling curves of FreeTrain's Table 2), each with random
speeds on types other than its reference (0.2 to 1) and random held nodes. ``dp`` plans by prices; ``milp`` has CBC go
on from there, for at most ``--limit`` seconds, unless prices are within 0.1% of the bound. Then every installed solver,
alone, solves small random problems, of which all plans are tried: curves of any shape, sizes, equal shares, pins,
trainers that must run, types that some cannot use.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import click

from benchmarks.planners import installed, timed
from benchmarks.planners import problem as one_type
from pilot import planners
from pilot.core.plan.problem import Problem
from pilot.planners import prices
from tests.unit.planners.mixed_problems import SOLVERS_TOLERANCE, disagreement, missed, random_problem

SIZES = ((100, 10), (800, 35), (4600, 100))
"""Nodes, trainers."""
PARTS = {"a": 0.5, "b": 0.3, "c": 0.2, "a/slow": 0.02, "b/slow": 0.02, "c/slow": 0.01}
"""Types, and how many nodes each has beside the others."""


@dataclass(frozen=True, slots=True)
class Row:
    """Times in seconds, and gaps as a share of the plan's value, of one planner at one size."""

    planner: str
    nodes: int
    types: int
    trainers: int
    plans: int
    optimal: int
    gap_median: float
    gap_worst: float
    total_median_s: float
    total_worst_s: float
    cpu_median_s: float
    cpu_worst_s: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of how many problems a solver by itself found and proved the optimum, or prices found it."""

    found_by: str
    problems: int
    agree: int


def problem(nodes: int, trainers: int, types: int, seed: int) -> Problem:
    """A random problem with the first of the types."""
    choose, given = random.Random(seed), one_type(nodes, trainers, seed)
    parts = list(PARTS.values())[:types]
    there = [int(nodes * part / sum(parts)) for part in parts]
    there[0] += nodes - sum(there)
    left, candidates = list(there), []
    for c in given.candidates:
        held, missing = [0] * types, c.current_nodes
        for k in choose.sample(range(types), types):
            held[k] = min(choose.choice((missing, missing // 2)), left[k])
            missing -= held[k]
            left[k] -= held[k]
        speeds = (1.0, *(choose.uniform(0.2, 1.0) for _ in parts[1:]))
        candidates.append(replace(c, current_nodes=sum(held), held=tuple(held), speeds=speeds))
    names = tuple(PARTS)[:types]
    return replace(given, candidates=tuple(candidates), types=names, types_nodes=tuple(there))


def measure(name: str, nodes: int, trainers: int, types: int, plans: int, limit_s: float) -> Row:
    """Solve ``plans`` problems, after a warm-up that is not counted."""
    plan = planners.make(name, limit_s=limit_s)
    plan(problem(nodes, trainers, types, seed=-1))
    made = [timed(plan, problem(nodes, trainers, types, seed)) for seed in range(plans)]
    totals, cpus, gaps = zip(*((total_s, cpu_s, plan.gap or 0.0) for total_s, cpu_s, plan in made), strict=True)
    return Row(
        name,
        nodes,
        types,
        trainers,
        plans,
        sum(plan.gap == 0.0 for *_, plan in made),
        median(gaps),
        max(gaps),
        total_median_s=median(totals),
        total_worst_s=max(totals),
        cpu_median_s=median(cpus),
        cpu_worst_s=max(cpus),
    )


def agreement(found_by: str, problems: int) -> Agreement:
    """A solver solves every second problem from the plan by prices on, the others from nothing."""
    numbered = [(seed, random_problem(seed)) for seed in range(problems)]
    if found_by == "prices":
        found = [missed(each, prices.plan(each, "dp")) for _, each in numbered]
    else:
        found = [disagreement(each, found_by, from_prices=bool(seed % 2)) for seed, each in numbered]
    return Agreement(found_by, problems, sum(share <= SOLVERS_TOLERANCE for share in found))


@click.command()
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
@click.option("--plans", default=20, show_default=True, type=click.IntRange(min=1), help="Plans of each size.")
@click.option("--problems", default=300, show_default=True, type=click.IntRange(min=0), help="Small random problems.")
@click.option("--limit", "limit_s", default=2.0, show_default=True, help="Seconds for each plan.")
def main(out: Path | None, plans: int, problems: int, limit_s: float) -> None:
    """Measure plans for several types of nodes."""
    rows = []
    for nodes, trainers in SIZES:
        for name, types in (("dp", 3), ("milp", 3), ("dp", 6)):
            r = measure(name, nodes, trainers, types, plans, limit_s)
            rows.append(r)
            click.echo(
                f"{name:4} {nodes:>5} nodes of {types} types, {trainers:>3} trainers: gap {r.gap_median:.3%}, worst "
                f"{r.gap_worst:.3%}; {r.total_median_s:.3f} s, worst {r.total_worst_s:.3f} s; cpu "
                f"{r.cpu_median_s:.3f} s, worst {r.cpu_worst_s:.3f} s; proved {r.optimal}/{plans}"
            )
    agreements = [agreement(found_by, problems) for found_by in (*installed(), "prices") if problems]
    for a in agreements:
        click.echo(f"{a.found_by}: {a.agree} of {a.problems} random problems as an enumeration says")
    if out is not None:
        found = {"times": [asdict(row) for row in rows], "agreement": [asdict(a) for a in agreements]}
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
