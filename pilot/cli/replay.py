"""``pilot replay``: what a trace of idle nodes would have given, by the very core that runs live."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot.cli.asking import to_json
from pilot.cli.numbers import Count, FiniteRange, Sizes
from pilot.cli.replay_options import all_cases, sweep_options, swept_names
from pilot.cli.replay_tables import label, print_tables, rows, told

if TYPE_CHECKING:
    from pilot.io.journal import Contents
    from pilot.sim.sweep import Case, Inputs, Replay

FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
INTERRUPTED = 130


@click.command("replay")
@click.argument("events", type=FILE, required=False)
@click.option("--trainers", type=FILE, help="CSV of the trainers.")
@click.option("--curves", type=FILE, help="JSON of their scaling curves.")
@sweep_options
@click.option(
    "--hours", type=FiniteRange(min=0, min_open=True, max=1e6), help="Replay so long (default: all of the trace)."
)
@click.option(
    "--solve-limit-s", type=FiniteRange(min=0, min_open=True), default=10.0, show_default=True, help="For one plan."
)
@click.option("--sizes", type=Sizes(), metavar="N,N,...", help="Trainers run on so many nodes only, as 1,2,4,8.")
@click.option(
    "--share-curves",
    is_flag=True,
    help="With --know measured: trainers on one curve are of one script and share what is measured.",
)
@click.option("--processes", type=Count(), help="Replays at once (default: one per usable CPU).")
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
    sizes: tuple[int, ...] | None,
    share_curves: bool,
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
      pilot replay --journal RUN_DIR/journal.jsonl --budget 100,200
    """
    if journal is not None:
        return _replay_journal(journal, swept["objective"] or (), report, swept["budget"] or ())
    if events is None or trainers is None or curves is None:
        given = {"EVENTS": events, "--trainers": trainers, "--curves": curves}
        missing = " and ".join(name for name, value in given.items() if value is None)
        raise click.UsageError(f"{missing} missing: a replay needs EVENTS, --trainers and --curves, or --journal")
    from pilot.sim.replay_report import make_directory
    from pilot.sim.sweep import Inputs

    inputs = Inputs(events, trainers, curves, None if hours is None else hours * 3600, sizes or ())
    cases, names = all_cases(swept, share_curves=share_curves), swept_names(swept)
    if report is not None:
        make_directory(report)
    replays = _run(inputs, cases, solve_limit_s, processes)
    if as_json:
        from pilot.cli.told_of_traces import ReplayList

        click.echo(to_json(ReplayList(replays=list(map(told, replays)))))
    else:
        print_tables(replays, names)
    if report is not None and replays:
        _write_report(report, events, replays, names)
    return _report_interruption(replays, len(cases))


def _run(inputs: Inputs, cases: Sequence[Case], solve_limit_s: float, processes: int | None) -> list[Replay]:
    """Replay all cases, so many at once; fewer come back where Ctrl-C left some out."""
    from pilot.io.objectives import load_objective
    from pilot.sim.sweep import run_sweep

    at_once = min(len(cases), processes or len(os.sched_getaffinity(0)))
    with _progress(len(cases)) as progress:
        return run_sweep(inputs, cases, load_objective, solve_limit_s, at_once, progress)


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


def _write_report(directory: Path, events: Path, replays: Sequence[Replay], names: Sequence[str]) -> None:
    from pilot.sim.replay_report import write_report

    labels = [label(replay, names) for replay in replays]
    path = write_report(directory, f"Replay of {events.name}", replays, labels, rows(replays, names))
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


def _replay_journal(path: Path, named: Sequence[str], report: Path | None, budgets: Sequence[float]) -> int:
    """Feed a live run's events to a fresh core and compare its commands with those of the run; its report is that of
    ``pilot report``. What each of ``budgets`` would have done is told, too.

    A function that the journal names is somebody's code: it runs where the user has ``named`` it too.
    """
    from pilot.core.errors import JournalError, UserError, one_line
    from pilot.io.journal import read, replay
    from pilot.service.settings import fresh_core, settings_of

    try:
        contents = read(path)
        objective = settings_of(contents.header.settings).objective
        if ":" in objective and objective not in named:
            run_it = f"to run its code, add --objective {objective}"
            raise UserError(f"{path}: its objective is a function of another module; {run_it}")
        core = fresh_core(contents)
        counts: list[int] = []
        difference = replay(contents, core, lambda decision: counts.append(len(decision.commands)))
    except JournalError as error:
        raise UserError(str(error)) from None
    if report is not None:
        _report_journal(contents, report)
    if contents.last.warning:
        click.echo(contents.last.warning, err=True)
    if difference:
        click.echo(f"{path}: the replay differs: {one_line(difference)}", err=True)
        return 1
    click.echo(f"{len(counts)} events over {contents.last_s:.1f} s gave the same {sum(counts)} commands")
    for budget in budgets:
        _try_budget(contents, budget)
    return 0


def _try_budget(contents: Contents, budget: float) -> None:
    from pilot.core.budget import unit
    from pilot.observation.words import duration
    from pilot.service.budget_trial import trials

    for trial in trials(contents, budget):
        told = f"with a budget of {budget:g} {unit(trial.charge_factor)}"
        if trial.since_s:
            told += f", from {duration(trial.since_s)} on, when it came up again"
        click.echo(f"{told}: {trial.sentence(budget)}")


def _report_journal(contents: Contents, directory: Path) -> None:
    from pilot.observation.page import render
    from pilot.service.life import life_of
    from pilot.sim.replay_report import make_directory
    from pilot.traces.text_files import write_text

    make_directory(directory)
    path = directory / "index.html"
    write_text(path, render(life_of(contents)))
    click.echo(f"report: {path}", err=True)
