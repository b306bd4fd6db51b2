"""A queue that one understands: forecasts of starts, the longest wait, objectives for short trainers behind long ones.

    python -m benchmarks.queue forecasts
    python -m benchmarks.queue objectives --events events.csv.gz --trainers trainers.csv.gz --curves curves.json
    python -m benchmarks.queue waits --hours 48

``forecasts``: what each trainer is told when it is submitted, against when it starts. Those that start within a minute
do not count; one that is told no time but "at once" is taken to be told :data:`AT_ONCE_S`. ``objectives``: what plans
maximise. ``waits``: the bound of ``--longest-wait-s``.

Without files there are two streams of trainers of mixed lengths (log-normal, median 3 node-hours, mean 7): on 24 nodes
that stay, and on nodes that come and go as published for Summit. U is not comparable between objectives: a run in which
more trainers end has other trainers. ``work`` is what was done, in node-hours at the speed of one node.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from benchmarks.planners import KILOSAMPLES_PER_S, NODES
from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.events import Event, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.core.plan.aging import LONGEST_WAIT_S
from pilot.core.plan.arrivals import ARRIVALS_S
from pilot.core.plan.objective import named_objective
from pilot.core.trainer.spec import TrainerSpec
from pilot.research.sim.accounting import Accounting, times_of
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.sim.metrics import summarize
from pilot.research.traces.changes import Change, read_changes, still_pool
from pilot.research.traces.synthesis import PUBLISHED, draw
from pilot.research.traces.workload import WorkloadRow, read_workload

HOUR_S = 3600.0
AT_ONCE_S = 120.0
"""The forward-looking time: who does not start at once needs another plan."""

WAITED_S = 60.0
MEDIAN_H, SPREAD = 3.0, 1.3
OBJECTIVES = ("throughput", "scaling-efficiency", "mean-completion-time")


@dataclass(frozen=True, slots=True)
class Stream:
    """Trainers for a pool whose nodes come and go by ``changes``."""

    name: str
    changes: Sequence[Change]
    rows: Sequence[WorkloadRow]


def mixed(seed: int, hours: float, busy_nodes: float) -> Iterator[WorkloadRow]:
    """Trainers that arrive at random, such that their work keeps ``busy_nodes`` nodes busy at perfect scaling."""
    choose, at_s, number = Random(seed), 0.0, 0
    gap_s = MEDIAN_H * math.exp(SPREAD**2 / 2) * HOUR_S / busy_nodes
    rates = list(KILOSAMPLES_PER_S.values())
    while (at_s := at_s + choose.expovariate(1 / gap_s)) < hours * HOUR_S:
        curve = choose.randrange(len(rates))
        samples = MEDIAN_H * choose.lognormvariate(0.0, SPREAD) * HOUR_S * rates[curve][0]
        known = Curve.of(zip(NODES, rates[curve], strict=True))
        least, name = choose.choice((1, 1, 1, 2, 4)), TrainerId(f"t{number}")
        spec = TrainerSpec(name, least, NODES[-1], known, fixed_curve=True, samples=samples)
        yield WorkloadRow(spec, at_s, samples, curve)
        number += 1


class Told(Simulation):
    """A replay that keeps what trainers are told when they are submitted: in how many seconds they are expected to
    start (None: it cannot be said)."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.told: dict[TrainerId, tuple[float, float | None]] = {}

    def _settle(self, given: Sequence[Event]) -> None:
        super()._settle(given)
        came = [event.spec.trainer for event in given if isinstance(event, TrainerSubmitted)]
        found = self.core.prognoses(self.now_s) if came else {}
        for name in came:
            self.told[name] = self.now_s, found[name].starts_in_s if name in found else 0.0


Run = TypeVar("Run", bound=Simulation)


def replayed(kind: type[Run], stream: Stream, config: CoordinatorConfig, hours: float) -> Run:
    """A replay of ``stream``."""
    rows = [replace(row, spec=replace(row.spec, objective_curve=None)) for row in stream.rows]
    core = Coordinator(config)
    simulation = kind(core, planners.make("dp"), stream.changes, rows, SimConfig(hours * HOUR_S))
    simulation.run(lambda: False, lambda _: None)
    return simulation


@dataclass(frozen=True, slots=True)
class Forecast:
    """How the forecasts of a replay came true, in shares of those that can be judged by its end."""

    stream: str
    most: int | None
    longest_wait_h: float
    waited: int  #: how many did not start within a minute
    told: float  #: of them: with a time
    before: float  #: of these: start before they are expected
    within_twice: float  #: start within twice the wait


def judged(stream: Stream, config: CoordinatorConfig, hours: float) -> Forecast:
    """Compare what trainers are told with when they start."""
    run = replayed(Told, stream, config, hours)
    started_s = {name: next((at_s for at_s, n in a.changes if n), math.inf) for name, a in run.accounts.items()}
    waits = {name: started_s.get(name, math.inf) - at_s for name, (at_s, _) in run.told.items()}
    waited = [name for name, wait_s in waits.items() if wait_s > WAITED_S or run.told[name][1]]
    told = {name: in_s for name in waited if (in_s := run.told[name][1]) is not None}

    def share(times: float) -> float:
        limit_s = {name: times * max(AT_ONCE_S, in_s) for name, in_s in told.items()}
        end_s = {name: run.now_s - run.told[name][0] for name in told}
        known = [name for name in told if waits[name] < math.inf or limit_s[name] <= end_s[name]]
        return sum(waits[name] <= limit_s[name] for name in known) / max(1, len(known))

    most, longest_h = config.max_parallel_trainers, config.longest_wait_s / HOUR_S
    known = len(told) / max(1, len(waited))
    return Forecast(stream.name, most, longest_h, len(waited), known, share(1.0), share(2.0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay achieved; times are means of the trainers that ended."""

    stream: str
    objective: str
    longest_wait_h: float
    efficiency: float | None
    work: float
    completed: int
    total_h: float | None
    waiting_h: float | None
    short_total_h: float | None  #: of the half of them with least work
    longest_without_h: float  #: the longest wait for the first nodes


def outcome(stream: Stream, config: CoordinatorConfig, objective: str, hours: float) -> Outcome:
    """Replay with one objective."""
    run = replayed(Simulation, stream, replace(config, objective=named_objective(objective)), hours)
    submitted = sum(row.submit_s <= run.now_s for row in stream.rows)
    summary = summarize(run.records, run.accounts, Accounting.PAPER, submitted, True)
    ended = times_of(run.accounts.values())
    work = {row.spec.trainer: row.samples * run.records.weight(row) for row in stream.rows}
    short = sorted(ended, key=lambda one: work[one.trainer])[: max(1, len(ended) // 2)]
    waits = [
        next((at_s for at_s, n in a.changes if n), run.now_s) - a.submission.submit_s for a in run.accounts.values()
    ]
    return Outcome(
        stream.name,
        objective,
        config.longest_wait_s / HOUR_S,
        summary.efficiency,
        summary.work / HOUR_S,
        len(ended),
        _mean_h(one.total_s for one in ended),
        _mean_h(one.waiting_s for one in ended),
        _mean_h(one.total_s for one in short),
        max(waits, default=0.0) / HOUR_S,
    )


def _mean_h(seconds: Iterable[float]) -> float | None:
    found = [*seconds]
    return fmean(found) / HOUR_S if found else None


def _table(title: str, rows: Sequence[Forecast | Outcome]) -> Table:
    table = Table(title=title)
    for column in asdict(rows[0]):
        table.add_column(
            column.replace("_h", ", h").replace("_", " "), justify="left" if column == "stream" else "right"
        )
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else f"{value}" for value in asdict(row).values()))
    return table


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(help=__doc__)
@click.argument("what", type=click.Choice(("forecasts", "objectives", "waits")), default="forecasts")
@click.option("--events", type=FILE, help="A trace; with --trainers and --curves.")
@click.option("--trainers", type=FILE, help="Its trainers.")
@click.option("--curves", type=FILE, help="Their curves.")
@click.option("--hours", default=168.0, show_default=True, help="Of each replay.")
@click.option("--most", type=click.IntRange(min=1), help="Trainers at once.  [default: the pool's]")
@click.option("--longest-wait-h", default=LONGEST_WAIT_S / HOUR_S, show_default=True, help="0: no bound.")
@click.option("--seed", default=1, show_default=True, help="Of what is drawn.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
def main(
    what: str,
    events: Path | None,
    trainers: Path | None,
    curves: Path | None,
    hours: float,
    most: int | None,
    longest_wait_h: float,
    seed: int,
    out: Path | None,
) -> None:
    """Replay the streams."""
    if len({events is None, trainers is None, curves is None}) > 1:
        raise click.UsageError("--events, --trainers and --curves belong together")
    if events is not None and trainers is not None and curves is not None:
        streams = [Stream(events.name, read_changes(events), read_workload(trainers, curves))]
    else:
        churn = draw(PUBLISHED["summit"].on(400), hours * HOUR_S, seed)
        streams = [
            Stream("mixed, 24 nodes", [still_pool(24)], list(mixed(seed, hours, 20.0))),
            Stream("mixed, churning", churn, list(mixed(seed, hours, 28.0))),
        ]
    config = CoordinatorConfig(arrivals_s=ARRIVALS_S, longest_wait_s=longest_wait_h * HOUR_S or math.inf)
    config = replace(config, max_parallel_trainers=most) if most is not None else config
    rows: list[Forecast] | list[Outcome]
    if what == "forecasts":
        timed = replace(config, timed=True)  # the core hears how far trainers have got, as it does live
        rows = [judged(stream, timed, hours) for stream in streams]
    elif what == "objectives":
        rows = [outcome(stream, config, objective, hours) for stream in streams for objective in OBJECTIVES]
    else:
        bounds = [replace(config, longest_wait_s=h * HOUR_S or math.inf) for h in (0.0, 1.0, 4.0, 12.0)]
        rows = [outcome(stream, bound, "scaling-efficiency", hours) for stream in streams for bound in bounds]
    Console(width=140).print(_table(what, rows))
    if out is not None:
        out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
