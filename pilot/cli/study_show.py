"""Studies and trials on the screen."""

from __future__ import annotations

import shlex

import click
from rich.table import Table

from pilot.cli.show import console
from pilot.core.evidence import headline
from pilot.io.study_definition import argument
from pilot.io.verbs import StudyStatus, TrialList, TrialStatus
from pilot.observation.words import counted, duration


def trials_words(trials: int | None) -> str:
    """How many trials a study has."""
    return "the whole search space" if trials is None else counted(trials, "trial")


def show_study(study: StudyStatus) -> None:
    """A study's progress."""
    total = (
        counted(study.asked, "trial") if study.trials is None else f"{study.asked} of {counted(study.trials, 'trial')}"
    )
    reason = f": {study.reason}" if study.reason else ""
    click.echo(f"study {study.study} ({study.sampler}) is {study.state}{reason}")
    states = ", ".join(f"{count} {state}" for state, count in sorted(study.by_state.items()))
    all_tried = " (the whole search space)" if study.trials is None else ""
    click.echo(f"  {total} started{all_tried}{': ' if states else ''}{states}")
    *earlier, last = study.rungs
    compared = ", ".join([*map(str, earlier), counted(last, "report")])
    click.echo(f"  {'max' if study.maximise else 'min'}imise {study.metric}; compared after {compared}")
    if study.deadline_left_s is not None:
        click.echo(f"  {duration(study.deadline_left_s)} until the deadline")
    if study.best is not None:
        click.echo(f"  best: {study.best.trainer}, {study.metric} {_value(study.best)}, {_parameters(study.best)}")


def show_trials(told: TrialList) -> None:
    """All trials of one study."""
    columns = ["trial", "state", "nodes", "reports", *(f"rung {n}" for n in told.study.rungs), "parameters", "reason"]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for trial in told.trials:
        values = [*map(_number, trial.values), *[""] * (len(told.study.rungs) - len(trial.values))]
        nodes = str(trial.nodes or "")
        table.add_row(
            trial.trainer,
            trial.state,
            nodes,
            str(trial.reports),
            *values,
            _parameters(trial),
            headline(trial.reason)[:60] if trial.reason else "",
        )
    if told.trials:
        console().print(table)
    else:
        click.echo(f"study {told.study.study} has no trials yet")


def show_best(study: StudyStatus, best: TrialStatus) -> None:
    """The best trial, and what to do with it."""
    given = [argument(name, value) for name, value in best.parameters.items()]
    command = shlex.join(["pilot", "submit", "--from", best.trainer, study.script, *study.arguments, *given])
    reports = counted(study.rungs[len(best.values) - 1], "report")
    click.echo(f"{best.trainer}: {study.metric} {_value(best)} after {reports}")
    click.echo(f"  {_parameters(best)}")
    click.echo(f"train it further: {command}")
    click.echo(f"export its model: pilot checkpoint export {best.trainer} model.pt --only model")


def _parameters(trial: TrialStatus) -> str:
    return ", ".join(f"{name}={_number(value)}" for name, value in trial.parameters.items())


def _value(trial: TrialStatus) -> str:
    return _number(trial.values[-1]) if trial.values else ""


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)
