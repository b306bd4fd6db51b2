"""Huawei's experiments (§5, Figs 9-16): jobs on static pools, under several policies. See docs/research/huawei.md.

    python -m benchmarks.huawei --jobs jobs.csv --out huawei.jsonl
    python -m benchmarks.huawei --jobs jobs.csv --out short.jsonl --experiments short --nodes 70,110,150 --sets 4

Each replay's means and ends become a line of the ``--out`` file; ``python -m benchmarks.huawei_tables`` compares them.
Replays whose lines exist already are skipped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, quantiles

import click

from benchmarks.huawei_jobs import SHORT_MOST_S, Job, drawn, read, resampled, rows, with_short
from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.plan.between import plan as in_between
from pilot.core.plan.problem import Plan, Problem
from pilot.planners import dp
from pilot.research.planners import rolling_horizon
from pilot.research.sim.accounting import times_of
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.traces.changes import still_pool
from pilot.research.traces.workload import Mishaps, TrainerEnd, befallen

SIZES = (1, 2, 4, 8, 16)
"""K (§5.1)."""
NODES = tuple(range(70, 191, 20))
F_S, DELAY_S = 300.0, 15.0
HANG_END_S = 80 * 3600.0
"""A replay with jobs that never end stops here."""
WITHIN = 0.02
"""Within this gap the prices of ``rolling-horizon`` need no solver; docs/research/huawei.md compares with 0.5%."""
SETS = 6
"""Set 0 is the file's own (or random); the others are resampled from it."""

SCENARIOS = {
    "baseline": Mishaps(),
    "short": Mishaps(),
    "noise": Mishaps(eta_noise=0.1),
    "bugs": Mishaps(eta_noise=0.1, fail_share=0.15, cancel_share=0.1),
    "hangs": Mishaps(eta_noise=0.1, hang_share=0.15, cancel_share=0.1),
    "delay": Mishaps(),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """A planner, and how often it decides (0: at every event)."""

    plan: Callable[[Problem], Plan]
    every_s: float = F_S
    timed: bool = True


def by_what_is_left(problem: Problem) -> Plan:
    """FreeTrain's optimum of each job's speed divided by its remaining work: Huawei's s/d for one step."""
    if problem.between:
        return in_between(problem)
    scaled = [replace(c, value=c.value.scaled(1.0 / (c.left_s or 1.0))) for c in problem.candidates]
    return dp.plan(replace(problem, candidates=tuple(scaled)))


def close(problem: Problem) -> Plan:
    """``rolling-horizon`` to within 2%."""
    if problem.between:
        return in_between(problem)
    return rolling_horizon.plan(problem, limit_s=10.0, gap=WITHIN)


POLICIES = {
    "greedy": Policy(planners.make("greedy")),
    "rolling-horizon": Policy(close),
    "rolling-horizon, cbc": Policy(planners.make("rolling-horizon")),
    "rolling-horizon, events": Policy(close, 0.0),
    "milp": Policy(planners.make("milp"), timed=False),
    "milp, events": Policy(planners.make("milp"), 0.0, timed=False),
    "dp": Policy(planners.make("dp"), timed=False),
    "dp, events": Policy(planners.make("dp"), 0.0, timed=False),
    "left": Policy(by_what_is_left),
    "left, events": Policy(by_what_is_left, 0.0),
}

EXPERIMENTS: dict[str, tuple[Sequence[str], Sequence[str], Sequence[int]]] = {
    "figures": (["baseline"], ["greedy", "rolling-horizon"], range(SETS)),
    "robustness": (list(SCENARIOS)[1:], ["greedy", "rolling-horizon"], range(SETS)),
    "policies": (["baseline"], ["dp", "dp, events"], range(SETS)),
    "combined": (["baseline"], ["rolling-horizon, events"], [0]),
    "left": (["baseline"], ["left", "left, events"], [0]),
    "short": (["short"], ["greedy", "dp"], range(SETS)),
    "same": (["baseline"], ["rolling-horizon, cbc", "milp", "milp, events"], [0]),
}
"""Scenarios, policies and sets. ``same``: replayed with a quicker method elsewhere, with the solver here."""


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies a replay."""

    scenario: str
    policy: str
    number: int
    nodes: int
    most: int = SIZES[-1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Its results: mean minutes of the jobs that ended (``long``, ``short``: the totals of those with at least five
    minutes of work, and of the others), when jobs were completed (minutes), how long decisions took."""

    key: Key
    waiting: float
    total: float
    completed: tuple[float, ...]
    decisions: int
    mean_s: float
    p95_s: float
    worst_s: float
    long: float
    short: float


@dataclass(slots=True)
class Timed:
    """A planner whose decisions are timed; time between decisions is not counted."""

    plan: Callable[[Problem], Plan]
    took_s: list[float] = field(default_factory=list)

    def __call__(self, problem: Problem) -> Plan:
        started_s = time.perf_counter()
        made = self.plan(problem)
        if not problem.between:
            self.took_s.append(time.perf_counter() - started_s)
        return made


def run(jobs: Sequence[Job], key: Key) -> Outcome:
    """One replay."""
    policy, sizes = POLICIES[key.policy], [2**m for m in range(key.most.bit_length())]
    if key.scenario == "short":
        jobs = with_short(jobs, key.number)
    those = befallen(rows(jobs, sizes), replace(SCENARIOS[key.scenario], seed=key.number + 1))
    timed = Timed(policy.plan)
    core = Coordinator(
        CoordinatorConfig(max_parallel_trainers=10_000, decide_every_s=policy.every_s, timed=policy.timed)
    )
    until_s = HANG_END_S if key.scenario == "hangs" else float("inf")
    config = SimConfig(until_s, scale_up_delay_s=DELAY_S if key.scenario == "delay" else 0.0)
    simulation = Simulation(core, timed, [still_pool(key.nodes)], those, config)
    simulation.run(lambda: False, lambda _: None)
    times = times_of(simulation.accounts.values())
    ends = sorted(round(one.ended_s / 60, 3) for one in times if one.ending is TrainerEnd.FINISHES)
    brief = {row.spec.trainer for row in those if row.samples < SHORT_MOST_S}
    of_length = ([t for t in times if (t.trainer in brief) is is_brief] for is_brief in (False, True))
    long, short = (fmean([one.total_s for one in some] or [0.0]) / 60 for some in of_length)
    took = sorted(timed.took_s)
    return Outcome(
        key,
        fmean([one.waiting_s for one in times] or [0.0]) / 60,
        fmean([one.total_s for one in times] or [0.0]) / 60,
        tuple(ends),
        len(took),
        fmean(took),
        quantiles(took, n=20)[-1],
        took[-1],
        long,
        short,
    )


def keys(names: Sequence[str], nodes: Sequence[int]) -> Iterator[Key]:
    """All replays: first those of the file's own jobs, and the baseline before the scenarios with mishaps."""
    found = [
        Key(scenario, policy, number, count)
        for name in names
        for scenarios, policies, numbers in [EXPERIMENTS[name]]
        for scenario, policy, number, count in product(scenarios, policies, numbers, nodes)
    ]
    yield from sorted(found, key=lambda key: (key.number > 0, key.scenario != "baseline", key.number))


def most_keys(nodes: Sequence[int]) -> list[Key]:
    """The sweep of n_max, which the paper does not state. For large values ``dp`` stands in for ``rolling-horizon``,
    which would have too many courses for an hour."""
    quick = product((4, 8, 32, 64), nodes, ("greedy", "dp"))
    slow = product((4, 8), nodes, ("rolling-horizon",))
    return [Key("baseline", policy, 0, n, most) for most, n, policy in (*quick, *slow)]


def _run_of(sets: Sequence[Sequence[Job]], key: Key) -> Outcome:
    return run(sets[key.number], key)


@click.command(help=__doc__)
@click.option("--jobs", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CSV of the jobs.")
@click.option("--nodes", default=",".join(map(str, NODES)), show_default=True, help="Sizes of the pool.")
@click.option("--experiments", default=",".join((*EXPERIMENTS, "n_max")), show_default=True, help="Which.")
@click.option("--sets", default=SETS, show_default=True, type=click.IntRange(1, SETS), help="So many sets of jobs.")
@click.option("--first", type=int, help="Only so many jobs.")
@click.option("--processes", default=1, show_default=True, help="Replays at once.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="JSON lines.")
def main(
    jobs: Path | None, nodes: str, experiments: str, sets: int, first: int | None, processes: int, out: Path
) -> None:
    original = (read(jobs) if jobs is not None else drawn(1))[:first]
    drawn_sets = [original, *(resampled(original, number) for number in range(1, sets))]
    counts, names = list(map(int, nodes.split(","))), experiments.split(",")
    wanted = [key for key in keys([name for name in names if name != "n_max"], counts) if key.number < sets]
    wanted += most_keys(counts) if "n_max" in names else []
    there = {json.dumps(json.loads(line)["key"]) for line in out.read_text().splitlines()} if out.exists() else set()
    todo = [key for key in dict.fromkeys(wanted) if json.dumps(asdict(key)) not in there]
    with ProcessPoolExecutor(processes) as pool, out.open("a") as file:
        for outcome in pool.map(partial(_run_of, drawn_sets), todo):
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
            key = outcome.key
            click.echo(
                f"{key.scenario:9} {key.policy:22} set {key.number} n_max {key.most:2} {key.nodes:4} nodes: waiting"
                f" {outcome.waiting:6.1f} min, total {outcome.total:6.1f}; {outcome.decisions} decisions, mean"
                f" {outcome.mean_s:.3f} s, p95 {outcome.p95_s:.3f}, worst {outcome.worst_s:.3f}"
            )


if __name__ == "__main__":
    main()
