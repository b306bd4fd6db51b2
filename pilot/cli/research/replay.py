"""``pilot replay``: how much training a trace of idle nodes would have given, using the same core that runs live."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot.cli.options import FILE, Count, FiniteRange, Sizes, solve_limit_option, to_json
from pilot.cli.research.replay_options import all_cases, sweep_options, swept_names
from pilot.cli.research.replay_output import (
    label,
    print_solve_times,
    print_tables,
    rows,
    warn_of_short_time,
    write_times,
)

if TYPE_CHECKING:
    from pilot.research.sim.sweep import Case, Inputs, Replay
    from pilot.rundir.journal import Contents

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
INTERRUPTED = 130


@click.command("replay")
@click.argument("events", type=FILE, required=False)
@click.option("--trainers", type=FILE, help="Trainers to replay (CSV).")
@click.option("--curves", type=FILE, help="The trainers' scaling curves (JSON).")
@sweep_options
@click.option(
    "--hours", type=FiniteRange(min=0, min_open=True, max=1e6), help="Hours of the trace to replay (default: all)."
)
@solve_limit_option
@click.option("--only-nodes", metavar="PATTERN", help="Replay only these nodes of EVENTS (see pilot up).")
@click.option("--site", metavar="NAME|FILE", help="The site whose topology --node-order topology uses.")
@click.option("--sizes", type=Sizes(), metavar="N,N,...", help="Allow only these node counts, e.g. 1,2,4,8.")
@click.option(
    "--share-curves",
    is_flag=True,
    help="With --know measured: trainers with the same curve run the same script and share measurements.",
)
@click.option("--processes", type=Count(), help="Replays to run in parallel (default: one per usable CPU).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, the same for the same input.")
@click.option("--times", type=FILE, help="Write each trainer's waiting, training and total time to this CSV file.")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write an HTML report with plots to this directory.",
)
@click.option(
    "--journal",
    type=EXISTING,
    help="Replay the journal of a live pool instead of a trace, and check that it gives the same commands.",
)
def command(
    events: Path | None,
    trainers: Path | None,
    curves: Path | None,
    hours: float | None,
    solve_limit_s: float,
    only_nodes: str | None,
    site: str | None,
    sizes: tuple[int, ...] | None,
    share_curves: bool,
    processes: int | None,
    as_json: bool,
    report: Path | None,
    times: Path | None,
    journal: Path | None,
    **swept: tuple[Any, ...] | None,
) -> int:
    """Replay EVENTS, a trace of idle nodes, with the given trainers; or a pool of fixed size (--nodes).

    Options whose value is shown in the plural (such as COUNTS) take several values separated by commas. All
    combinations are replayed, in parallel processes.

    \b
    Examples:
      pilot replay events.csv.gz --trainers hpo.csv --curves curves.json --planner dp
      pilot replay events.csv.gz --trainers hpo.csv --curves curves.json \\
          --t-fwd-s 10,30,60,120 --planner dp,equal-share --report sweep/
      pilot replay --nodes 70,110 --trainers jobs.csv --curves curves.json --max-parallel-trainers 1000 \\
          --sizes 1,2,4,8,16 --decide-every-s 300 --planner greedy,rolling-horizon --times times.csv
      pilot replay events.csv.gz --trainers hpo.csv --curves curves.json --node-order hostname,topology --site summit
      pilot replay --journal RUN_DIR/journal.jsonl
      pilot replay --journal RUN_DIR/journal.jsonl --budget 100,200
    """
    if journal is not None:
        return _replay_journal(journal, swept["objective"] or (), report, swept["budget"] or ())
    pool = events or swept["nodes"]
    if pool is None or trainers is None or curves is None:
        given = {"EVENTS (or --nodes)": pool, "--trainers": trainers, "--curves": curves}
        missing = ", ".join(name for name, value in given.items() if value is None)
        raise click.UsageError(
            f"a replay needs EVENTS (or --nodes), --trainers and --curves, or only --journal; missing: {missing}"
        )
    if events is not None and swept["nodes"] is not None:
        raise click.UsageError("give either EVENTS (a trace) or --nodes (a pool of fixed size), not both")
    if events is None and (unused := _of_traces(only_nodes, swept["known_ends"] or ())):
        raise click.UsageError(
            f"{unused} needs EVENTS: the nodes of a pool of fixed size never leave, and have no names"
        )
    from pilot.research.sim.replay_report import make_directory
    from pilot.research.sim.sweep import Inputs, ReplayList
    from pilot.site.site_files import load_site

    inputs = Inputs(
        events,
        trainers,
        curves,
        None if hours is None else hours * 3600,
        sizes or (),
        only_nodes or "",
        load_site(site).topology or "" if site is not None else "",
    )
    cases, names = all_cases(swept, share_curves=share_curves), swept_names(swept)
    if report is not None:
        make_directory(report)
    if times is not None:
        write_times(times, [], names)  # report an unwritable file before hours of replaying
    replays = _run(inputs, cases, solve_limit_s, processes)
    if as_json:
        click.echo(to_json(ReplayList.of(replays)))
    else:
        print_tables(replays, names)
        print_solve_times(replays, names)
    warn_of_short_time(replays, names, solve_limit_s)
    if times is not None:
        write_times(times, replays, names)
    if report is not None and replays:
        of = events.name if events is not None else "a pool that does not change"
        _write_report(report, f"Replay of {of}", replays, names)
    return _report_interruption(replays, len(cases))


def _of_traces(only_nodes: str | None, known_ends: Sequence[float]) -> str:
    """The given option that makes sense only for a trace; "" if there is none."""
    return "--known-ends" if any(known_ends) else "--only-nodes" if only_nodes is not None else ""


def _run(inputs: Inputs, cases: Sequence[Case], solve_limit_s: float, processes: int | None) -> list[Replay]:
    """Replay all cases in parallel; after Ctrl-C, return only those that were started."""
    from pilot.research.sim.sweep import run_sweep
    from pilot.service.settings import load_objective

    at_once = min(len(cases), processes or len(os.sched_getaffinity(0)))
    with _progress(len(cases)) as progress:
        return run_sweep(inputs, cases, load_objective, solve_limit_s, at_once, progress)


@contextmanager
def _progress(cases: int) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr, if it is a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from pilot.cli.show import console

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.1f}%"))
    screen = console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    ) as bar:
        task = bar.add_task("replay" if cases == 1 else f"{cases} replays", total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _write_report(directory: Path, title: str, replays: Sequence[Replay], names: Sequence[str]) -> None:
    from pilot.research.sim.replay_report import write_report

    labels = [label(replay, names) for replay in replays]
    path = write_report(directory, title, replays, labels, rows(replays, names))
    click.echo(f"report: {path}", err=True)


def _report_interruption(replays: Sequence[Replay], cases: int) -> int:
    """Report how far an interrupted replay got; returns the exit status."""
    partial = [replay for replay in replays if not replay.summary.complete]
    if not partial and len(replays) == cases:
        return 0
    reached = ", ".join(f"{replay.summary.reached_h:.1f} h" for replay in partial)
    cut = f"; stopped at {reached}" if partial else ""
    click.echo(f"interrupted: {len(replays) - len(partial)} of {cases} replays are complete{cut}", err=True)
    return INTERRUPTED


def _replay_journal(path: Path, named: Sequence[str], report: Path | None, budgets: Sequence[float]) -> int:
    """Feed a live run's events to a fresh core and compare its commands with the recorded ones. ``report`` is the page
    that ``pilot report`` writes; for each of ``budgets``, print what that budget would have done.

    An objective function named in the journal is someone's code: it runs only if the user also ``named`` it.
    """
    from pilot.core.errors import JournalError, UserError, one_line
    from pilot.rundir.journal import read, replay
    from pilot.service.settings import fresh_core, settings_of

    try:
        contents = read(path)
        objective = settings_of(contents.header.settings).objective
        if ":" in objective and objective not in named:
            run_it = f"to run its code, add --objective {objective}"
            raise UserError(f"{path}: its objective is a function from another module; {run_it}")
        core = fresh_core(contents)
        counts: list[int] = []
        difference = replay(contents, core, lambda decision: counts.append(len(decision.commands)))
    except JournalError as error:
        raise UserError(str(error)) from None
    if report is not None:
        _report_journal(contents, report)
    for odd in contents.last.odd:
        click.echo(odd, err=True)
    if difference:
        click.echo(f"{path}: the replay differs: {one_line(difference)}", err=True)
        return 1
    click.echo(f"{len(counts)} events over {contents.last_s:.1f} s gave the same {sum(counts)} commands")
    for budget in budgets:
        _try_budget(contents, budget)
    return 0


def _try_budget(contents: Contents, budget: float) -> None:
    from pilot.core.trainer.budget import unit
    from pilot.history.words import duration
    from pilot.service.requests.pool_report import trials

    for trial in trials(contents, budget):
        text = f"with a budget of {budget:g} {unit(trial.charge_factor)}"
        if trial.since_s:
            text += f", counted from the restart at {duration(trial.since_s)}"
        click.echo(f"{text}: {trial.sentence(budget)}")


def _report_journal(contents: Contents, directory: Path) -> None:
    from pilot.history.page import render
    from pilot.research.sim.replay_report import make_directory
    from pilot.research.traces.text_files import write_text
    from pilot.service.requests.pool_report import life_of

    make_directory(directory)
    path = directory / "index.html"
    write_text(path, render(life_of(contents)))
    click.echo(f"report: {path}", err=True)
