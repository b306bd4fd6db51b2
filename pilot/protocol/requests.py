"""The requests to a coordinator: each verb with its arguments and its answer.

Requests to the coordinator about studies, and its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec

from pilot.core.plan.explain import Explanation
from pilot.core.study.study import TRIALS_MAX
from pilot.core.trainer.spec import BUDGET_MAX_H
from pilot.core.trainer.trainer import Phase
from pilot.protocol.pool_status import (
    Answer,
    NodeStatus,
    PilotStatus,
    PoolStatus,
    SetAsideStatus,
    TrainerHistory,
    TrainerStatus,
)
from pilot.submission.study_definition import StudyDefinition
from pilot.submission.submission import LaunchSpec, Submission

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=Answer)


@dataclass(frozen=True, slots=True)
class Verb(Generic[A, R]):
    """A request's ``name``, as in :class:`pilot.protocol.wire.Request`, and the types of its arguments and its answer.

    ``changes``: whether the request may change something.
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


class Submitted(Answer, frozen=True):
    """The answer of ``pilot submit``."""

    trainer: str  #: the new trainer's name
    directory: str  #: its folder on the coordinator's host, with `logs/` and `checkpoints/`


class TrainerList(Answer, frozen=True):
    """The answer of ``pilot ls``."""

    trainers: list[TrainerStatus]  #: in the order of submission


class PilotList(Answer, frozen=True):
    """The pilots that registered."""

    pilots: list[PilotStatus]  #: in the order of joining


class NodeList(Answer, frozen=True):
    """The answer of ``pilot nodes``."""

    now_s: float  #: how long the pool has been up
    nodes: list[NodeStatus]  #: in the order of joining
    set_aside: list[SetAsideStatus]  #: nodes that are not used for a while
    remarks: list[str]  #: messages for the user, such as which nodes have other versions than most


class Cleared(Answer, frozen=True):
    """The answer of ``pilot nodes --clear``."""

    nodes: list[str]  #: those whose failures are forgotten


class Phases(Answer, frozen=True):
    """The answer of ``pilot wait``."""

    trainers: dict[str, Phase]  #: the phase of each trainer waited for, by name


class Cancelled(Answer, frozen=True):
    """The answer of ``pilot cancel``."""

    trainer: str  #: its name
    phase: Phase  #: its current phase


class TrainerPhase(Answer, frozen=True):
    """The answer of ``pilot resume``, ``pilot hold`` and ``pilot release``."""

    trainer: str  #: its name
    phase: Phase  #: its current phase
    held: str  #: why it gets no nodes; empty: it can get some


class Scaled(Answer, frozen=True):
    """The answer of ``pilot scale``."""

    pilots: int | None  #: how many pilots are kept from now on; null: as many as the trainers can use
    nodes: int  #: how many nodes are in the pool now


class Removed(Answer, frozen=True):
    """The answer of ``pilot rm``."""

    trainers: list[str]  #: the removed ones


class Explained(Answer, frozen=True):
    """The answer of ``pilot explain``."""

    trainer: str  #: its name
    sentences: list[str]  #: the explanation in words; they may change in every version
    decision: Explanation | None  #: the numbers behind them; null if the trainer was not part of the last plan


class Draining(Answer, frozen=True):
    """The answer of ``pilot down``."""

    run_dir: str  #: the pool's run directory, on the coordinator's host
    nodes: int  #: how many nodes were in the pool when its drain began


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
RESUME = Verb("resume", Resumption, TrainerPhase)
HOLD = Verb("hold", OneTrainer, TrainerPhase)
RELEASE = Verb("release", OneTrainer, TrainerPhase)
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


class TrialStatus(Answer, frozen=True):
    """One trial."""

    number: int  #: of it, from 0
    trainer: str  #: its name as a trainer
    state: str  #: waiting (for its parameters), training, shelved, complete, failed, or ended
    phase: str | None  #: of its trainer, as pilot ls has it; null while it waits and after the trainer was forgotten
    nodes: int  #: on how many it trains now
    parameters: dict[str, str | int | float | bool]  #: by name
    values: list[float | None]  #: of the study's metric at each rung that it reached
    rung: int  #: the rung to which it trains or trained, from 1
    reports: int  #: how many it made
    node_hours: float  #: what it used
    reason: str  #: why it ended or is shelved


class StudyStatus(Answer, frozen=True):
    """One study."""

    study: str  #: its name
    state: str  #: running, stopped, or over
    reason: str  #: why it stopped
    metric: str  #: the metric that it optimises
    maximise: bool  #: whether to its maximum
    rungs: list[int]  #: after how many reports trials are compared
    sampler: str  #: which one
    trials: int | None  #: how many there are to be; null where its space was exhausted
    asked: int  #: how many there are
    by_state: dict[str, int]  #: how many trials are in each state
    best: TrialStatus | None  #: the best one at the highest rung that any reached; null: none reached one
    deadline_left_s: float | None  #: until its deadline; null: it has none
    script: str  #: of its trials
    arguments: list[str]  #: of the script, before the parameters
    directory: str  #: its folder
    optuna: str  #: Optuna's journal file of it


class StudyList(Answer, frozen=True):
    """The answer of ``pilot study status``."""

    studies: list[StudyStatus]  #: in the order of submission


class TrialList(Answer, frozen=True):
    """The answer of ``pilot study trials``."""

    study: StudyStatus  #: the study
    trials: list[TrialStatus]  #: by number


STUDY_RUN = Verb("study run", StudyDefinition, StudyStatus)
STUDIES = Verb("studies", Nothing, StudyList, changes=False)
STUDY_TRIALS = Verb("study trials", OneStudy, TrialList, changes=False)
STUDY_STOP = Verb("study stop", OneStudy, StudyStatus)
STUDY_RESUME = Verb("study resume", StudyResumption, StudyStatus)
