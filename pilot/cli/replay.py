"""``pilot replay``: what a trace of idle nodes would have given, by the very core that runs live."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot.cli.numbers import FiniteRange
from pilot.core.pool import NODE_ORDERS
from pilot.planners import NAMES, SOLVERS

if TYPE_CHECKING:
    from pilot.sim.sweep import Case, Replay

FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
INTERRUPTED = 130
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("give a finite number, 0 or more, or several with commas between them")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("give a whole number, or several with commas between them") from None


def _choice(*names: str) -> Callable[[str], str]:
    def choose(text: str) -> str:
        if text not in names:
            raise ValueError(f"choose from {', '.join(names)}")
        return text

    return choose


def _sweep(
    flag: str, field: str, kind: Callable[[str], Any], metavar: str, text: str, default: str | None
) -> Decorator:
    """An option that takes several values, separated by commas; ``field`` is the case's field."""

    def parse(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[Any, ...] | None:
        try:
            return None if value is None else tuple(kind(item.strip()) for item in value.split(","))
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}") from None

    return click.option(flag, field, metavar=metavar, help=text, default=default, show_default=True, callback=parse)


@click.command("replay")
@click.argument("events", type=FILE, required=False)
@click.option("--trainers", type=FILE, help="CSV of the trainers.")
@click.option("--curves", type=FILE, help="JSON of their scaling curves.")
@_sweep("--planner", "planner", _choice(*NAMES), "NAMES", "milp, dp, equal-share or milp-nodes.", default="milp")
@_sweep("--solver", "solver", _choice(*SOLVERS), "NAMES", "cbc, glpk or highs.", default="cbc")
@_sweep(
    "--objective",
    "objective",
    str,
    "NAMES",
    "given (by the curves file), scaling-efficiency, throughput, priority or module:function.",
    default="given",
)
@_sweep("--t-fwd", "t_fwd_s", _number, "SECONDS", "Forward-looking time.", default="120")
@_sweep("--max-parallel", "max_parallel", _whole, "COUNTS", "Trainers at once (Pj_max).", default="10")
@_sweep("--rescale-scale", "rescale_scale", _number, "FACTORS", "Multiply rescale costs.", default="1")
@_sweep("--solver-latency", "solver_latency_s", _number, "SECONDS", "A plan comes so late.", default="0")
@_sweep("--node-order", "node_order", _choice(*NODE_ORDERS), "NAMES", "hostname or join.", default="hostname")
@_sweep(
    "--accounting",
    "accounting",
    _choice("paper", "physical"),
    "NAMES",
    "paper: a rescale costs its seconds at the rate before it; physical: it pauses the trainer, starts included.",
    default="paper",
)
@_sweep(
    "--completions",
    "completions",
    _choice("at-once", "at-node-events"),
    "NAMES",
    "at-node-events: completions and arrivals wait for the next change of the pool, as in the authors' replay code.",
    default="at-once",
)
@_sweep("--on-curve", "on_curve", _whole, "INDICES", "Put all trainers on this curve of the curves file.", default=None)
@click.option("--hours", type=FiniteRange(min=0, min_open=True), help="Replay so long (default: the whole trace).")
@click.option(
    "--solve-limit-s", type=FiniteRange(min=0, min_open=True), default=10.0, show_default=True, help="For one plan."
)
@click.option("--processes", type=click.IntRange(min=1), help="Replays at once (default: one per CPU that it may use).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the same replay prints the same bytes.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Write an HTML page with plots here.")
@click.option(
    "--journal", type=EXISTING, help="Instead of a trace: replay this journal of a live run and compare commands."
)
def command(
    events: Path | None,
    trainers: Path | None,
    curves: Path | None,
    hours: float | None,
    solve_limit_s: float,
    processes: int | None,
    as_json: bool,
    report: Path | None,
    journal: Path | None,
    **swept: tuple[Any, ...] | None,
) -> int:
    """Replay the trace EVENTS of idle nodes with the trainers of a file.

    Options in the plural take several values, separated by commas: a sweep, run in parallel processes.

    \b
    Examples:
      pilot replay events.csv.gz --trainers hpo.csv --curves curves.json --planner dp
      pilot replay events.csv.gz --trainers hpo.csv --curves curves.json \\
          --t-fwd 10,30,60,120 --planner dp,equal-share --report sweep/
      pilot replay --journal RUN_DIR/journal.jsonl
    """
    if journal is not None:
        return _replay_journal(journal)
    if events is None or trainers is None or curves is None:
        raise click.UsageError("give EVENTS, --trainers and --curves, or --journal")
    from pilot.io.objectives import load_objective
    from pilot.sim.replay_report import make_directory
    from pilot.sim.sweep import Inputs, run_sweep

    inputs = Inputs(events, trainers, curves, None if hours is None else hours * 3600)
    cases = _cases(swept)
    if report is not None:
        make_directory(report)
    with _progress(len(cases)) as progress:
        at_once = min(len(cases), processes or len(os.sched_getaffinity(0)))
        replays = run_sweep(inputs, cases, load_objective, solve_limit_s, at_once, progress)
    names = _swept_names(swept)
    if as_json:
        click.echo(json.dumps([_as_dict(replay) for replay in replays], indent=1))
    else:
        _print(replays, names)
    if report is not None and replays:
        _write_report(report, events, replays, names)
    return _report_interruption(replays, len(cases))


def _cases(swept: Mapping[str, tuple[Any, ...] | None]) -> list[Case]:
    """All combinations of the swept values."""
    from pilot.sim.sweep import Case

    names = list(swept)
    return [
        Case(**dict(zip(names, values, strict=True)))
        for values in itertools.product(*((swept[n] or (None,)) for n in names))
    ]


def _swept_names(swept: Mapping[str, tuple[Any, ...] | None]) -> list[str]:
    """What tells the cases apart."""
    return [name for name, values in swept.items() if values is not None and len(values) > 1] or ["planner"]


@contextmanager
def _progress(cases: int) -> Iterator[Callable[[float], None]]:
    """A bar on the terminal's error stream, none where that is a file."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.1f}%"))
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("replay" if cases == 1 else f"{cases} replays", total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _label(replay: Replay, names: Sequence[str]) -> str:
    return ", ".join(f"{name.removesuffix('_s')} {getattr(replay.case, name)}" for name in names)


def _as_dict(replay: Replay) -> dict[str, Any]:
    from dataclasses import asdict

    from pilot.sim.metrics import U_IN_WORDS

    compared = {"efficiency_is": U_IN_WORDS.format(unit=replay.summary.unit)}
    return {"case": asdict(replay.case)} | replay.summary.as_dict() | compared


def _rows(replays: Sequence[Replay], names: Sequence[str]) -> list[dict[str, str]]:
    return [{name.removesuffix("_s"): f"{getattr(r.case, name)}" for name in names} | _row(r) for r in replays]


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


def _cost_row(replay: Replay) -> dict[str, str]:
    s = replay.summary
    return {
        "rescale cost": f"{s.rescale_per_event:.3e}",
        "preemption cost": f"{s.preemption_per_event:.3e}",
        "return on rescale": "-" if s.return_on_rescale is None else f"{s.return_on_rescale:.1f}",
        "solves": f"{s.solves}",
        "plans": ", ".join(f"{count} {status}" for status, count in s.plans.items()),
    }


def _run_time_row(replay: Replay, curves: Sequence[int]) -> dict[str, str]:
    mean_h = {row.curve: f"{row.mean_h:.2f}" for row in replay.summary.run_times}
    return {f"curve {index}": mean_h.get(index, "-") for index in curves}


def _print(replays: Sequence[Replay], names: Sequence[str]) -> None:
    from pilot.sim.metrics import U_IN_WORDS

    if not replays:
        return
    labels = [{"": _label(replay, names)} for replay in replays]
    curves = sorted({row.curve for replay in replays for row in replay.summary.run_times})
    _print_table(_rows(replays, names))
    for unit in dict.fromkeys(replay.summary.unit for replay in replays):
        click.echo(U_IN_WORDS.format(unit=unit) + "\n")
    click.echo("Mean work per change of the pool that rescaling and preemption cost:")
    _print_table([label | _cost_row(replay) for label, replay in zip(labels, replays, strict=True)])
    if len(curves) > 1:
        click.echo("Mean run time in hours, from admission to completion, of completed trainers:")
        _print_table([label | _run_time_row(replay, curves) for label, replay in zip(labels, replays, strict=True)])


def _print_table(rows: Sequence[Mapping[str, str]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    console = Console()
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=1000)).maximum)
    console.print(table)


def _write_report(directory: Path, events: Path, replays: Sequence[Replay], names: Sequence[str]) -> None:
    from pilot.sim.replay_report import write_report

    labels = [_label(replay, names) for replay in replays]
    path = write_report(directory, f"Replay of {events.name}", replays, labels, _rows(replays, names))
    click.echo(f"report: {path}", err=True)


def _report_interruption(replays: Sequence[Replay], cases: int) -> int:
    """Say how far an interrupted replay came; the exit status."""
    partial = [replay for replay in replays if not replay.summary.complete]
    if not partial and len(replays) == cases:
        return 0
    came = ", ".join(f"{replay.summary.reached_h:.1f} h" for replay in partial)
    cut = f"; cut off at {came}" if partial else ""
    click.echo(f"interrupted: {len(replays) - len(partial)} of {cases} replays are complete{cut}", err=True)
    return INTERRUPTED


def _replay_journal(path: Path) -> int:
    """Feed a live run's events to a fresh core and compare its commands with those of the run."""
    from pilot.core.errors import JournalError, UserError
    from pilot.io.journal import read, replay
    from pilot.service.settings import fresh_core

    try:
        contents = read(path)
    except JournalError as error:
        raise UserError(str(error)) from None
    difference = replay(contents, fresh_core(contents).handle)
    decisions = list(contents.decisions)
    if contents.warning:
        click.echo(contents.warning, err=True)
    if difference:
        click.echo(f"{path}: the replay differs: {difference}", err=True)
        return 1
    commands = sum(len(decision.commands) for decision in decisions)
    click.echo(f"{len(decisions)} events over {contents.last_s:.1f} s gave the same {commands} commands")
    return 0
