"""``pilot study export`` and ``pilot study report``: a study as a table, and as a page."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import find_run_dir, run_dir_option, to_json, told_by
from pilot.cli.pages import page_option, write_page
from pilot.core.evidence import headline
from pilot.io.verbs import TrialList

FORMULA = frozenset("=+-@")
"""Spreadsheets calculate a cell that begins with one of these."""


@click.command("export")
@click.argument("study", shell_complete=candidates.studies)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, one line per trial (default: JSON).")
@run_dir_option
def export(study: str, as_csv: bool, run_dir: Path | None) -> None:
    """Print the trials of STUDY as JSON or CSV. They include parameters and values.

    \b
    Example:
      pilot study export s1 --csv > trials.csv
    """
    told = told_by(find_run_dir(run_dir, past=True)).trials(study)
    click.echo(_csv(told) if as_csv else to_json(told), nl=not as_csv)


@click.command("report")
@click.argument("study", shell_complete=candidates.studies)
@page_option("STUDY.html")
@run_dir_option
def report(study: str, output: Path | None, run_dir: Path | None) -> None:
    """Write an HTML page about STUDY. It shows learning curves, the importance of parameters, and nodes over time.

    \b
    Example:
      pilot study report s1 --output s1.html
    """
    from pilot.observation.study_page import page
    from pilot.study.projection import importance

    pool = told_by(find_run_dir(run_dir, past=True))
    told = pool.trials(study)
    histories = [pool.history(t.trainer) for t in told.trials if t.phase is not None]
    text = page(told, histories, importance(Path(told.study.optuna), study))
    write_page(output or Path(f"{study}.html"), text)


def _csv(told: TrialList) -> str:
    names = list(dict.fromkeys(name for trial in told.trials for name in trial.parameters))
    rungs = [f"{told.study.metric}_{reports}" for reports in told.study.rungs]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["trial", "state", *names, *rungs, "reports", "node_hours", "reason"])
    for trial in told.trials:
        given = [trial.parameters.get(name, "") for name in names]
        values = [*trial.values, *[""] * (len(rungs) - len(trial.values))]
        reason = headline(trial.reason) if trial.reason else ""
        reason = f"'{reason}" if reason[:1] in FORMULA else reason  # it is what a script says
        table.writerow([trial.number, trial.state, *given, *values, trial.reports, f"{trial.node_hours:.4f}", reason])
    return text.getvalue()
