"""Which process writes which point of a run's log."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pilot.core.errors import UserError
from pilot.train.metric_log import MetricLog, metric_log
from pilot.train.node.membership import Membership
from pilot.train.state.session_checks import reported
from tests.integration.test_metric_log import steps_logged


def test_a_void_step_is_reported_once_and_steps_of_others_are_not_hidden(tmp_path: Path) -> None:
    first, second = MetricLog(tmp_path), MetricLog(tmp_path)
    for step in range(1, 11):
        first.report(step - 1, {"norm": 1.0})
        first.report(step - 1, {"norm": 2.0})  # the same again: the step before it was void
        first.stepped(Membership(1, 0, 2), step, {"loss": float(step)})
        if step not in (4, 5):  # it lagged, and took over the other's state
            second.report(step - 1, {"norm": 3.0})
            second.stepped(Membership(1, 1, 2), step, {"loss": float(step)})
    second.stepped(Membership(2, 0, 1), 11, {"loss": 11.0})
    second.finished(Membership(2, 0, 1))
    assert steps_logged(tmp_path, "loss") == list(range(1, 12))
    assert steps_logged(tmp_path, "norm") == list(range(10))


@pytest.mark.parametrize("died_before", [False, True])
def test_an_epochs_end_that_is_done_again_is_reported_once(died_before: bool, tmp_path: Path) -> None:
    """By a run that resumes from there, or a newcomer that leads; or for the first time."""
    alone = Membership(1, 0, 1)
    first = MetricLog(tmp_path)
    for step in range(1, 5):
        first.stepped(alone, step, {"loss": float(step)})
    if not died_before:
        first.report(4, {"accuracy": 0.5})
        first.stepped(alone, 5, {"loss": 5.0})
    second = MetricLog(tmp_path)
    second.report(4, {"accuracy": 0.5})
    second.stepped(Membership(2, 0, 1), 5, {"loss": 5.0})
    assert steps_logged(tmp_path, "accuracy") == [4]
    assert steps_logged(tmp_path, "loss") == [1, 2, 3, 4, 5]


def test_steps_that_a_resumed_run_has_declared_void_are_reported_again(tmp_path: Path) -> None:
    alone = Membership(1, 0, 1)
    first = MetricLog(tmp_path)
    first.report(4, {"accuracy": 0.5})
    first.stepped(alone, 5, {"loss": 5.0})
    second = MetricLog(tmp_path)
    second.stepped(alone, 3, {"loss": 3.0})  # from 3 on what the first one logged is void
    third = MetricLog(tmp_path)
    third.report(4, {"accuracy": 0.6})
    third.stepped(alone, 5, {"loss": 5.0})
    assert steps_logged(tmp_path, "accuracy") == [4]


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only 'tensorboard' is supported"):
        metric_log("wandb", tmp_path)


def test_names_that_the_session_reports_itself_are_refused() -> None:
    assert reported({"loss": torch.tensor([0.5]), "accuracy": 1, "mean": math.nan})["loss"] == 0.5
    with pytest.raises(UserError, match=r"session.report: epochs is reserved"):
        reported({"loss": 0.1, "epochs": 1})


@pytest.mark.parametrize("value", ["high", None, [1.0], torch.zeros(2)])
def test_a_value_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(UserError, match=r"session.report: accuracy must be a number, got \w+ \(.+\)$"):
        reported({"accuracy": value})
