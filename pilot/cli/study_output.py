"""What the commands about studies print: texts, a table of trials, CSV, a page."""

from __future__ import annotations

import csv
import io
import shlex
from pathlib import Path

import click

from pilot.cli.asking import in_any_pool
from pilot.cli.options import need, page_option, study_argument, to_json
from pilot.cli.show import print_table, write_page
from pilot.client.pools import any_pool_at
from pilot.core.study.study import TO_END
from pilot.core.trainer.trainer import Phase
from pilot.history.study_page import study_page, trial_table
from pilot.history.words import counted, duration
from pilot.protocol.requests import StudyStatus, TrialList, TrialStatus
from pilot.submission.study_definition import argument

FORMULA = frozenset("=+-@")
"""Spreadsheets calculate a cell that begins with one of these."""


def trials_words(trials: int | None) -> str:
    """The number of a study's trials, in words."""
    return "the complete search space" if trials is None else counted(trials, "trial")


def study_lines(study: StudyStatus) -> list[str]:
    """A study's progress."""
    states = ", ".join(f"{n} {state}" for state, n in sorted(study.by_state.items()))
    started = f"{counted(study.asked, 'trial')} started ({trials_words(None)})"
    if study.trials is not None:
        started = f"{study.asked} of {counted(study.trials, 'trial')} started"
    lines = [
        f"study {study.study} ({study.sampler}) is {study.state}{f': {study.reason}' if study.reason else ''}",
        f"  {started}{': ' if states else ''}{states}",
        f"  {'max' if study.maximise else 'min'}imise {study.metric}; compared {_rungs(study.rungs)}",
    ]
    if study.deadline_left_s is not None:
        lines.append(f"  {duration(study.deadline_left_s)} until the deadline")
    if study.best is not None:
        lines.append(f"  best: {study.best.trainer}, {study.metric} {_value(study.best)}, {_parameters(study.best)}")
    return lines


def show_trials(answer: TrialList) -> None:
    """All trials of one study."""
    columns, rows = trial_table(answer)
    if rows:
        names = [trial.trainer for trial in answer.trials]
        print_table(columns, [[name, *map(_number, cells)] for name, (_, *cells) in zip(names, rows, strict=True)])
    else:
        click.echo(f"study {answer.study.study} has no trials yet")


def best_text(study: StudyStatus, best: TrialStatus) -> str:
    """The best trial, and commands that use it."""
    given = [argument(name, value) for name, value in best.parameters.items()]
    command = shlex.join(["pilot", "submit", "--from", best.trainer, study.script, *study.arguments, *given])
    rung = study.rungs[len(best.values) - 1]
    reports = counted(best.reports if rung == TO_END else rung, "report")
    return (
        f"{best.trainer}: {study.metric} {_value(best)} after {reports}\n"
        f"  {_parameters(best)}\n"
        f"train it further{', with more epochs' if best.phase == Phase.FINISHED else ''}: {command}\n"
        f"export its model: pilot checkpoint export {best.trainer} model.pt --only model"
    )


def _rungs(rungs: list[int]) -> str:
    """When trials are compared."""
    counts = [rung for rung in rungs if rung != TO_END]
    words = [f"after {', '.join([*map(str, counts[:-1]), counted(counts[-1], 'report')])}"] if counts else []
    return " and ".join([*words, "when the script ends"] if TO_END in rungs else words)


def _parameters(trial: TrialStatus) -> str:
    return ", ".join(f"{name}={_number(value)}" for name, value in trial.parameters.items())


def _value(trial: TrialStatus) -> str:
    return _number(trial.values[-1]) if trial.values else ""


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)


@click.command("export")
@study_argument
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, one line per trial (default: JSON).")
@in_any_pool
def export(root: Path, study: str, as_csv: bool) -> None:
    """Print the trials of STUDY as JSON or CSV. They include parameters and values.

    \b
    Example:
      pilot study export s1 --csv > trials.csv
    """
    answer = any_pool_at(root).trials(study)
    click.echo(_csv(answer) if as_csv else to_json(answer), nl=not as_csv)


@click.command("report")
@study_argument
@page_option("STUDY.html")
@in_any_pool
def report(root: Path, study: str, output: Path | None) -> None:
    """Write an HTML page about STUDY. It shows learning curves, the importance of parameters, and nodes over time.

    \b
    Example:
      pilot study report s1 --output s1.html
    """
    need("study")
    from pilot.study.projection import importance

    pool = any_pool_at(root)
    answer = pool.trials(study)
    histories = [pool.history(t.trainer) for t in answer.trials if t.phase is not None]
    matters = importance(Path(answer.study.optuna), study)
    text = study_page(answer, study_lines(answer.study), histories, matters)
    write_page(output or Path(f"{study}.html"), text)


def _csv(trials: TrialList) -> str:
    columns, rows = trial_table(trials)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    for *cells, reason in rows:  # a reason is a script's text
        table.writerow([*cells, f"'{reason}" if str(reason)[:1] in FORMULA else reason])
    return text.getvalue()
