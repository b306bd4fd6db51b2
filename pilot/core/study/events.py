"""Events of studies and their trials."""

from __future__ import annotations

from dataclasses import dataclass

from pilot.core.ids import StudyId
from pilot.core.study.study import Parameters, StudySpec
from pilot.core.trainer.spec import TrainerSpec


@dataclass(frozen=True, slots=True)
class StudySubmitted:
    """A user submitted a study. Its name is not in use, nor are those of its trials."""

    spec: StudySpec


@dataclass(frozen=True, slots=True)
class StudyStopped:
    """A user stopped a study: its trials are shelved where they are, until it is resumed."""

    study: StudyId
    reason: str = "stopped by the user"


@dataclass(frozen=True, slots=True)
class StudyResumed:
    """A user continues a study, with ``trials`` in total if that is more than before (None: as many as before)."""

    study: StudyId
    trials: int | None = None


@dataclass(frozen=True, slots=True)
class StudyDue:
    """The deadline of ``study`` has passed."""

    study: StudyId


@dataclass(frozen=True, slots=True)
class TrialAsked:
    """Completes ``AskTrial``: the sampler gave ``parameters``, and how the trial is started is written down."""

    study: StudyId
    number: int
    spec: TrainerSpec
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class TrialNotAsked:
    """Completes ``AskTrial`` if there are no parameters. ``again``: it may be tried again. ``exhausted``: every
    point of the space was tried."""

    study: StudyId
    number: int
    reason: str
    again: bool = False
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class TrialTold:
    """Completes ``TellTrial``. ``error``: why the sampler does not know it yet; it learns it later, with the study."""

    study: StudyId
    number: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReservationDue:
    """Nodes have been reserved for trial ``number`` of ``study`` for as long as allowed."""

    study: StudyId
    number: int


StudyEvent = (
    StudySubmitted | StudyStopped | StudyResumed | StudyDue | TrialAsked | TrialNotAsked | TrialTold | ReservationDue
)
