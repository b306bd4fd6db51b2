"""How much of the work with known curves a pool does whose trainers' curves are unknown, by family of curves.

    python -m benchmarks.unknown_curves --settings calm,narrow --families amdahl,plateau --seeds 1,2,3
    python -m benchmarks.unknown_curves --settings trace --events events.csv.gz --hours 24
    python -m benchmarks.unknown_curves --events events.csv.gz --trainers trainers.csv.gz --curves curves.json

Each number is the work (A_e, node-seconds at the speed of one node, less what rescales cost) relative to a replay of
the same trainers whose curves are known, the mean over the seeds. The objective is scaling-efficiency, which counts the
same. Trainers do not run out: they are endless, or more than the pool can finish come in a stream. None of the families
is the one that the core fits (n/r = t1 (1 + a [n > 1] + b log2 n)); ``mixed`` draws one for each trainer. ``oracle``
knows the curves too, but measures what ``auto`` measures. ``measurable`` knows, at no cost, the rates on the counts
that trainers may have, and nothing of one node where that is fewer (it assumes linear scaling below): no measurement
tells more. ``profiled`` is the share of the node-time in profiles of ``auto``, ``worst`` its seed with the least work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean

import click
from rich.console import Console
from rich.table import Table

from pilot import planners
from pilot.cli.options import Sizes
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.arrivals import ARRIVALS_S
from pilot.core.plan.objective import scaling_efficiency
from pilot.core.plan.problem import Plan, Problem
from pilot.core.trainer.spec import Profiling, TrainerSpec
from pilot.research.sim.accounting import Accounting
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.sim.knowledge import MEASURED, TRUTH, Knowledge
from pilot.research.sim.metrics import summarize
from pilot.research.traces.changes import Change, read_changes, still_pool
from pilot.research.traces.fragments import pool_size
from pilot.research.traces.workload import WorkloadRow, read_workload

# --- families: the speed-up of n nodes over one ---------------------------------------------------------------------

SpeedUp = Callable[[int], float]


def _share(draw: Random, middle: float, spread: float = 0.8) -> float:
    """A positive number around ``middle``, log-normal."""
    return middle * math.exp(draw.gauss(0.0, spread))


def amdahl(draw: Random) -> SpeedUp:
    """Amdahl's law: a share of each step is serial."""
    serial = _share(draw, 0.02)
    return lambda n: n / (1 + serial * (n - 1))


def overlap(draw: Random) -> SpeedUp:
    """Sums overlap with computation (Pollux): the step time is a p-norm of both, between their sum and the longer."""
    start, each, norm = _share(draw, 0.3), _share(draw, 0.02), draw.uniform(1.0, 8.0)
    return lambda n: n / (1 + (0.0 if n == 1 else (start + each * (n - 2)) ** norm)) ** (1 / norm)


def plateau(draw: Random) -> SpeedUp:
    """From a random count on, more nodes add nothing; for every second trainer only until that count has doubled."""
    base, first = amdahl(draw), round(2 ** draw.uniform(0.6, 4.5))
    last = draw.choice((1 << 20, 2 * first))
    return lambda n: base(min(n, first)) * (1.0 if n <= last else base(n) / base(last))


def dip(draw: Random) -> SpeedUp:
    """The first step off a node costs more than the second node brings; Amdahl's law from there."""
    base, kept = amdahl(draw), draw.uniform(0.3, 0.65)
    return lambda n: 1.0 if n == 1 else kept * base(n)


def ring(draw: Random) -> SpeedUp:
    """A ring allreduce, 2 (n - 1) / n of the gradients over the slowest link, which is slower beyond a switch."""
    sums, switch, beyond = _share(draw, 0.15), draw.choice((4, 6, 8, 12, 16)), draw.uniform(1.5, 5.0)
    return lambda n: n / (1 + sums * 2 * (n - 1) / n * (beyond if n > switch else 1.0))


def power(draw: Random) -> SpeedUp:
    """A power of n."""
    exponent = draw.uniform(0.45, 0.97)
    return lambda n: float(n**exponent)


def rough(draw: Random) -> SpeedUp:
    """Amdahl's law, off by 5% at each count, as real measurements are."""
    base, seed = amdahl(draw), draw.random()
    return lambda n: base(n) * math.exp(Random(f"{seed} {n}").gauss(0.0, 0.05)) if n > 1 else 1.0


FAMILIES: dict[str, Callable[[Random], SpeedUp]] = {
    f.__name__: f for f in (amdahl, overlap, plateau, dip, ring, power, rough)
}
MIXED, FILE = "mixed", "file"
EACH = (*FAMILIES, MIXED)


# --- settings -------------------------------------------------------------------------------------------------------

RESCALE_UP_S, RESCALE_DOWN_S = 18.0, 12.0
"""FreeTrain's, each trainer within 20% of them."""

T_FWD_S, AT_ONCE, OF_A_STREAM = 120.0, 10, 40
MOST_OFFERED = 1.2
"""A stream offers this much more work than the pool has node-time."""

PAIR = ((100, 200, 300, 400), (100, 105, 110, 115))


@dataclass(frozen=True, slots=True)
class Setting:
    """A pool of ``nodes`` (0: the trace's), and trainers of ``least`` to one of ``most`` nodes that have ``length_h``
    of work on one node."""

    nodes: int
    least: int
    most: tuple[int, ...]
    length_h: float = math.inf


SETTINGS = {
    "calm": Setting(60, 1, (16, 32, 64)),
    "short": Setting(60, 1, (8, 16, 32), 1.0),
    "narrow": Setting(20, 1, (3,)),
    "narrow-short": Setting(20, 1, (3,), 1.0),
    "minimum": Setting(60, 4, (12,)),
    "pair": Setting(4, 1, (4,)),
    "trace": Setting(0, 1, (16, 32, 64), 5.0),
}
USUAL = "calm,short,narrow,minimum,pair"


@dataclass(frozen=True, slots=True)
class Files:
    """The files that were given: a trace, and the trainers of the family ``file``."""

    events: Path | None = None
    trainers: Path | None = None
    curves: Path | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One replay. ``know``: one of :data:`KNOWN`."""

    setting: str
    family: str
    seed: int
    know: str


ORACLE, MEASURABLE = "oracle", "measurable"
KNOWN = ("never", "auto", "inverse", ORACLE, MEASURABLE)
"""What may be known: how trainers of unknown curves are profiled, or more."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Work in node-seconds, the share of node-time in profiles, and problems solved."""

    work: float
    profiled: float
    solves: int


def workload(run: Run, nodes: float, hours: float, files: Files) -> list[WorkloadRow]:
    """The trainers of one replay, the same for all that are known of them."""
    if run.family == FILE:
        assert files.trainers is not None and files.curves is not None
        return [row for row in read_workload(files.trainers, files.curves) if row.submit_s < hours * 3600]
    if run.setting == "pair":
        curves = [Curve.of(enumerate(rates, start=1)) for rates in PAIR]
        return [_row(f"t{i}", Random(i), SETTINGS["pair"], curve, i, 4) for i, curve in enumerate(curves)]
    return list(_drawn(SETTINGS[run.setting], run.family, Random(f"{run.family} {run.seed}"), nodes, hours))


def _drawn(setting: Setting, family: str, draw: Random, nodes: float, hours: float) -> Iterator[WorkloadRow]:
    endless = math.isinf(setting.length_h)
    count = AT_ONCE if endless else AT_ONCE + math.ceil(MOST_OFFERED * nodes * hours / setting.length_h)
    kinds = [(_curve(family, draw, max(setting.most)), draw.choice(setting.most)) for _ in range(OF_A_STREAM)]
    for number in range(count):
        curve, most = kinds[number % OF_A_STREAM]
        row = _row(f"t{number:05}", draw, setting, curve, number % OF_A_STREAM, most)
        yield row if endless else replace(row, submit_s=max(0, number - AT_ONCE) * hours * 3600 / count)


def _curve(family: str, draw: Random, most: int) -> Curve:
    form = FAMILIES[draw.choice(sorted(FAMILIES)) if family == MIXED else family](draw)
    rate = _share(draw, 1000.0)
    return Curve.of((n, rate * form(n)) for n in range(1, most + 1))


def _row(name: str, draw: Random, setting: Setting, curve: Curve, index: int, most: int) -> WorkloadRow:
    up_s, down_s = (draw.uniform(0.8, 1.2) * cost_s for cost_s in (RESCALE_UP_S, RESCALE_DOWN_S))
    work_s = 1e9 if math.isinf(setting.length_h) else 3600 * _share(draw, setting.length_h, 0.6)
    samples = work_s * curve.single_node_rate()
    spec = TrainerSpec(
        trainer=TrainerId(name),
        min_nodes=setting.least,
        max_nodes=most,
        curve=curve,
        fixed_curve=True,
        rescale_up_s=up_s,
        rescale_down_s=down_s,
        samples=samples,
    )
    return WorkloadRow(spec, 0.0, samples, index)


# --- one replay -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """What all replays share."""

    hours: float
    noise: float
    parallel: int
    planner: str
    files: Files


def replay(options: Options, run: Run) -> Outcome:
    """Replay one case."""
    setting, hours = SETTINGS[run.setting], options.hours
    changes = _changes(setting, options.files)
    rows = workload(run, setting.nodes or pool_size(changes, hours * 3600).eq_nodes, hours, options.files)
    know = TRUTH if run.know in (TRUTH, MEASURABLE) else MEASURED
    profile = Profiling(run.know) if run.know in list(Profiling) else Profiling.AUTO
    plan = planners.make(options.planner)
    if run.know in (ORACLE, MEASURABLE):
        plan = partial(_knowing, plan, {row.spec.trainer: _value(row, run.know) for row in rows})
    core = Coordinator(CoordinatorConfig(T_FWD_S, max_parallel_trainers=options.parallel, arrivals_s=ARRIVALS_S))
    config = SimConfig(hours * 3600, knowledge=Knowledge(know, (), profile, run.seed), measure_noise=options.noise)
    simulation = Simulation(core, plan, changes, rows, config)
    simulation.run(lambda: False, lambda _: None)
    summary = summarize(simulation.records, simulation.accounts, Accounting.PAPER, len(rows), complete=True)
    return Outcome(summary.work, summary.profile_node_s / (3600 * summary.node_hours), summary.solves)


def _value(row: WorkloadRow, know: str) -> Curve:
    """The true value of a trainer per second, as far as it is known."""
    curve, least = row.spec.curve or Curve.proportional(), row.spec.min_nodes
    if know == MEASURABLE:
        curve = Curve.of((n, curve.at(n)) for n in range(least, row.spec.max_nodes + 1))
    return scaling_efficiency(row.spec, curve)


def _knowing(plan: Callable[[Problem], Plan], values: dict[TrainerId, Curve], problem: Problem) -> Plan:
    """The plan with the true values: pins and costs stay."""
    return plan(replace(problem, candidates=tuple(replace(c, value=values[c.trainer]) for c in problem.candidates)))


def _changes(setting: Setting, files: Files) -> list[Change]:
    if setting.nodes:
        return [still_pool(setting.nodes)]
    assert files.events is not None
    return read_changes(files.events)


# --- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One family in one setting: work relative to known curves by how much is known, the mean over seeds; of ``auto``
    the ``worst`` seed and the share of node-time in profiles."""

    setting: str
    family: str
    relative: dict[str, float]
    worst: float
    profiled: float


def row_of(setting: str, family: str, outcomes: dict[Run, Outcome]) -> Row:
    """The row of one family in one setting."""
    ours = {run: outcome for run, outcome in outcomes.items() if (run.setting, run.family) == (setting, family)}
    truth = {run.seed: outcome.work for run, outcome in ours.items() if run.know == TRUTH}
    by_know: dict[str, list[float]] = {}
    for run, outcome in ours.items():
        by_know.setdefault(run.know, []).append(outcome.work / truth[run.seed])
    relative = {know: fmean(shares) for know, shares in by_know.items() if know != TRUTH}
    profiled = [outcome.profiled for run, outcome in ours.items() if run.know == "auto"]
    return Row(setting, family, relative, min(by_know.get("auto", [math.nan])), fmean(profiled or [math.nan]))


def means(rows: Sequence[Row]) -> Iterator[Row]:
    """For each setting with several families, the mean over them."""
    for setting in dict.fromkeys(row.setting for row in rows):
        ours = [row for row in rows if row.setting == setting]
        if len(ours) > 1:
            relative = {know: fmean(row.relative[know] for row in ours) for know in ours[0].relative}
            profiled = fmean(row.profiled for row in ours)
            yield Row(setting, "(mean)", relative, min(row.worst for row in ours), profiled)


def _print(rows: Sequence[Row], options: Options) -> None:
    knows = list(rows[0].relative)
    title = f"work relative to known curves, {options.hours:g} h, noise {options.noise:.0%}"
    table = Table("setting", "family", *knows, "worst", "profiled", title=title)
    for row in [*rows, *means(rows)]:
        numbers = (*(row.relative[know] for know in knows), row.worst)
        table.add_row(row.setting, row.family, *(f"{100 * x:.1f}" for x in numbers), f"{row.profiled:.2%}")
    Console(width=110).print(table)


def _listed(allowed: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def parse(_context: click.Context, _option: click.Parameter, text: str) -> list[str]:
        words = text.split(",")
        if unknown := [word for word in words if word not in allowed]:
            raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(allowed)}")
        return words

    return parse


File = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(help=__doc__)
@click.option("--settings", default=USUAL, callback=_listed(list(SETTINGS)), help=f"Of {', '.join(SETTINGS)}.")
@click.option("--families", default=",".join(EACH), callback=_listed(EACH), show_default=True)
@click.option("--seeds", type=Sizes(), default="1,2,3", show_default=True)
@click.option("--know", default="never,auto", callback=_listed(KNOWN), help=f"Of {', '.join(KNOWN)}.")
@click.option("--hours", default=24.0, show_default=True)
@click.option("--noise", default=0.03, show_default=True, help="Relative standard deviation of a report.")
@click.option("--parallel", default=AT_ONCE, show_default=True, help="Trainers that run at once.")
@click.option("--planner", default="dp", show_default=True)
@click.option("--events", type=File, help="The trace of the setting `trace`.")
@click.option("--trainers", type=File, help="With --curves: replay these on the trace, as family `file`.")
@click.option("--curves", type=File)
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the outcomes to this file.")
def main(
    settings: list[str],
    families: list[str],
    seeds: tuple[int, ...],
    know: list[str],
    hours: float,
    noise: float,
    parallel: int,
    planner: str,
    events: Path | None,
    trainers: Path | None,
    curves: Path | None,
    jobs: int,
    out: Path | None,
) -> None:
    if trainers is not None:
        settings, families = ["trace"], [FILE]
    if ("trace" in settings and events is None) or (trainers is None) != (curves is None):
        raise click.UsageError("the setting `trace` needs --events; --trainers needs --curves, and --curves --trainers")
    options = Options(hours, noise, parallel, planner, Files(events, trainers, curves))
    knows = [TRUTH, *know]
    cases = [(setting, family) for setting in settings for family in (families if setting != "pair" else ["-"])]
    runs = [Run(*case, seed, one) for case in cases for seed in seeds for one in knows]
    outcomes = dict(zip(runs, _all(partial(replay, options), runs, jobs), strict=True))
    rows = [row_of(*case, outcomes) for case in cases]
    _print(rows, options)
    if out is not None:
        found = [asdict(run) | asdict(outcome) for run, outcome in outcomes.items()]
        out.write_text(json.dumps(found, indent=1) + "\n")


def _all(one: Callable[[Run], Outcome], runs: Sequence[Run], jobs: int) -> list[Outcome]:
    if jobs == 1:
        return list(map(one, runs))
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(one, runs, chunksize=2))


if __name__ == "__main__":
    main()
