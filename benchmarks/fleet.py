"""FLEET's ensemble: flotillas against one GPU per trainer, and against equal shares. See docs/research/fleet.md.

    python -m benchmarks.fleet --json fleet.json

100 trainers with one-GPU rates from 21 to 176 images a second, whose epochs to convergence are independent of the rate
(appendix B.1), on 25 nodes of 4 GPUs. The planners are ``pilot``'s own. *Each at its own rate*: the simulator, in which
trainers are independent of each other. *At one pace*: trainers that run at the same time share batches, so all go at
the rate of the slowest.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median

import click
from rich.console import Console
from rich.table import Table

from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.objective import throughput
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.core.trainer.spec import TrainerSpec
from pilot.planners.choice import plan_of
from pilot.research.sim.accounting import Accounting
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.traces.changes import Change
from pilot.research.traces.workload import WorkloadRow

TRAINERS, GPUS_PER_NODE = 100, 4
NODES = 25
RATES = (21.0, 176.0)
"""Images a second on one GPU (B.1)."""
IMAGES = 1_281_167
"""Images in ImageNet's training set."""
EFFICIENCY = 0.96
"""The fraction of the rate per GPU that remains when the number of GPUs doubles."""
RESCALE_S = (20.0, 10.0)
END_S = 1e9
CASES = [*((nodes, math.inf) for nodes in (5, 10, 15, 20, NODES)), *((NODES, limit) for limit in (150.0, 100.0, 50.0))]
"""Nodes, and how many images a second the cores per GPU can preprocess."""

Planner = Callable[[Problem], Plan]
Ended = dict[str, float]
"""When each trainer ended, in seconds."""


def ensemble(
    seed: int, epochs: tuple[int, int], preprocessed_per_s: float = math.inf, efficiency: float = EFFICIENCY
) -> list[WorkloadRow]:
    """Trainers with preprocessing limited to this many images a second per GPU."""
    draw = random.Random(seed)
    low, high = map(math.log, RATES)
    rates = [*RATES, *(math.exp(draw.uniform(low, high)) for _ in range(TRAINERS - 2))]
    draw.shuffle(rates)
    limits = (preprocessed_per_s, efficiency)
    return [_trainer(i, rate, draw.randint(*epochs), *limits) for i, rate in enumerate(rates)]


def _trainer(number: int, rate: float, epochs: int, preprocessed_per_s: float, efficiency: float) -> WorkloadRow:
    counts = [2**k for k in range(8)]
    per_gpu = [min(rate * efficiency**k, preprocessed_per_s) for k in range(8)]
    curve = Curve.of((n, n * each) for n, each in zip(counts, per_gpu, strict=True))
    up_s, down_s = RESCALE_S
    spec = TrainerSpec(
        TrainerId(f"t{number}"),
        max_nodes=NODES * GPUS_PER_NODE,
        curve=curve,
        fixed_curve=True,
        rescale_up_s=up_s,
        rescale_down_s=down_s,
    )
    return WorkloadRow(spec, 0.0, float(epochs * IMAGES), number)


def at_own_rates(trainers: Sequence[WorkloadRow], planner: Planner, gpus: int) -> Ended:
    """In the simulator; a rescale pauses the trainer."""
    core = Coordinator(CoordinatorConfig(max_parallel_trainers=TRAINERS, objective=throughput))
    pool = [Change(0.0, joined=tuple(NodeId(f"gpu{i}") for i in range(gpus)))]
    simulation = Simulation(core, planner, pool, trainers, SimConfig(END_S, Accounting.PHYSICAL))
    simulation.run(lambda: False, lambda _now_s: None)
    return {name: account.ended_s or math.inf for name, account in simulation.accounts.items()}


def at_one_pace(trainers: Sequence[WorkloadRow], planner: Planner, gpus: int) -> Ended:
    """Running trainers take the same images at the same time; whenever one ends, a new plan is made and all rescale."""
    left = {t.spec.trainer: t.samples for t in trainers}
    counts = dict.fromkeys(left, 0)
    ended: Ended = {}
    now_s = 0.0
    while left:
        there = [t.spec for t in trainers if t.spec.trainer in left]
        counts = planner(Problem(gpus, 120.0, tuple(_candidate(s, counts[s.trainer]) for s in there))).as_dict()
        training = [s for s in there if counts[s.trainer]]
        pace = min((s.curve or Curve.proportional()).at(counts[s.trainer]) for s in training)
        images = min(left[s.trainer] for s in training)
        now_s += images / pace + max(RESCALE_S)
        for spec in training:
            left[spec.trainer] -= images
            if left[spec.trainer] <= 0:
                del left[spec.trainer]
                ended[spec.trainer] = now_s
    return ended


def _candidate(spec: TrainerSpec, held: int) -> Candidate:
    assert spec.curve is not None
    return Candidate(spec.trainer, held, 1, spec.max_nodes, spec.curve, spec.rescale_up_s, spec.rescale_down_s)


def one_gpu_each(trainers: Sequence[WorkloadRow], gpus: int) -> Ended:
    """In turns: a waiting trainer gets the GPU of one that has ended."""
    single = [replace(t, spec=replace(t.spec, max_nodes=1)) for t in trainers]
    return at_own_rates(single, even_shares, gpus)


def even_shares(problem: Problem) -> Plan:
    """The same number for each; the remainder goes to the first. (With just one node each, the planner ``equal-share``
    gives all to the first, as FreeTrain's authors do.)
    """
    each, over = divmod(problem.nodes, len(problem.candidates))
    counts = [min(each + (i < over), c.max_nodes) for i, c in enumerate(problem.candidates)]
    return plan_of(problem, counts, PlanStatus.INCUMBENT, None, "even shares")


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one way: medians over several ensembles.

    ``all_hours``: until all trainers have ended; ``mean_hours``: a trainer's mean time to its end. ``faster``:
    ``all_hours`` with one GPU each ÷ this way's, minimum to maximum over the ensembles; ``mean_faster``: the same for
    ``mean_hours``, the median.
    """

    nodes: int
    preprocessed_per_s: float | None
    way: str
    all_hours: float
    mean_hours: float
    faster: tuple[float, float, float]
    mean_faster: float


def ways(
    seed: int, epochs: tuple[int, int], gpus: int, preprocessed_per_s: float, efficiency: float
) -> dict[str, Ended]:
    """The results for one ensemble. Shared batches are preprocessed once, which then limits nobody."""
    alone = ensemble(seed, epochs, preprocessed_per_s, efficiency)
    sharing = ensemble(seed, epochs, efficiency=efficiency)
    flotilla = planners.make("flotilla")
    return {
        "one GPU each": one_gpu_each(alone, gpus),
        "equal shares, own rates": at_own_rates(alone, even_shares, gpus),
        "flotilla, own rates": at_own_rates(alone, flotilla, gpus),
        "equal shares, one pace": at_one_pace(sharing, even_shares, gpus),
        "flotilla, one pace": at_one_pace(sharing, flotilla, gpus),
    }


def rows(
    seeds: int, epochs: tuple[int, int], cases: Sequence[tuple[int, float]], efficiency: float = EFFICIENCY
) -> Iterator[Row]:
    """For each number of nodes with its preprocessing limit, and each way."""
    for nodes, limit in cases:
        runs = [ways(seed, epochs, nodes * GPUS_PER_NODE, limit, efficiency) for seed in range(seeds)]
        for way in runs[0]:
            faster = sorted(max(run["one GPU each"].values()) / max(run[way].values()) for run in runs)
            yield Row(
                nodes,
                limit if math.isfinite(limit) else None,
                way,
                median(max(run[way].values()) for run in runs) / 3600,
                median(fmean(run[way].values()) for run in runs) / 3600,
                (faster[0], median(faster), faster[-1]),
                median(fmean(run["one GPU each"].values()) / fmean(run[way].values()) for run in runs),
            )


@click.command(help=__doc__)
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
@click.option("--seeds", default=5, show_default=True, help="Ensembles.")
@click.option("--epochs", type=(int, int), default=(20, 80), show_default=True, help="To convergence, least and most.")
@click.option("--efficiency", default=EFFICIENCY, show_default=True, help="What a doubling leaves of each GPU's rate.")
@click.option("--nodes", multiple=True, type=int, help="Only so many nodes.")
def main(out: Path | None, seeds: int, epochs: tuple[int, int], efficiency: float, nodes: tuple[int, ...]) -> None:
    table = Table(title=f"{TRAINERS} trainers, {GPUS_PER_NODE} GPUs per node, median of {seeds} ensembles")
    for column in ("nodes", "preprocessed/s", "way", "all, h", "mean, h", "× faster (all)", "× faster (mean)"):
        table.add_column(column, justify="left" if column == "way" else "right")
    found = list(rows(seeds, epochs, [case for case in CASES if not nodes or case[0] in nodes], efficiency))
    for row in found:
        limit = "-" if row.preprocessed_per_s is None else f"{row.preprocessed_per_s:g}"
        least, middle, most = row.faster
        times = (f"{row.all_hours:.0f}", f"{row.mean_hours:.0f}", f"{middle:.2f} ({least:.2f}-{most:.2f})")
        table.add_row(str(row.nodes), limit, row.way, *times, f"{row.mean_faster:.2f}")
    Console(width=120).print(table)
    if out is not None:
        out.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
