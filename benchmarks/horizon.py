"""How long ``rolling-horizon`` takes to decide, building included (Huawei Fig 16), and its distance from a bound.

    python -m benchmarks.horizon --json horizon.json
    python -m benchmarks.horizon --jobs jobs.csv --first 80

The problems come from a replay of jobs on 70 nodes (the paper's baseline), and random ones of 100 jobs on 4,600 nodes
with sizes up to 64. ``cpu`` is a decision's CPU time, the solver's process included.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, quantiles

import click
from rich.console import Console
from rich.table import Table

from benchmarks.huawei_jobs import drawn, read, rows
from benchmarks.planners import timed
from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Plan, Problem
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.traces.changes import still_pool
from pilot.research.traces.workload import WorkloadRow

NODES, F_S = 70, 300.0
SIZES = (1, 2, 4, 8, 16)
MANY_NODES, MANY_JOBS = 4600, 100
MANY_SIZES = (*SIZES, 32, 64)


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds per decision on one kind of problem; ``solved``: how many needed a solver."""

    problems: str
    solver: str
    decisions: int
    solved: int
    mean_s: float
    median_s: float
    p95_s: float
    worst_s: float
    cpu_mean_s: float
    worst_gap: float


def collected(workload: Sequence[WorkloadRow], nodes: int) -> list[Problem]:
    """The decisions made in a replay of ``workload``."""
    problems: list[Problem] = []
    planner = planners.make("rolling-horizon")

    def kept(problem: Problem) -> Plan:
        if not problem.between:
            problems.append(problem)
        return planner(problem)

    core = Coordinator(CoordinatorConfig(max_parallel_trainers=10_000, decide_every_s=F_S, timed=True))
    simulation = Simulation(core, kept, [still_pool(nodes)], workload, SimConfig(float("inf")))
    simulation.run(lambda: False, lambda _: None)
    return problems


def many(seed: int) -> Problem:
    """100 jobs of minutes to days on 4,600 nodes."""
    choose = random.Random(seed)
    curve = Curve.of([(n, n * 0.8**m) for m, n in enumerate(MANY_SIZES)])
    left_s = [choose.lognormvariate(9.5, 1.5) for _ in range(MANY_JOBS)]
    candidates = [
        Candidate(TrainerId(f"t{i}"), 0, 1, MANY_SIZES[-1], curve, 0.0, 0.0, MANY_SIZES, left_s=one)
        for i, one in enumerate(left_s)
    ]
    return Problem(MANY_NODES, 120.0, tuple(candidates), F_S)


def measure(name: str, solver: str, problems: Sequence[Problem]) -> Row:
    """One decision on each of ``problems``."""
    plan = planners.make("rolling-horizon", solver)
    plan(problems[0])
    made = [timed(plan, problem) for problem in problems]
    took, plans = sorted(took_s for took_s, _, _ in made), [made_plan for _, _, made_plan in made]
    return Row(
        name,
        solver,
        len(made),
        sum(p.build_s > 0 for p in plans),
        fmean(took),
        median(took),
        quantiles(took, n=20)[-1] if len(took) > 1 else took[0],
        took[-1],
        fmean(cpu_s for _, cpu_s, _ in made),
        max(p.gap if p.gap is not None else float("inf") for p in plans),
    )


@click.command(help=__doc__)
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
@click.option("--jobs", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CSV of the jobs.")
@click.option("--first", default=80, show_default=True, help="So many of the jobs.")
@click.option("--solver", default="cbc", show_default=True, help="cbc, glpk or highs.")
def main(out: Path | None, jobs: Path | None, first: int, solver: str) -> None:
    workload = rows((read(jobs) if jobs is not None else drawn(1))[:first], SIZES)
    crowded = [many(seed) for seed in range(10)]
    found = [
        measure(f"{first} jobs on {NODES} nodes", solver, collected(workload, NODES)),
        measure(f"{MANY_JOBS} jobs on {MANY_NODES:,} nodes", solver, crowded),
    ]
    table = Table(title="a decision of rolling-horizon, seconds")
    for column in ("problems", "solver", "decisions", "solved", "mean", "median", "p95", "worst", "cpu", "worst gap"):
        table.add_column(column, justify="left" if column in ("problems", "solver") else "right")
    for r in found:
        times = (f"{t:.3f}" for t in (r.mean_s, r.median_s, r.p95_s, r.worst_s, r.cpu_mean_s))
        table.add_row(r.problems, r.solver, str(r.decisions), str(r.solved), *times, f"{r.worst_gap:.2%}")
    Console(width=120).print(table)
    if out is not None:
        out.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
