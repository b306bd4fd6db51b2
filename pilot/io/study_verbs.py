"""Requests to the coordinator about studies, and its answers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from pilot.core.study import TRIALS_MAX
from pilot.io.pool_status import Told
from pilot.io.study_definition import StudyDefinition
from pilot.io.verbs import Nothing, Verb

Total = Annotated[int, msgspec.Meta(ge=1, le=TRIALS_MAX)]


class OneStudy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which study."""

    study: str


class StudyResumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The study to continue, with ``more`` additional trials; ``space``: the search space that it must have."""

    study: str
    more: Annotated[int, msgspec.Meta(ge=0, le=TRIALS_MAX)] = 0
    space: StudyDefinition | None = None


class TrialStatus(Told, frozen=True):
    """One trial.

    Parameters
    ----------
    number : of it, from 0
    trainer : its name as a trainer
    state : waiting (for its parameters), training, shelved, complete, failed, or ended
    phase : of its trainer, as pilot ls has it; null while it waits and after the trainer was forgotten
    nodes : on how many it trains now
    parameters : by name
    values : of the study's metric at each rung that it reached
    rung : the rung to which it trains or trained, from 1
    reports : how many it made
    node_hours : what it used
    reason : why it ended or is shelved
    """

    number: int
    trainer: str
    state: str
    phase: str | None
    nodes: int
    parameters: dict[str, str | int | float | bool]
    values: list[float | None]
    rung: int
    reports: int
    node_hours: float
    reason: str


class StudyStatus(Told, frozen=True):
    """One study.

    Parameters
    ----------
    study : its name
    state : running, stopped, or over
    reason : why it stopped
    metric, maximise, rungs : as submitted
    sampler : which one
    trials : how many there are to be; null where its space was exhausted
    asked : how many there are
    by_state : how many trials are in each state
    best : the best one at the highest rung that any reached; null: none reached one
    deadline_left_s : until its deadline; null: it has none
    script : of its trials
    arguments : of the script, before the parameters
    directory : its folder
    optuna : Optuna's journal file of it
    """

    study: str
    state: str
    reason: str
    metric: str
    maximise: bool
    rungs: list[int]
    sampler: str
    trials: int | None
    asked: int
    by_state: dict[str, int]
    best: TrialStatus | None
    deadline_left_s: float | None
    script: str
    arguments: list[str]
    directory: str
    optuna: str


class StudyList(Told, frozen=True):
    """The answer of ``pilot study status``.

    Parameters
    ----------
    studies : in the order of submission
    """

    studies: list[StudyStatus]


class TrialList(Told, frozen=True):
    """The answer of ``pilot study trials``.

    Parameters
    ----------
    study : the study
    trials : by number
    """

    study: StudyStatus
    trials: list[TrialStatus]


STUDY_RUN = Verb("study run", StudyDefinition, StudyStatus)
STUDIES = Verb("studies", Nothing, StudyList, changes=False)
STUDY_TRIALS = Verb("study trials", OneStudy, TrialList, changes=False)
STUDY_STOP = Verb("study stop", OneStudy, StudyStatus)
STUDY_RESUME = Verb("study resume", StudyResumption, StudyStatus)
