"""The output of ``pilot replay``: tables, how long decisions took, and each trainer's times as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING

import click

from pilot.cli.rows import aligned
from pilot.cli.show import console, show

if TYPE_CHECKING:
    from pilot.research.sim.sweep import Replay

Row = dict[str, str]

DONE = 100
"""Replays are compared when one of them has completed this many trainers (Huawei Fig 11)."""

MOST_COMPARED = 4
"""With more replays, a table comparing each with each is hard to read."""


def label(replay: Replay, names: Sequence[str]) -> str:
    """Name a replay by the values of the options ``names``."""
    return ", ".join(f"{name.removesuffix('_s')} {value(replay, name)}" for name in names)


def value(replay: Replay, name: str) -> object:
    """The value of an option, in words."""
    found = getattr(replay.case, name)
    return "auto" if found is None and name == "max_parallel" else found


def rows(replays: Sequence[Replay], names: Sequence[str]) -> list[Row]:
    """The rows of the first table, a dict of column → cell for each replay."""
    budgets = any(r.case.budget is not None for r in replays)
    spreads = any(r.summary.mean_spread is not None for r in replays)
    return [
        {name.removesuffix("_s"): f"{value(r, name)}" for name in names}
        | _row(r)
        | ({"budget": _budget(r)} if budgets else {})
        | ({"excess nodes": _number(r.summary.mean_spread, ".2f")} if spreads else {})
        for r in replays
    ]


def _row(replay: Replay) -> Row:
    s = replay.summary
    return {
        "U": _number(s.efficiency, ".2%"),
        "A_e": f"{s.work:.4e}",
        "A_s": f"{s.static_work:.4e}",
        "eq nodes": f"{s.eq_nodes:.2f}",
        "used": f"{s.used:.1%}",
        "completed": f"{s.completed} of {s.submitted}",
        "hours": f"{s.reached_h:.1f}",
    }


def _budget(replay: Replay) -> str:
    if (budget := replay.case.budget) is None:
        return "-"
    ended_h = replay.summary.budget_ended_h
    return f"{replay.summary.node_hours / budget:.0%} used" if ended_h is None else f"used up after {ended_h:.1f} h"


def _costs(replay: Replay) -> Row:
    s = replay.summary
    return {
        "rescale cost": f"{s.rescale_per_event:.3e}",
        "preemption cost": f"{s.preemption_per_event:.3e}",
        "return on rescale": _number(s.return_on_rescale, ".1f"),
        "solves": f"{s.solves}",
        "plans": ", ".join(f"{count} {status}" for status, count in s.plans.items()),
    }


def _learning(replay: Replay) -> Row:
    s = replay.summary
    nodes_s = s.node_hours * 3600
    return {
        "interruptions per trainer": f"{s.interruptions:.1f}",
        "s to 90% of oracle": _number(s.to_oracle_s, ".0f"),
        "node-s in profiles": f"{s.profile_node_s:.4g} ({_share(s.profile_node_s, nodes_s)})",
        "lost to profiles": _share(s.profile_cost, s.work),
    }


def _times(replay: Replay) -> Row:
    s = replay.summary
    means = {"waiting": s.mean_waiting_s, "training": s.mean_training_s, "total": s.mean_total_s}
    return {f"{name}, min": _number(None if mean_s is None else mean_s / 60, ".1f") for name, mean_s in means.items()}


def _share(part: float, total: float) -> str:
    return f"{part / total:.2%}" if total > 0 else "-"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def print_tables(replays: Sequence[Replay], names: Sequence[str]) -> None:
    """Print the tables of all replays; nothing if no replay was started."""
    from pilot.research.sim.accounting import done_when
    from pilot.research.sim.metrics import U_IN_WORDS
    from pilot.research.sim.remarks import remarks

    if not replays:
        return

    def print_rows(text: str, row_of: Callable[[Replay], Row]) -> None:
        click.echo(text)
        _print_table([{"": label(replay, names)} | row_of(replay) for replay in replays])

    def done(replay: Replay) -> Row:
        counts = [done_when(other.times, DONE, replay.times) for other in replays]
        heads = [f"when {label(other, names)} had {DONE}" for other in replays]
        return {head: _number(count, "d") for head, count in zip(heads, counts, strict=True)}

    def run_times(replay: Replay) -> Row:
        mean_h = {row.curve: row.mean_h for row in replay.summary.run_times}
        return {f"curve {index}": _number(mean_h.get(index), ".2f") for index in curves}

    curves = sorted({row.curve for replay in replays for row in replay.summary.run_times})
    _print_table(rows(replays, names))
    for unit in dict.fromkeys(replay.summary.unit for replay in replays):
        click.echo(U_IN_WORDS.format(unit=unit) + "\n")
    for replay in replays:
        for sentence in remarks(replay.summary):
            click.echo(f"{_named(replay, names)}{sentence}\n")
    print_rows("Work lost to rescaling and preemption, mean per change of the pool:", _costs)
    print_rows("Mean times of trainers that have ended; waiting is time without nodes:", _times)
    if 1 < len(replays) <= MOST_COMPARED and all(replay.summary.completed >= DONE for replay in replays):
        print_rows("Completed trainers:", done)
    if any(replay.case.know != "truth" for replay in replays):
        lost = "lost to profiles: the most that their rescales can have cost, as a share of the work done"
        print_rows(f"Learning the curves ({lost}):", _learning)
    if len(curves) > 1:
        print_rows("Mean run time in hours, from admission to completion, of completed trainers:", run_times)


def _print_table(cells: Sequence[Row]) -> None:
    show(console(), aligned([list(cells[0]), *(list(row.values()) for row in cells)]))
    click.echo()


def warn_of_short_time(replays: Sequence[Replay], names: Sequence[str], limit_s: float) -> None:
    """Say how many plans ``limit_s`` may have cut short: the same command may then print other results.

    ``rolling-horizon`` spends half of the time on its prices, and the rest on a solver.
    """
    for replay in replays:
        slow = sum(solve.build_s + solve.solve_s > limit_s / 2 for solve in replay.solves)
        if slow:
            plans = f"{slow:,} of {len(replay.solves):,} plans took more than half of --solve-limit-s {limit_s:g}"
            text = f"{_named(replay, names)}{plans}: some may have been cut short, so another run may differ"
            click.echo(text, err=True)


def print_solve_times(replays: Sequence[Replay], names: Sequence[str]) -> None:
    """Print the times of solves on stderr, because they differ from run to run."""
    for replay in replays:
        took = sorted(solve.build_s + solve.solve_s for solve in replay.solves)
        if len(took) > 1:
            p95_s = quantiles(took, n=20)[-1]
            times = f"mean {fmean(took):.3f} s, median {median(took):.3f} s, 95th percentile {p95_s:.3f} s"
            click.echo(f"{_named(replay, names)}{len(took):,} plans: {times}, longest {took[-1]:.3f} s", err=True)


def write_times(path: Path, replays: Sequence[Replay], names: Sequence[str]) -> None:
    """Write one line per replay and ended trainer; ``names`` are the options in which the replays differ."""
    from pilot.research.traces.text_files import write_text

    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*names, "trainer", "submit_s", "waiting_s", "training_s", "total_s", "ending"])
    for replay in replays:
        case = [value(replay, name) for name in names]
        for one in replay.times:
            seconds = (one.submit_s, one.waiting_s, one.training_s, one.total_s)
            rows.writerow([*case, one.trainer, *(f"{value:.3f}" for value in seconds), one.ending.value])
    write_text(path, out.getvalue())


def _named(replay: Replay, names: Sequence[str]) -> str:
    """The values of the options in which it differs from the other replays."""
    return ", ".join(f"{value(replay, name)}" for name in names) + ": "
