"""A study as one HTML page: its values by trial, which parameters matter, its trials over nodes and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pilot.core.pool.evidence import headline
from pilot.core.study.study import TO_END
from pilot.history.figures import SIZE, label, svg
from pilot.history.pages import page, paragraph, table
from pilot.history.words import counted
from pilot.protocol.pool_status import TrainerHistory
from pilot.protocol.requests import StudyStatus, TrialList, TrialStatus

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def study_page(
    trials: TrialList, summary: Sequence[str], histories: Sequence[TrainerHistory], importance: Mapping[str, float]
) -> str:
    """The page of a study with a ``summary``, the ``histories`` of its trials, and the ``importance`` of its parameters
    by name.
    """
    study = trials.study
    parts = [paragraph(line) for line in summary]
    reached = [trial for trial in trials.trials if trial.values]
    if reached:
        parts += ["<h2>Values</h2>", svg(partial(_values, study=study, trials=reached), *SIZE)]
    if importance:
        parts += ["<h2>Which parameters matter</h2>", svg(partial(_importance, importance=importance), *SIZE)]
    if any(history.held_nodes for history in histories):
        height = 1.2 + 0.2 * len(histories)
        parts += ["<h2>Trials over time</h2>", svg(partial(_spans, histories=histories), SIZE[0], height)]
    parts += ["<h2>Trials</h2>", table(*trial_table(trials))]
    return page(f"Study {study.study}", parts)


def trial_table(trials: TrialList) -> tuple[list[str], list[list[object]]]:
    """The columns and rows of the trials, with their parameters and values."""
    names = list(dict.fromkeys(name for trial in trials.trials for name in trial.parameters))
    rungs = [f"{trials.study.metric}_{'end' if rung == TO_END else rung}" for rung in trials.study.rungs]
    rows: list[list[object]] = []
    for trial in trials.trials:
        given = [trial.parameters.get(name, "") for name in names]
        values = [*trial.values, *[""] * (len(rungs) - len(trial.values))]
        reason = headline(trial.reason) if trial.reason else ""
        rows.append([trial.number, trial.state, *given, *values, trial.reports, f"{trial.node_hours:.4f}", reason])
    return ["trial", "state", *names, *rungs, "reports", "node_hours", "reason"], rows


def _values(axes: Axes, study: StudyStatus, trials: Sequence[TrialStatus]) -> None:
    for rung, reports in enumerate(study.rungs):
        there = [(t.number, t.values[rung]) for t in trials if len(t.values) > rung and t.values[rung] is not None]
        if there:
            when = "at the end" if reports == TO_END else f"after {counted(reports, 'report')}"
            axes.plot(*zip(*there, strict=True), "o", markersize=4, label=when)
    axes.set(xlabel="trial", ylabel=label(study.metric))
    axes.legend()


def _importance(axes: Axes, importance: Mapping[str, float]) -> None:
    names = sorted(importance, key=lambda name: importance[name])
    axes.barh(range(len(names)), [importance[name] for name in names])
    axes.set_yticks(range(len(names)), map(label, names))
    axes.set_xlabel("part of the variance at the first rung (fANOVA)")


def _spans(axes: Axes, histories: Sequence[TrainerHistory]) -> None:
    nodes: dict[str, int] = {}
    for row, history in enumerate(histories):
        for held in history.held_nodes:
            colour = f"C{nodes.setdefault(held.node, len(nodes)) % 10}"
            until_s = history.now_s if held.until_s is None else held.until_s
            axes.barh(row, until_s - held.from_s, left=held.from_s, height=0.8, color=colour, alpha=0.6)
    axes.set_yticks(range(len(histories)), [label(history.trainer.trainer) for history in histories])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the pool started; each colour is a node")
