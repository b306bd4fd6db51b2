"""The requests to a coordinator: each verb with its arguments and its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, ParamSpec, Protocol, TypeVar

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

P = ParamSpec("P")
A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=Answer)


class Asks(Protocol):
    """Sends requests."""

    def ask(self, verb: Verb[..., A, R], arguments: A) -> R:
        """Send the request ``verb``; returns its answer."""


@dataclass(frozen=True, slots=True)
class Verb(Generic[P, A, R]):
    """A request: its name, as in :class:`pilot.protocol.wire.Request`, and the types of its arguments and its answer.

    As an attribute of a class that :class:`Asks`, it is the method that sends the request.
    """

    name: str
    arguments: Callable[P, A]  #: a class
    answer: type[R]
    changes: bool = True  #: whether the request may change something

    def __get__(self, client: Asks, _owner: Any = None) -> Callable[P, R]:
        return lambda *given, **named: client.ask(self, self.arguments(*given, **named))


# --- arguments ------------------------------------------------------------------------------------------------------


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the arguments of requests. A field that is not declared is refused."""


class Nothing(Arguments, frozen=True):
    """No arguments."""


class OneTrainer(Arguments, frozen=True):
    """The name of a trainer."""

    trainer: str


class SomeTrainers(Arguments, frozen=True):
    """The names of trainers; none: all."""

    trainers: Sequence[str] = ()


LONGEST_WAIT_S = 20.0
"""A ``wait`` is answered after this time at the latest; the CLI then asks again."""


class Wait(Arguments, frozen=True):
    """Trainers to wait for (none: all), and the longest wait."""

    trainers: Sequence[str] = ()
    limit_s: Annotated[float, msgspec.Meta(ge=0)] = LONGEST_WAIT_S


class Pilots(Arguments, frozen=True):
    """The number of pilots to keep; None: as many as the trainers can use, or as ``by_type`` says."""

    pilots: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None
    by_type: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]] = {}


class Resumption(Arguments, frozen=True):
    """A trainer to resume, its launch from now on, its budget (None: unchanged), and whether it starts from scratch."""

    trainer: str
    launch: LaunchSpec
    budget_node_hours: Annotated[float, msgspec.Meta(gt=0, le=BUDGET_MAX_H)] | None = None
    from_scratch: bool = False


class SomeNodes(Arguments, frozen=True):
    """The names of nodes."""

    nodes: Sequence[str]


class OneStudy(Arguments, frozen=True):
    """The name of a study."""

    study: str


class StudyResumption(Arguments, frozen=True):
    """The study to continue, with ``more`` additional trials; ``space``: the search space that it must have."""

    study: str
    more: Annotated[int, msgspec.Meta(ge=0, le=TRIALS_MAX)] = 0
    space: StudyDefinition | None = None


# --- answers --------------------------------------------------------------------------------------------------------


class Submitted(Answer, frozen=True):
    """The answer of ``pilot submit``."""

    trainer: str  #: the new trainer's name
    directory: str  #: its folder on the coordinator's host, with `logs/` and `checkpoints/`
    place: int | None = None  #: its place among the trainers that wait for nodes, from 1; null: it starts at once
    #: when it is expected to start, on the pool's clock; null: at once, or this cannot be foretold
    expected_start_s: float | None = None
    prognosis: str = ""  #: both in words; empty: it starts at once
    waits: str = ""  #: what it waits for, in words; empty: it starts at once


class TrainerList(Answer, frozen=True):
    """The answer of ``pilot ls``."""

    trainers: list[TrainerStatus]  #: in the order of submission


class PilotList(Answer, frozen=True):
    """The pilots that registered."""

    pilots: list[PilotStatus]  #: in the order of joining


class NodeList(Answer, frozen=True):
    """The answer of ``pilot nodes``."""

    now_s: float  #: time since the pool began
    nodes: list[NodeStatus]  #: in the order of joining
    set_aside: list[SetAsideStatus]  #: nodes that are not used for a while
    remarks: list[str]  #: messages for the user, such as nodes whose library versions differ


class Cleared(Answer, frozen=True):
    """The answer of ``pilot nodes --clear``."""

    nodes: list[str]  #: the nodes whose failures are forgotten


class Phases(Answer, frozen=True):
    """The answer of ``pilot wait``."""

    trainers: dict[str, Phase]  #: the phase of each trainer waited for, by name


class TrainerPhase(Answer, frozen=True):
    """The answer of ``pilot cancel``, ``pilot resume``, ``pilot hold`` and ``pilot release``."""

    trainer: str  #: its name
    phase: Phase  #: its current phase
    held: str  #: why it gets no nodes; empty: it can get some


class Scaled(Answer, frozen=True):
    """The answer of ``pilot scale``."""

    pilots: int | None  #: number of pilots kept from now on; null: as many as the trainers can use
    nodes: int  #: number of nodes in the pool now
    by_type: dict[str, int] | None = None  #: the number of each type of nodes; null: the site names no types


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
    nodes: int  #: number of nodes in the pool when its drain began


class TrialStatus(Answer, frozen=True):
    """One trial."""

    number: int  #: its number in the study, from 0
    trainer: str  #: its name as a trainer
    #: `waiting` for its parameters, `failed` (also without a report), `removed`, or otherwise its trainer's phase
    state: str
    phase: str | None  #: its trainer's phase, as in `pilot ls`; null while it waits, and after the trainer was removed
    nodes: int  #: number of nodes on which it trains now
    parameters: dict[str, str | int | float | bool]  #: by name
    values: list[float | None]  #: values of the study's metric at the rungs that it reached
    rung: int  #: the rung to which it trains or trained, from 1
    reports: int  #: number of reports that it made
    node_hours: float  #: node-hours that it used
    reason: str  #: why it ended or is shelved


class StudyStatus(Answer, frozen=True):
    """One study."""

    study: str  #: its name
    state: str  #: running, stopped, or over
    reason: str  #: why it stopped
    metric: str  #: the metric that it optimises
    maximise: bool  #: whether a larger metric is better
    rungs: list[int]  #: numbers of reports after which trials are compared; 1000000: the end of the script
    sampler: str  #: name of the sampler
    trials: int | None  #: total number of trials; null: all of the search space
    asked: int  #: number of trials so far
    by_state: dict[str, int]  #: number of trials in each state
    best: TrialStatus | None  #: the best trial at the highest rung reached; null: no rung was reached
    deadline_left_s: float | None  #: time until its deadline; null: it has none
    script: str  #: script of its trials
    arguments: list[str]  #: arguments of the script, before the parameters
    directory: str  #: its folder
    optuna: str  #: its Optuna journal file


class StudyList(Answer, frozen=True):
    """The answer of ``pilot study status``."""

    studies: list[StudyStatus]  #: in the order of submission


class TrialList(Answer, frozen=True):
    """The answer of ``pilot study trials``."""

    study: StudyStatus  #: the study
    trials: list[TrialStatus]  #: by number


# --- verbs ----------------------------------------------------------------------------------------------------------

SUBMIT = Verb("submit", Submission, Submitted)
LIST = Verb("list", Nothing, TrainerList, changes=False)
STATUS = Verb("status", Nothing, PoolStatus, changes=False)
PILOTS = Verb("pilots", Nothing, PilotList, changes=False)
NODES = Verb("nodes", Nothing, NodeList, changes=False)
CLEAR = Verb("clear", SomeNodes, Cleared)
WAIT = Verb("wait", Wait, Phases, changes=False)
CANCEL = Verb("cancel", OneTrainer, TrainerPhase)
SCALE = Verb("scale", Pilots, Scaled)
RESUME = Verb("resume", Resumption, TrainerPhase)
HOLD = Verb("hold", OneTrainer, TrainerPhase)
RELEASE = Verb("release", OneTrainer, TrainerPhase)
REMOVE = Verb("remove", SomeTrainers, Removed)
HISTORY = Verb("history", OneTrainer, TrainerHistory, changes=False)
EXPLAIN = Verb("explain", OneTrainer, Explained, changes=False)
DOWN = Verb("down", Nothing, Draining)
STUDY_RUN = Verb("study run", StudyDefinition, StudyStatus)
STUDIES = Verb("studies", Nothing, StudyList, changes=False)
STUDY_TRIALS = Verb("study trials", OneStudy, TrialList, changes=False)
STUDY_STOP = Verb("study stop", OneStudy, StudyStatus)
STUDY_RESUME = Verb("study resume", StudyResumption, StudyStatus)
