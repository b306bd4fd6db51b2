"""A study as one HTML page: its course, which parameters matter, its trials over nodes and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from pilot.history.figures import label, svg
from pilot.history.page import SIZE
from pilot.history.pages import page, paragraph, table
from pilot.history.words import counted
from pilot.protocol.pool_status import TrainerHistory
from pilot.protocol.requests import StudyStatus, TrialList, TrialStatus


def study_page(told: TrialList, histories: Sequence[TrainerHistory], importance: Mapping[str, float]) -> str:
    """The page of a study, with the ``histories`` of its trials and the ``importance`` of its parameters by name."""
    study = told.study
    parts = [paragraph(line) for line in _summary(study)]
    reached = [trial for trial in told.trials if trial.values]
    if reached:
        parts += ["<h2>Course</h2>", svg(partial(_course, study=study, trials=reached), *SIZE)]
    if importance:
        parts += ["<h2>Which parameters matter</h2>", svg(partial(_importance, importance=importance), *SIZE)]
    if any(history.held_nodes for history in histories):
        height = 1.2 + 0.2 * len(histories)
        parts += ["<h2>Trials over time</h2>", svg(partial(_spans, histories=histories), SIZE[0], height)]
    parts += ["<h2>Trials</h2>", _table(told)]
    return page(f"Study {study.study}", parts)


def _summary(study: StudyStatus) -> list[str]:
    states = ", ".join(f"{count} {state}" for state, count in sorted(study.by_state.items()))
    reason = f": {study.reason}" if study.reason else ""
    lines = [f"It is {study.state}{reason}. {study.asked} trials: {states}."]
    if study.best is not None:
        given = ", ".join(f"{name}={value}" for name, value in study.best.parameters.items())
        lines.append(f"The best one is {study.best.trainer}: {study.metric} {study.best.values[-1]} with {given}.")
    return lines


def _table(told: TrialList) -> str:
    names = list(dict.fromkeys(name for trial in told.trials for name in trial.parameters))
    rungs = [f"{told.study.metric} after {reports}" for reports in told.study.rungs]
    rows = []
    for trial in told.trials:
        given = [trial.parameters.get(name, "") for name in names]
        values = [*trial.values, *[""] * (len(rungs) - len(trial.values))]
        rows.append([trial.trainer, trial.state, *given, *values, f"{trial.node_hours:.3f}", trial.reason])
    return table(["trial", "state", *names, *rungs, "node-hours", "reason"], rows)


def _course(axes: Axes, study: StudyStatus, trials: Sequence[TrialStatus]) -> None:
    for rung, reports in enumerate(study.rungs):
        there = [(t.number, t.values[rung]) for t in trials if len(t.values) > rung and t.values[rung] is not None]
        if there:
            axes.plot(*zip(*there, strict=True), "o", markersize=4, label=f"after {counted(reports, 'report')}")
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
