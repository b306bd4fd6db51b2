"""How many trainers should run at once? Replays with several bounds, on traces of different pools.

    python -m benchmarks.parallel
    python -m benchmarks.parallel events.csv.gz --trainers trainers.csv.gz --curves curves.json --hours 24

Without EVENTS it draws four traces: wide and churning (as published for Summit), narrow (24 of its nodes), calm and
large (as published for Theta), and bursty (hundreds of nodes come together, about once in two hours). The trainers, if
no file is given, are drawn for each trace: FreeTrain's seven models, all submitted at the begin, with more work than
the pool can do. ``work`` is A_e relative to the first bound. Times are means of the trainers that ended by then: where
more of them ended, some of those are longer ones.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import click
from rich.console import Console
from rich.table import Table

from benchmarks.planners import KILOSAMPLES_PER_S, NODES
from pilot.cli.options import Parallel
from pilot.cli.research.replay_options import Several
from pilot.research.sim.sweep import Case, Inputs, Replay, run_sweep
from pilot.research.traces.changes import Change, read_changes, write_changes
from pilot.research.traces.fragments import pool_size
from pilot.research.traces.synthesis import HOUR_S, PUBLISHED, Published, draw
from pilot.service.settings import load_objective

TRACES: Mapping[str, Published] = {
    "wide, churning": PUBLISHED["summit"],
    "narrow": PUBLISHED["summit"].on(210),
    "calm, large": PUBLISHED["theta"],
    "bursty": Published(2048, 0.5, 0.5, 150.0, short_fragments=0.3, short_node_time=0.03),
}
"""The traces that are drawn."""

NODE_HOURS = (4.0, 40.0)
"""The median work of the short trainers that are drawn, and of the long ones, at the speed of one node."""

SPARE, FEWEST = 1.5, 100
"""Trainers are drawn until they have this many times the work that the pool would do if all scaled perfectly, and until
there are as many as this."""


@dataclass(frozen=True, slots=True)
class Row:
    """One replay."""

    trace: str
    most: int | None  #: trainers at once; null: sized from the pool
    efficiency: float | None
    work: float  #: relative to the first bound
    used: float
    completed: int
    total_h: float | None
    waiting_h: float | None
    training_h: float | None
    plan_longest_s: float


def node_hours(changes: Sequence[Change], until_s: float) -> float:
    """The trace's node-hours until then."""
    return pool_size(changes, until_s).node_seconds / HOUR_S


def workload(seed: int, node_hours: float) -> Iterator[tuple[object, ...]]:
    """Rows of a trainers file, with more work than ``node_hours``."""
    choose, left, number = Random(seed), SPARE * node_hours, 0
    rates = list(KILOSAMPLES_PER_S.values())
    while left > 0 or number < FEWEST:
        curve, hours = choose.randrange(len(rates)), choose.choice(NODE_HOURS) * choose.lognormvariate(0.0, 0.8)
        samples = hours * HOUR_S * rates[curve][0]
        yield f"t{number}", 0, choose.choice((1, 1, 1, 2, 4)), NODES[-1], 20, 10, f"{samples:.0f}", curve
        left, number = left - hours, number + 1


def write_workload(folder: Path, seed: int, node_hours: float) -> tuple[Path, Path]:
    """Write the trainers and their curves; returns the two files."""
    trainers, curves = folder / "trainers.csv", folder / "curves.json"
    with trainers.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            ("trainer", "submit_s", "min_nodes", "max_nodes", "rescale_up_s", "rescale_down_s", "samples", "curve")
        )
        rows.writerows(workload(seed, node_hours))
    entries = [
        {"nodes": NODES, "samples_per_s": rates, "objective_per_s": [rate / rates[0] for rate in rates]}
        for rates in KILOSAMPLES_PER_S.values()
    ]
    curves.write_text(json.dumps(entries))
    return trainers, curves


def replays(inputs: Inputs, bounds: Sequence[int | None], processes: int) -> list[Replay]:
    """The trace with each bound."""
    cases = [Case(planner="dp", max_parallel=most) for most in bounds]
    return run_sweep(inputs, cases, load_objective, 10.0, processes, lambda _: None)


def row(trace: str, replay: Replay, first: Replay) -> Row:
    """The row of one replay."""
    s = replay.summary
    hours = (None if mean is None else mean / HOUR_S for mean in (s.mean_total_s, s.mean_waiting_s, s.mean_training_s))
    longest_s = max((solve.build_s + solve.solve_s for solve in replay.solves), default=0.0)
    most, work = replay.case.max_parallel, s.work / first.summary.work
    return Row(trace, most, s.efficiency, work, s.used, s.completed, *hours, longest_s)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="trainers at once")
    for column in ("trace", "bound", "U", "work", "used", "ended", "total, h", "waiting, h", "training, h", "plan, s"):
        table.add_column(column, justify="left" if column == "trace" else "right")
    for r in rows:
        hours = ("-" if h is None else f"{h:.2f}" for h in (r.total_h, r.waiting_h, r.training_h))
        u = "-" if r.efficiency is None else f"{r.efficiency:.1%}"
        bound = "auto" if r.most is None else f"{r.most}"
        cells = (u, f"{r.work:.3f}", f"{r.used:.1%}", f"{r.completed}", *hours, f"{r.plan_longest_s:.2f}")
        table.add_row(r.trace, bound, *cells)
    return table


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(help=__doc__)
@click.argument("events", nargs=-1, type=FILE)
@click.option("--trainers", type=FILE, help="The trainers of all traces; default: drawn for each.")
@click.option("--curves", type=FILE, help="Their curves.")
@click.option("--hours", default=24.0, show_default=True, help="Of each trace.")
@click.option(
    "--bounds", type=Several(Parallel()), default="10,35,60,auto", show_default=True, help="The first is the measure."
)
@click.option("--seed", default=1, show_default=True, help="Of what is drawn.")
@click.option("--processes", default=1, show_default=True, help="Replays at once.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
def main(
    events: tuple[Path, ...],
    trainers: Path | None,
    curves: Path | None,
    hours: float,
    bounds: tuple[int | None, ...],
    seed: int,
    processes: int,
    out: Path | None,
) -> None:
    """Replay each trace with each bound."""
    if (trainers is None) != (curves is None):
        raise click.UsageError("--trainers and --curves belong together")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in _traces(events, Path(folder), hours * HOUR_S, seed).items():
            if trainers is None or curves is None:
                files = write_workload(Path(folder), seed, node_hours(read_changes(path), hours * HOUR_S))
            else:
                files = trainers, curves
            inputs = Inputs(path, *files, until_s=hours * HOUR_S)
            found = replays(inputs, bounds, processes)
            rows += [row(name, replay, found[0]) for replay in found]
            click.echo(f"{name}: {found[0].summary.eq_nodes:.1f} eq nodes", err=True)
    Console(width=120).print(_table(rows))
    if out is not None:
        out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _traces(events: Sequence[Path], folder: Path, until_s: float, seed: int) -> dict[str, Path]:
    """The given traces, or those that are drawn."""
    if events:
        return {path.name: path for path in events}
    drawn = {name: folder / f"{number}.csv.gz" for number, name in enumerate(TRACES)}
    for name, path in drawn.items():
        write_changes(path, draw(TRACES[name], until_s, seed))
    return drawn


if __name__ == "__main__":
    main()
