"""The requests to a coordinator: each verb with its arguments and its answer.

Requests to the coordinator about studies, and its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec

from pilot.core.explain import Explanation
from pilot.core.spec import BUDGET_MAX_H
from pilot.core.study import TRIALS_MAX
from pilot.core.trainer import Phase
from pilot.io.pool_status import (
    NodeStatus,
    PilotStatus,
    PoolStatus,
    SetAsideStatus,
    Told,
    TrainerHistory,
    TrainerStatus,
)
from pilot.io.study_definition import StudyDefinition
from pilot.io.submission import LaunchSpec, Submission

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=Told)


@dataclass(frozen=True, slots=True)
class Verb(Generic[A, R]):
    """``name`` as in :class:`pilot.io.wire.Request`, and the types of the arguments and of the answer. ``changes``:
    whether the request may change something.
    """

    name: str
    arguments: type[A]
    answer: type[R]
    changes: bool = True


# --- arguments: a field that is not here is refused -----------------------------------------------------------------


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class OneTrainer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which trainer."""

    trainer: str


class SomeTrainers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which trainers; none given: all."""

    trainers: Sequence[str] = ()


LONGEST_WAIT_S = 20.0
"""A ``wait`` is answered after this time at the latest; the CLI then asks again."""


class Wait(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which trainers to wait for (none given: all), and how long at most."""

    trainers: Sequence[str] = ()
    limit_s: Annotated[float, msgspec.Meta(ge=0)] = LONGEST_WAIT_S


class Pilots(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many pilots to keep; None: as many as the trainers can use."""

    pilots: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None


class Resumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which trainer to resume, how its script is started from now on, its budget (None: unchanged), and whether from
    scratch."""

    trainer: str
    launch: LaunchSpec
    budget_node_hours: Annotated[float, msgspec.Meta(gt=0, le=BUDGET_MAX_H)] | None = None
    from_scratch: bool = False


class SomeNodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which nodes."""

    nodes: Sequence[str]


# --- answers --------------------------------------------------------------------------------------------------------


class Submitted(Told, frozen=True):
    """The answer of ``pilot submit``.

    Parameters
    ----------
    trainer : the new trainer's name
    directory : its folder on the coordinator's host, with `logs/` and `checkpoints/`
    """

    trainer: str
    directory: str


class TrainerList(Told, frozen=True):
    """The answer of ``pilot ls``.

    Parameters
    ----------
    trainers : in the order of submission
    """

    trainers: list[TrainerStatus]


class PilotList(Told, frozen=True):
    """The pilots that registered.

    Parameters
    ----------
    pilots : in the order of joining
    """

    pilots: list[PilotStatus]


class NodeList(Told, frozen=True):
    """The answer of ``pilot nodes``.

    Parameters
    ----------
    now_s : how long the pool has been up
    nodes : in the order of joining
    set_aside : nodes that are not used for a while
    remarks : messages for the user, such as which nodes have other versions than most
    """

    now_s: float
    nodes: list[NodeStatus]
    set_aside: list[SetAsideStatus]
    remarks: list[str]


class Cleared(Told, frozen=True):
    """The answer of ``pilot nodes --clear``.

    Parameters
    ----------
    nodes : those whose failures are forgotten
    """

    nodes: list[str]


class Phases(Told, frozen=True):
    """The answer of ``pilot wait``.

    Parameters
    ----------
    trainers : the phase of each trainer waited for, by name
    """

    trainers: dict[str, Phase]


class Cancelled(Told, frozen=True):
    """The answer of ``pilot cancel``.

    Parameters
    ----------
    trainer : its name
    phase : its current phase
    """

    trainer: str
    phase: Phase


class Standing(Told, frozen=True):
    """The answer of ``pilot resume``, ``pilot hold`` and ``pilot release``.

    Parameters
    ----------
    trainer : its name
    phase : its current phase
    held : why it gets no nodes; empty: it can get some
    """

    trainer: str
    phase: Phase
    held: str


class Scaled(Told, frozen=True):
    """The answer of ``pilot scale``.

    Parameters
    ----------
    pilots : how many pilots are kept from now on; null: as many as the trainers can use
    nodes : how many nodes are in the pool now
    """

    pilots: int | None
    nodes: int


class Removed(Told, frozen=True):
    """The answer of ``pilot rm``.

    Parameters
    ----------
    trainers : the removed ones
    """

    trainers: list[str]


class Explained(Told, frozen=True):
    """The answer of ``pilot explain``.

    Parameters
    ----------
    trainer : its name
    sentences : the explanation in words; they may change in every version
    decision : the numbers behind them; null if the trainer was not part of the last plan
    """

    trainer: str
    sentences: list[str]
    decision: Explanation | None


class Draining(Told, frozen=True):
    """The answer of ``pilot down``.

    Parameters
    ----------
    run_dir : the pool's run directory, on the coordinator's host
    nodes : how many nodes were in the pool when its drain began
    """

    run_dir: str
    nodes: int


# --- verbs ----------------------------------------------------------------------------------------------------------

SUBMIT = Verb("submit", Submission, Submitted)
LIST = Verb("list", Nothing, TrainerList, changes=False)
STATUS = Verb("status", Nothing, PoolStatus, changes=False)
PILOTS = Verb("pilots", Nothing, PilotList, changes=False)
NODES = Verb("nodes", Nothing, NodeList, changes=False)
CLEAR = Verb("clear", SomeNodes, Cleared)
WAIT = Verb("wait", Wait, Phases, changes=False)
CANCEL = Verb("cancel", OneTrainer, Cancelled)
SCALE = Verb("scale", Pilots, Scaled)
RESUME = Verb("resume", Resumption, Standing)
HOLD = Verb("hold", OneTrainer, Standing)
RELEASE = Verb("release", OneTrainer, Standing)
REMOVE = Verb("remove", SomeTrainers, Removed)
HISTORY = Verb("history", OneTrainer, TrainerHistory, changes=False)
EXPLAIN = Verb("explain", OneTrainer, Explained, changes=False)
DOWN = Verb("down", Nothing, Draining)


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
