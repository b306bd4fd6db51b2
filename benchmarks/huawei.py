"""Huawei's experiments (§5): waiting and total times of jobs on a pool that does not change, and what decisions take.

    python -m benchmarks.huawei --jobs jobs.csv --nodes 70,110 --planner rolling-horizon,greedy

``jobs.csv`` has the columns job, submit_s, duration_s and gpus; without one 439 jobs of their kind are drawn. A job's
work is its duration at the published speed of its ``gpus`` nodes, k * 0.8^log2 k; sizes are 1, 2, 4, 8 and 16.
"""

from __future__ import annotations

import csv
import math
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, quantiles

import click

from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curve import Curve
from pilot.core.ids import NodeId, TrainerId
from pilot.core.problem import Plan, Problem
from pilot.core.spec import TrainerSpec
from pilot.sim.driver import SimConfig, Simulation
from pilot.traces.changes import Change
from pilot.traces.workload import WorkloadRow

SIZES = (1, 2, 4, 8, 16)
"""K (§5.1)."""
PUBLISHED = Curve.of([(n, n * 0.8 ** math.log2(n)) for n in SIZES])
UNTIL_S = 400 * 3600.0


@dataclass(slots=True)
class Timed:
    """A planner whose decisions are timed, in seconds."""

    name: str
    took_s: list[float] = field(default_factory=list)

    def __call__(self, problem: Problem) -> Plan:
        """The planner's plan; what happens in between two decisions is not counted."""
        started_s = time.perf_counter()
        made = planners.make(self.name)(problem)
        if not problem.between:
            self.took_s.append(time.perf_counter() - started_s)
        return made


def job(name: str, submit_s: float, duration_s: float, nodes: int) -> WorkloadRow:
    """One that takes ``duration_s`` on ``nodes`` nodes."""
    work_s = duration_s * PUBLISHED.at(nodes)
    spec = TrainerSpec(
        TrainerId(name),
        max_nodes=SIZES[-1],
        curve=PUBLISHED,
        fixed_curve=True,
        sizes=SIZES,
        samples=work_s,
        rescale_up_s=0.0,
        rescale_down_s=0.0,
    )
    return WorkloadRow(spec, submit_s, work_s, 0)


def read(path: Path) -> list[WorkloadRow]:
    """The jobs of a file, in the order of their submission."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    made = (job(r["job"], float(r["submit_s"]), float(r["duration_s"]), int(r["gpus"])) for r in rows)
    return sorted(made, key=lambda row: row.submit_s)


def drawn(seed: int) -> list[WorkloadRow]:
    """439 jobs in 49.7 h, of 235 minutes in the mean and at least ten."""
    rng = random.Random(seed)
    submits = sorted(rng.uniform(0, 49.7 * 3600) for _ in range(439))
    made = []
    for i, submit_s in enumerate(submits):
        (nodes,) = rng.choices((1, 2, 4), (8, 1, 1))
        made.append(job(f"j{i}", submit_s, 600 + rng.lognormvariate(8.4, 1.5), nodes))
    return made


def replay(jobs: list[WorkloadRow], nodes: int, name: str, every_s: float) -> str:
    """One experiment; what came of it, in a line."""
    timed = Timed(name)
    config = CoordinatorConfig(max_parallel_trainers=10_000, decide_every_s=every_s, timed=name in planners.TIMED)
    pool = Change(0.0, joined=tuple(NodeId(f"n{i}") for i in range(nodes)))
    simulation = Simulation(Coordinator(config), timed, [pool], jobs, SimConfig(UNTIL_S))
    simulation.run(lambda: False, lambda _: None)
    accounts = [simulation.accounts[row.spec.trainer] for row in jobs]
    started = [next(at_s for at_s, held in a.changes if held) - a.submission.submit_s for a in accounts]
    total = [(a.ended_s or UNTIL_S) - a.submission.submit_s for a in accounts]
    took = sorted(timed.took_s)
    p95_s = quantiles(took, n=20)[-1]
    solves = f"{len(took)} decisions: mean {fmean(took):.3f} s, p95 {p95_s:.3f}, worst {took[-1]:.3f}"
    times = f"waiting {fmean(started) / 60:7.1f} min, total {fmean(total) / 60:7.1f} min"
    return f"{nodes:4} nodes  {name:16} {times};  {solves}"


@click.command()
@click.option("--jobs", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CSV of the jobs.")
@click.option("--nodes", default="70", help="Sizes of the pool, with commas between them.")
@click.option("--planner", default="rolling-horizon,greedy", help="Planners, with commas between them.")
@click.option("--every", "every_s", default=300.0, help="The cadence in seconds; 0: decide at events.")
@click.option("--first", type=int, help="Only so many jobs.")
@click.option("--seed", default=1, help="Of the jobs that are drawn.")
def main(jobs: Path | None, nodes: str, planner: str, every_s: float, first: int | None, seed: int) -> None:
    """Replay the jobs on each pool with each planner."""
    rows = (read(jobs) if jobs is not None else drawn(seed))[:first]
    for size in map(int, nodes.split(",")):
        for name in planner.split(","):
            click.echo(replay(rows, size, name, every_s))


if __name__ == "__main__":
    main()
