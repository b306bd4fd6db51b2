"""Does looking ahead pay on a trace of idle nodes? FreeTrain's objective against Huawei's rolling horizon.

    python -m benchmarks.look_ahead events.csv.gz --trainers trainers.csv --curves curves.json --hours 24

Each row of the table (Markdown, for docs/research/huawei.md) is a replay at the paper's costs: U, the losses to
rescales and preemptions (shares of A_s), and the mean waiting and total time of the trainers that ended in all
replays. With ``--every-s`` all planners decide at multiples of it. ``rolling-horizon`` is solved to within 2%, which
rarely needs CBC. The last rows show what makes the difference: the same planner without one of the terms it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import click

from benchmarks.huawei import close
from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.plan.arrivals import ARRIVALS_S
from pilot.core.plan.problem import Plan, Problem
from pilot.core.pool.losses import NO_LOSS
from pilot.research.sim.accounting import Accounting, times_of
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.sim.metrics import summarize
from pilot.research.traces.changes import read_changes
from pilot.research.traces.workload import read_workload

POWERS = (1, 2, 4, 8, 16, 32, 64)
T_FWD_S, STEPS = 120.0, 5
COSTS = "rolling-horizon-costs"


@dataclass(frozen=True, slots=True)
class Row:
    """A planner, and how its problems are changed; ``powers``: only powers of two are allowed."""

    name: str
    plan: Callable[[Problem], Plan]
    change: Callable[[Problem], Problem] = lambda problem: problem
    powers: bool = True

    def __call__(self, problem: Problem) -> Plan:
        """A plan for the changed problem."""
        return self.plan(self.change(problem))


def without_preemptions(problem: Problem) -> Problem:
    """No node losses are expected."""
    return replace(problem, losses=NO_LOSS)


def as_far_as_freetrain(problem: Problem) -> Problem:
    """Five steps span FreeTrain's forward-looking time."""
    return replace(problem, step_s=T_FWD_S / STEPS)


def of_unknown_length(problem: Problem) -> Problem:
    """No trainer is near its end: work is maximised instead of its share of the remaining work (eq. 1)."""
    return replace(problem, candidates=tuple(replace(c, left_s=None) for c in problem.candidates))


ROWS = [
    Row("`dp`, all sizes", planners.make("dp"), powers=False),
    Row("`milp`, all sizes", planners.make("milp"), powers=False),
    Row("`equal-share`, all sizes", planners.make("equal-share"), powers=False),
    Row("`dp`", planners.make("dp")),
    Row("`rolling-horizon`", close),
    Row(f"`{COSTS}`", planners.make(COSTS)),
    Row(f"`{COSTS}`, no preemptions expected", planners.make(COSTS), without_preemptions),
    Row(f"`{COSTS}`, steps of 24 s", planners.make(COSTS), as_far_as_freetrain),
    Row(f"`{COSTS}`, what is left not known", planners.make(COSTS), of_unknown_length),
    Row(f"`{COSTS}`, both", planners.make(COSTS), lambda p: as_far_as_freetrain(of_unknown_length(p))),
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Shares of A_s, and (waiting, total) seconds of each trainer that ended."""

    u: float
    rescales: float
    preemptions: float
    times: dict[str, tuple[float, float]]


def run(events: Path, trainers: Path, curves: Path, hours: float | None, every_s: float, number: int) -> Outcome:
    """One replay."""
    row, changes = ROWS[number], read_changes(events)
    submissions = read_workload(trainers, curves)
    if row.powers:
        submissions = [one.sized(POWERS) for one in submissions]
    config = CoordinatorConfig(T_FWD_S, 10, arrivals_s=ARRIVALS_S, timed=True, decide_every_s=every_s)
    until_s = changes[-1].time_s if hours is None else hours * 3600
    simulation = Simulation(Coordinator(config), row, changes, submissions, SimConfig(until_s))
    simulation.run(lambda: False, lambda _: None)
    s = summarize(simulation.records, simulation.accounts, Accounting.PAPER, len(submissions), complete=True)
    ended = {str(one.trainer): (one.waiting_s, one.total_s) for one in times_of(simulation.accounts.values())}
    lost = [share * s.pool_changes / s.static_work for share in (s.rescale_per_event, s.preemption_per_event)]
    return Outcome(s.efficiency or math.nan, lost[0], lost[1], ended)


@click.command(help=__doc__)
@click.argument("events", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--trainers", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--curves", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--hours", type=float, help="From the trace's begin; default: all of it.")
@click.option("--every-s", default=0.0, help="Decide at multiples of it; default: at every event.")
@click.option("--rows", default=",".join(map(str, range(len(ROWS)))), show_default=True, help="Which, from 0 on.")
@click.option("--processes", default=1, show_default=True, help="Replays at once.")
def main(
    events: Path, trainers: Path, curves: Path, hours: float | None, every_s: float, rows: str, processes: int
) -> None:
    numbers = list(map(int, rows.split(",")))
    with ProcessPoolExecutor(processes) as pool:
        outcomes: list[Outcome] = []
        for one in pool.map(partial(run, events, trainers, curves, hours, every_s), numbers):
            click.echo(f"{ROWS[numbers[len(outcomes)]].name}: U {one.u:.2%}, {len(one.times)} trainers ended", err=True)
            outcomes.append(one)
    common = sorted(set.intersection(*(set(outcome.times) for outcome in outcomes)))
    click.echo(f"{len(common)} trainers ended in all replays\n")
    click.echo(
        "| planner | U | lost to rescales | to preemptions | ended | waiting / total, min |\n|---|---|---|---|---|---|"
    )
    for row, one in zip((ROWS[number] for number in numbers), outcomes, strict=True):
        waiting, total = (fmean([one.times[name][i] for name in common] or [math.nan]) / 60 for i in (0, 1))
        shares = " | ".join(f"{share:.1%}" for share in (one.u, one.rescales, one.preemptions))
        click.echo(f"| {row.name} | {shares} | {len(one.times)} | {waiting:.0f} / {total:.0f} |")


if __name__ == "__main__":
    main()
