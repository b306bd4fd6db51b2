"""The output of ``pilot replay``: tables for people, plain data for ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from pilot.cli.replay_times import DONE, done_row, time_row

if TYPE_CHECKING:
    from pilot.cli.told_of_traces import ReplayTold
    from pilot.sim.sweep import Replay


MOST_COMPARED = 4
"""With more replays, a table comparing each with each is hard to read."""


def label(replay: Replay, names: Sequence[str]) -> str:
    """Name a replay by the values of the options ``names``."""
    return ", ".join(f"{name.removesuffix('_s')} {getattr(replay.case, name)}" for name in names)


def told(replay: Replay) -> ReplayTold:
    """What ``--json`` prints for one replay."""
    from pilot.cli.told_of_traces import ReplayTold
    from pilot.sim.metrics import U_IN_WORDS

    summary = replay.summary
    return ReplayTold(case=replay.case, summary=summary, efficiency_is=U_IN_WORDS.format(unit=summary.unit))


def rows(replays: Sequence[Replay], names: Sequence[str]) -> list[dict[str, str]]:
    """The first table: column → cell for each replay."""
    budgets = any(r.case.budget is not None for r in replays)
    more = [_row(r) | ({"budget": _budget(r)} if budgets else {}) for r in replays]
    if any(r.summary.mean_spread is not None for r in replays):
        more = [row | {"excess nodes": _spread(r)} for r, row in zip(replays, more, strict=True)]
    return [
        {name.removesuffix("_s"): f"{getattr(r.case, name)}" for name in names} | row
        for r, row in zip(replays, more, strict=True)
    ]


def _row(replay: Replay) -> dict[str, str]:
    s = replay.summary
    return {
        "U": "-" if s.efficiency is None else f"{s.efficiency:.2%}",
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


def _spread(replay: Replay) -> str:
    return "-" if replay.summary.mean_spread is None else f"{replay.summary.mean_spread:.2f}"


def _cost_row(replay: Replay) -> dict[str, str]:
    s = replay.summary
    return {
        "rescale cost": f"{s.rescale_per_event:.3e}",
        "preemption cost": f"{s.preemption_per_event:.3e}",
        "return on rescale": "-" if s.return_on_rescale is None else f"{s.return_on_rescale:.1f}",
        "solves": f"{s.solves}",
        "plans": ", ".join(f"{count} {status}" for status, count in s.plans.items()),
    }


def _learning_row(replay: Replay) -> dict[str, str]:
    s = replay.summary
    nodes_s = s.node_hours * 3600
    return {
        "interruptions per trainer": f"{s.interruptions:.1f}",
        "s to 90% of oracle": "-" if s.to_oracle_s is None else f"{s.to_oracle_s:.0f}",
        "node-s in profiles": f"{s.profile_node_s:.4g} ({_share(s.profile_node_s, nodes_s)})",
        "lost to profiles": _share(s.profile_cost, s.work),
    }


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.2%}" if whole > 0 else "-"


def _run_time_row(replay: Replay, curves: Sequence[int]) -> dict[str, str]:
    mean_h = {row.curve: f"{row.mean_h:.2f}" for row in replay.summary.run_times}
    return {f"curve {index}": mean_h.get(index, "-") for index in curves}


def print_tables(replays: Sequence[Replay], names: Sequence[str]) -> None:
    """Print all tables; nothing if no replay was started."""
    from pilot.sim.metrics import U_IN_WORDS

    if not replays:
        return
    heads = [{"": label(replay, names)} for replay in replays]
    curves = sorted({row.curve for replay in replays for row in replay.summary.run_times})
    _print_table(rows(replays, names))
    for unit in dict.fromkeys(replay.summary.unit for replay in replays):
        click.echo(U_IN_WORDS.format(unit=unit) + "\n")
    click.echo("Work lost to rescaling and preemption, mean per change of the pool:")
    _print_table([head | _cost_row(replay) for head, replay in zip(heads, replays, strict=True)])
    click.echo("Mean times of trainers that have ended; waiting is time without nodes:")
    _print_table([head | time_row(replay) for head, replay in zip(heads, replays, strict=True)])
    if 1 < len(replays) <= MOST_COMPARED and all(replay.summary.completed >= DONE for replay in replays):
        ends = [f"when {label(replay, names)} had {DONE}" for replay in replays]
        click.echo("Completed trainers:")
        rows_ = zip(heads, replays, strict=True)
        _print_table([head | done_row(replay, replays, ends) for head, replay in rows_])
    if any(replay.case.know != "truth" for replay in replays):
        click.echo(
            "Learning the curves (lost to profiles: what their rescales cost at most, as a share of the work done):"
        )
        _print_table([head | _learning_row(replay) for head, replay in zip(heads, replays, strict=True)])
    if len(curves) > 1:
        click.echo("Mean run time in hours, from admission to completion, of completed trainers:")
        _print_table([head | _run_time_row(replay, curves) for head, replay in zip(heads, replays, strict=True)])


def _print_table(cells: Sequence[Mapping[str, str]]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from pilot.cli.show import console

    table = Table(box=SIMPLE, pad_edge=False)
    for name in cells[0]:
        table.add_column(name, no_wrap=True)
    for row in cells:
        table.add_row(*row.values())
    screen = console()
    screen.width = max(screen.width, screen.measure(table, options=screen.options.update(max_width=1000)).maximum)
    screen.print(table)
