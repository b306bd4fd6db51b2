"""Pools of three types of nodes: plans that tell types apart, against four other ways to use such a pool.

    python -m benchmarks.mixed
    python -m benchmarks.mixed --pools cloud --hours 4 --seeds 1,2,3 --know measured

``typed``: our planner (``dp``, by prices). ``blind``: the same, but all nodes count as alike. ``lockstep``: blind, and
all nodes of a trainer get equal shares of the samples. ``divided``: one pool per type; a trainer goes where it is
expected to finish first, and stays there. ``sia``: Sia's ILP, each 60 s. All ways plan for all trainers, unless
``--most`` says ``auto`` (not for sia) or a number.

Traces are drawn (FreeTrain's statistics of Summit, on a machine of ``--nodes``), types are blocks of neighbours, speeds
those of benchmarks/gpu_rates.py. Curves are those of FreeTrain's Table 2, in the pool ``narrow`` Amdahl's law with a
serial share of 5%. They hold for the mean node of the pool, so work, in seconds of this node, favours no type; plans
maximise it. In the workload ``full`` all trainers are there at the begin, with more work than the pool can do; in
``stream`` they come over time, and the pool could do more. ``work`` is relative to ``blind``, ``least`` that of the
seed with least. ``time``, also relative to it, is the mean from submission to completion of the trainers that all ways
complete. U of ``divided`` is relative to static nodes that are divided likewise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean

import click
from rich.console import Console
from rich.table import Table

from benchmarks import sia
from benchmarks.gpu_rates import MODELS, speeds
from benchmarks.planners import EFFICIENCY
from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.ids import NodeId, TrainerId, natural_key
from pilot.core.plan.arrivals import ARRIVALS_S
from pilot.core.pool.node_type import NodeType
from pilot.core.trainer.spec import Profiling, TrainerSpec
from pilot.research.sim.accounting import Accounting, group_rate
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.sim.knowledge import MEASURED, TRUTH, Knowledge
from pilot.research.sim.metrics import IntegralMeter
from pilot.research.traces.changes import Change, types_of, with_types
from pilot.research.traces.fragments import pool_size
from pilot.research.traces.synthesis import HOUR_S, PUBLISHED, draw
from pilot.research.traces.workload import WorkloadRow

AMDAHL = Curve.of((n, n / (1 + 0.05 * (n - 1))) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32))

Shares = Mapping[str, float]
POOLS: Mapping[str, tuple[Shares, Sequence[Curve]]] = {
    "cloud": ({"a100": 1, "v100": 2, "a10": 2}, EFFICIENCY),
    "desks": ({"rtx4090": 2, "rtx8000": 1, "v100": 1}, EFFICIENCY),
    "eights": ({"8xa100": 1, "8xv100": 2, "8xa6000ada": 1}, EFFICIENCY),
    "narrow": ({"a100": 1, "v100": 2, "a10": 2}, (AMDAHL,)),
}
"""Name → the types' shares, and the scaling curves that models may have."""

FULL, STREAM = "full", "stream"
OFFERED = {FULL: 1.6, STREAM: 0.8}
"""How much work there is, of what the pool could do if all scaled perfectly."""
NODE_HOURS = (1.0, 6.0)
"""The median work of short trainers and of long ones, on a mean node."""
MOST_NODES, ALL = 32, 200
"""Of a trainer; and more trainers than there are."""
LONGER = 2.5
"""A stream is replayed this many times as long as trainers come."""

TYPED, BLIND, LOCKSTEP, DIVIDED, SIA = "typed", "blind", "lockstep", "divided", "sia"
WAYS = (TYPED, BLIND, LOCKSTEP, DIVIDED, SIA)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of all runs."""

    nodes: int
    hours: float
    know: str
    most: int | None  #: trainers that share the pool; None: sized from the pool


@dataclass(frozen=True, slots=True)
class Run:
    """One replay."""

    pool: str
    workload: str
    seed: int
    way: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The work done, what static nodes would have done, and how long each completed trainer took."""

    work: float
    static: float
    total_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """The mean of the seeds."""

    pool: str
    workload: str
    way: str
    work: float  #: relative to blind
    least: float  #: of the seeds
    efficiency: float
    completed: float
    time: float | None  #: relative to blind


class OnOneType(Knowledge):
    """In a pool of one type all curves are those on its nodes."""

    def spec(self, row: WorkloadRow) -> TrainerSpec:
        """The spec as the core knows it."""
        if self.know == MEASURED:
            return Knowledge.spec(self, row)
        curve, ((_, speed),) = row.spec.curve or Curve.proportional(), row.spec.speeds
        here = Curve.of((n, group_rate(curve, (n,), (speed,))) for n in sorted(curve.counts()))
        return replace(row.spec, curve=here, objective_curve=here, speeds=())


def in_blocks(changes: Sequence[Change], shares: Shares) -> list[Change]:
    """``changes`` whose nodes, in the order of their names, are divided into one block for each type, of these shares:
    neighbours are alike."""
    nodes = sorted({node for change in changes for node in change.joined}, key=natural_key)
    types, first, share = dict[NodeId, NodeType](), 0, 0.0
    for name, its_share in shares.items():
        share += its_share
        last = round(len(nodes) * share / sum(shares.values()))
        types |= dict.fromkeys(nodes[first:last], NodeType(name))
        first = last
    return with_types(changes, types)


def trace(run: Run, options: Options) -> list[Change]:
    """The run's trace."""
    hours = options.hours * (1.0 if run.workload == FULL else LONGER)
    return in_blocks(draw(PUBLISHED["summit"].on(options.nodes), hours * HOUR_S, run.seed), POOLS[run.pool][0])


def workload(run: Run, node_s: float, hours: float) -> Iterator[WorkloadRow]:
    """The trainers, the same for all ways."""
    shares, curves = POOLS[run.pool]
    choose, left, number = Random(f"{run.workload} {run.seed}"), OFFERED[run.workload] * node_s, 0
    while left > 0:
        work = HOUR_S * choose.choice(NODE_HOURS) * choose.lognormvariate(0.0, 0.8)
        submit_s = 0.0 if run.workload == FULL else choose.uniform(0.0, hours * HOUR_S)
        model, index = choose.randrange(len(MODELS)), choose.randrange(len(curves))
        spec = TrainerSpec(
            TrainerId(f"t{number}"),
            max_nodes=MOST_NODES,
            curve=curves[index],
            fixed_curve=True,
            samples=work,
            speeds=tuple(speeds(shares, model).items()),
        )
        yield WorkloadRow(spec, submit_s, work, index, equal_shares=run.way == LOCKSTEP)
        left, number = left - work, number + 1


def replay(options: Options, run: Run) -> Outcome:
    """What a way does with a workload."""
    changes = trace(run, options)
    node_s = pool_size(changes, options.hours * HOUR_S).node_seconds
    rows = sorted(workload(run, node_s, options.hours), key=lambda row: row.submit_s)
    if run.way != DIVIDED:
        return _one_pool(options, run, changes, rows)
    parts = [_one_pool(options, run, *part) for part in divided(changes, rows) if part[1]]
    totals = {name: total_s for part in parts for name, total_s in part.total_s.items()}
    return Outcome(sum(part.work for part in parts), sum(part.static for part in parts), totals)


def divided(changes: Sequence[Change], rows: Sequence[WorkloadRow]) -> list[tuple[list[Change], list[WorkloadRow]]]:
    """The trace and the trainers of each type. A trainer's expected finish: the work that is left of earlier ones, and
    its own, on the mean nodes of the type."""
    kinds = {node: of.name for node, of in types_of(changes).items()}
    nodes_of: dict[str, list[Change]] = {name: [] for name in sorted(set(kinds.values()))}
    for change, name in ((change, name) for change in changes for name in nodes_of):
        joined, left = ([n for n in some if kinds[n] == name] for some in (change.joined, change.left))
        types = tuple((node, of) for node, of in change.types if of.name == name)
        if joined or left:
            nodes_of[name].append(Change(change.time_s, tuple(joined), tuple(left), types=types))
    end_s = changes[-1].time_s
    mean = {name: max(1.0, pool_size(some, end_s).eq_nodes) for name, some in nodes_of.items()}
    of_type: dict[str, list[WorkloadRow]] = {name: [] for name in nodes_of}
    free_s = dict.fromkeys(nodes_of, 0.0)
    for row in rows:
        fast = dict(row.spec.speeds)
        queued = {name: row.samples / fast[name] / mean[name] for name in nodes_of}
        curve = row.spec.curve or Curve.proportional()
        alone = {name: row.samples / fast[name] / curve.at(min(MOST_NODES, mean[name])) for name in nodes_of}
        best = min(nodes_of, key=lambda name: max(free_s[name], row.submit_s) + alone[name])
        free_s[best] = max(free_s[best], row.submit_s) + queued[best]
        of_type[best].append(replace(row, spec=replace(row.spec, speeds=((best, fast[best]),))))
    return [(nodes_of[name], of_type[name]) for name in nodes_of]


def _one_pool(options: Options, run: Run, changes: Sequence[Change], rows: Sequence[WorkloadRow]) -> Outcome:
    hours = options.hours * (1.0 if run.workload == FULL else LONGER)
    knowledge = (OnOneType if run.way == DIVIDED else Knowledge)(options.know, profile=Profiling.AUTO, seed=run.seed)
    config = CoordinatorConfig(
        max_parallel_trainers=ALL if run.way == SIA else options.most,
        arrivals_s=ARRIVALS_S,
        timed=run.way == SIA,
        decide_every_s=60.0 if run.way == SIA else 0.0,
        typed=run.way in (TYPED, SIA),
    )
    planner = sia.planner if run.way == SIA else planners.make("dp", limit_s=math.inf)
    accounting = Accounting.PHYSICAL
    noise = 0.03 if options.know == MEASURED else 0.0
    sim = SimConfig(hours * HOUR_S, accounting, knowledge=knowledge, measure_noise=noise)
    simulation = Simulation(Coordinator(config), planner, changes, rows, sim)
    simulation.run(lambda: False, lambda _: None)
    accounts = simulation.accounts
    static = IntegralMeter(simulation.records).static_work(0.0, hours * HOUR_S)
    totals = {str(name): a.ended_s - a.submission.submit_s for name, a in accounts.items() if a.ended_s is not None}
    return Outcome(sum(account.done for account in accounts.values()), static, totals)


# --- the table ------------------------------------------------------------------------------------------------------


def rows_of(pool: str, workload: str, outcomes: Mapping[Run, Outcome], seeds: Sequence[int]) -> Iterator[Row]:
    """A row for each way."""
    each = {way: [outcomes[Run(pool, workload, seed, way)] for seed in seeds] for way in WAYS}
    common = [set.intersection(*(set(each[way][i].total_s) for way in WAYS)) for i in range(len(seeds))]
    for way, found in each.items():
        work = [one.work / blind.work for one, blind in zip(found, each[BLIND], strict=True)]
        times = [
            fmean(one.total_s[name] for name in names) / fmean(blind.total_s[name] for name in names)
            for one, blind, names in zip(found, each[BLIND], common, strict=True)
            if names
        ]
        efficiency = sum(one.work for one in found) / sum(one.static for one in found)
        done = fmean(len(one.total_s) for one in found)
        yield Row(pool, workload, way, fmean(work), min(work), efficiency, done, fmean(times) if times else None)


def _table(rows: Sequence[Row], options: Options) -> Table:
    known = "known" if options.know == TRUTH else "measured"
    table = Table(title=f"three types of nodes, {options.hours:g} h, curves and speeds {known}")
    for column in ("pool", "workload", "way", "work", "least", "U", "completed", "time"):
        table.add_column(column, justify="left" if column in ("pool", "workload", "way") else "right")
    for r in rows:
        time = "-" if r.time is None else f"{r.time:.2f}"
        cells = (f"{r.work:.3f}", f"{r.least:.3f}", f"{r.efficiency:.1%}", f"{r.completed:.1f}", time)
        table.add_row(r.pool, r.workload, r.way, *cells)
    return table


@click.command(help=__doc__)
@click.option("--pools", default=",".join(POOLS), show_default=True, help="Which pools.")
@click.option("--workloads", default=f"{FULL},{STREAM}", show_default=True, help="Which workloads.")
@click.option("--nodes", type=click.IntRange(3, 5000), default=200, show_default=True, help="Of the machine.")
@click.option("--hours", type=click.FloatRange(0.1, 1000), default=4.0, show_default=True, help="Length of a replay.")
@click.option("--seeds", default="1,2", show_default=True, help="Of traces and workloads.")
@click.option("--know", type=click.Choice((TRUTH, MEASURED)), default=TRUTH, show_default=True, help="Curves, speeds.")
@click.option("--most", default=f"{ALL}", show_default=True, help="Trainers at once: a number, or auto.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Replays at once.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
def main(
    pools: str,
    workloads: str,
    nodes: int,
    hours: float,
    seeds: str,
    know: str,
    most: str,
    processes: int,
    out: Path | None,
) -> None:
    """Replay each workload on each pool in all ways."""
    if not (most == "auto" or (most.isdecimal() and int(most))):
        raise click.UsageError(f"--most {most}: give a number or auto")
    options = Options(nodes, hours, know, None if most == "auto" else int(most))
    places = list(product(pools.split(","), workloads.split(",")))
    if unknown := [name for place in places for name in place if name not in (*POOLS, FULL, STREAM)]:
        raise click.UsageError(f"{unknown[0]!r}: choose from {', '.join((*POOLS, FULL, STREAM))}")
    each = [int(seed) for seed in seeds.split(",")]
    runs = [Run(*place, seed, way) for place, seed, way in product(places, each, WAYS)]
    outcomes = dict(zip(runs, _all(partial(replay, options), runs, processes), strict=True))
    rows = [row for place in places for row in rows_of(*place, outcomes, each)]
    Console(width=120).print(_table(rows, options))
    if out is not None:
        out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _all(one: Callable[[Run], Outcome], runs: Sequence[Run], jobs: int) -> list[Outcome]:
    if jobs == 1:
        return [one(run) for run in runs]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(one, runs))


if __name__ == "__main__":
    main()
