"""MalleTrain's experiments that are not plain replays; docs/research/malletrain.md has the results.

python -m benchmarks.malletrain sequence
python -m benchmarks.malletrain planners --at-once 1,2,4,10,20,40
python -m benchmarks.malletrain partitions events.csv.gz --trainers hpo.csv.gz --curves curves.json --into 1,2,4,8
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, quantiles

import click
from rich.console import Console
from rich.table import Table

from benchmarks.planners import problem, timed
from pilot import planners
from pilot.core.ids import NodeId, natural_key
from pilot.research.sim.sweep import Case, Inputs, Replay, run_case
from pilot.research.traces.changes import Change, read_changes, write_changes
from pilot.research.traces.text_files import read_lines, write_text
from pilot.service.settings import load_objective

Path_ = click.Path(exists=True, dir_okay=False, path_type=Path)
SOLVE_LIMIT_S = 10.0


@click.group()
def main() -> None:
    """MalleTrain's measurements, repeated here."""


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


# --- Fig 6: the sequence of node counts -----------------------------------------------------------------------------


SEQUENCE = """\
trainer,submit_s,min_nodes,max_nodes,rescale_up_s,rescale_down_s,samples,curve
t,0,1,{most},18,12,1e9,0
"""
RISING = '[{{"nodes": {nodes}, "samples_per_s": {rates}}}]'


@main.command()
@click.option("--nodes", default=5, show_default=True)
def sequence(nodes: int) -> None:
    """The node counts on which a trainer is measured, in order (Fig 6)."""
    counts = list(range(nodes + 1))
    with tempfile.TemporaryDirectory() as name:
        trainers, curves = Path(name) / "t.csv", Path(name) / "c.json"
        write_text(trainers, SEQUENCE.format(most=nodes))
        write_text(curves, RISING.format(nodes=counts, rates=[100 * n**0.9 for n in counts]))
        for profile in ("inverse", "auto", "never"):
            case = Case("dp", know="measured", profile=profile, measure_noise=0.03, nodes=nodes, max_parallel=10)
            replay = _run(Inputs(None, trainers, curves, until_s=7200.0), case)
            (account,) = replay.busiest
            held = [count for _, count in account.changes]
            ups = sum(after > before for before, after in pairwise(held))
            print(f"{profile:>8}: {' '.join(map(str, held))}   scale-ups after the start: {ups}")


# --- Fig 8: many planners at once -----------------------------------------------------------------------------------


def _solve(seed: int, nodes: int, trainers: int) -> float:
    return timed(planners.make("milp"), problem(nodes, trainers, seed))[0]


@main.command("planners")
@click.option("--at-once", default="1,2,4,10,20,40", show_default=True)
@click.option("--nodes", default=100, show_default=True)
@click.option("--trainers", default=10, show_default=True)
@click.option("--each", default=5, show_default=True, help="Plans of each planner.")
def many_planners(at_once: str, nodes: int, trainers: int, each: int) -> None:
    """The time of a plan when this many planners plan at once on this machine (Fig 8)."""
    table = Table("planners at once", "mean, s", "median, s", "95%, s", title=f"{nodes} nodes, {trainers} trainers")
    for count in _counts(at_once):
        with ProcessPoolExecutor(count) as pool:
            list(pool.map(_solve, range(count), [nodes] * count, [trainers] * count))  # imports are not counted
            seeds = range(count * each)
            times = list(pool.map(_solve, seeds, [nodes] * len(seeds), [trainers] * len(seeds)))
        table.add_row(str(count), *(f"{t:.3f}" for t in (fmean(times), median(times), quantiles(times, n=20)[-1])))
    Console().print(table)


# --- §3.4: partitions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split:
    """The joint result of one machine's partitions: ``work``, and the seconds spent on plans."""

    work: float
    static_work: float
    interruptions: float
    took_s: list[float]


@main.command()
@click.argument("events", type=Path_)
@click.option("--trainers", type=Path_, required=True)
@click.option("--curves", type=Path_, required=True)
@click.option("--into", default="1,2,4,8", show_default=True, help="So many partitions.")
@click.option("--hours", type=float, help="Of the trace  [default: all].")
@click.option(
    "--parallel", default=10, show_default=True, help="Trainers that run at once, in all partitions together."
)
@click.option("--planner", default="dp", show_default=True)
def partitions(
    events: Path, trainers: Path, curves: Path, into: str, hours: float | None, parallel: int, planner: str
) -> None:
    """What splitting a machine into pools that plan alone costs in work and saves in solve time (§3.4).

    Each partition has an equal share of the nodes (neighbours by name) and of the trainers (dealt in turn). U is for
    all partitions together, over the static work of one pool.
    """
    until_s = None if hours is None else hours * 3600
    table = Table("partitions", "at once in each", "U", "work", "interruptions", "plans", "median, ms", "longest, ms")
    one: Split | None = None
    for count in _counts(into):
        each = max(1, math.ceil(parallel / count))
        split = _split(events, trainers, curves, count, until_s, Case(planner, max_parallel=each))
        one = one or split
        took_ms = sorted(1000 * s for s in split.took_s)
        table.add_row(
            str(count),
            str(each),
            f"{split.work / one.static_work:.2%}",
            f"{split.work / one.work:.2%}",
            f"{split.interruptions:.1f}",
            str(len(took_ms)),
            f"{median(took_ms):.1f}",
            f"{took_ms[-1]:.0f}",
        )
    Console().print(table)


def _split(events: Path, trainers: Path, curves: Path, count: int, until_s: float | None, case: Case) -> Split:
    changes, (header, *rows) = read_changes(events), list(read_lines(trainers))
    until_s = changes[-1].time_s if until_s is None else until_s
    replays = []
    with tempfile.TemporaryDirectory() as name:
        for number, nodes in enumerate(_parts(changes, count)):
            part, ours = Path(name) / f"{number}.csv", Path(name) / f"t{number}.csv"
            write_changes(part, _only(changes, nodes))
            write_text(ours, "".join([header, *rows[number::count]]))
            replays.append(_run(Inputs(part, ours, curves, until_s), case))
    summaries = [replay.summary for replay in replays]
    begun = sum(s.submitted for s in summaries)
    return Split(
        sum(s.work for s in summaries),
        sum(s.static_work for s in summaries),
        sum(s.interruptions * s.submitted for s in summaries) / max(1, begun),
        [solve.build_s + solve.solve_s for replay in replays for solve in replay.solves],
    )


def _parts(changes: Sequence[Change], count: int) -> list[set[NodeId]]:
    """The nodes of the trace in equal parts of neighbours by name."""
    nodes = sorted({node for change in changes for node in change.joined}, key=natural_key)
    size = math.ceil(len(nodes) / count)
    return [set(nodes[first : first + size]) for first in range(0, len(nodes), size)]


def _only(changes: Sequence[Change], nodes: set[NodeId]) -> list[Change]:
    ours = nodes.__contains__
    parts = [Change(c.time_s, tuple(filter(ours, c.joined)), tuple(filter(ours, c.left))) for c in changes]
    return [part for part in parts if part.joined or part.left]


def _run(inputs: Inputs, case: Case) -> Replay:
    return run_case(inputs, case, load_objective, SOLVE_LIMIT_S, lambda: False, lambda _: None)


if __name__ == "__main__":
    main()
