"""The effects of each event, and the order of phases: tables that cover the core.

Nothing is decided here: :mod:`pilot.core.coordinator` and :mod:`pilot.core.trainer.transitions` record events, and
phases follow from the facts. The property tests check the tables, in both directions, against all that they play;
ARCHITECTURE.md shows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pilot.core import events as e
from pilot.core.commands import StartWorker, StopWorker
from pilot.core.study import events as study
from pilot.core.trainer.trainer import Phase, WorkerPhase


@dataclass(frozen=True, slots=True)
class Effect:
    """The records of an event (``noted``), and when it makes a new problem (``asks``; "": never)."""

    event: type[e.Event]
    noted: str
    asks: str = ""


EFFECTS = (
    Effect(
        e.PoolChanged,
        "nodes come (in a drain they leave at once); nodes that got a notice, and lost ones, leave their targets; a "
        "group with a lost member, and one that forms with a noticed one, is dissolved",
        "if a node came, or one that was counted on left",
    ),
    Effect(
        e.TrainerSubmitted,
        "the trainer, last in the order of submission, and its arrival; if no node could be given to it, it only "
        "queues; while arrivals are collected (``arrivals_s``) and no plan is being made, its target is its minimum "
        "of the free nodes",
        "if it arrived and arrivals are not collected (``arrivals_s`` is 0)",
    ),
    Effect(
        e.TrainerCancelled,
        "it closes; if it has finished, what its script does after the loop is cut short",
        "if it was open",
    ),
    Effect(
        e.TrainerResumed,
        "one that failed or was cancelled is open again, last in the order of submission, with its step, its "
        "generation and its measurements; from scratch, one that is held as well, and its checkpoints are given up; "
        "its arrival; one that is open may use types again on which it ran out of memory",
        "as for a submission",
    ),
    Effect(e.TrainerHeld, "its target becomes empty, and no plan includes it until it is released", "if it was open"),
    Effect(
        e.TrainerReleased, "plans may include it again, at its place in the order; its arrival", "as for a submission"
    ),
    Effect(e.TrainerRemoved, "one that has ended is forgotten"),
    Effect(
        e.DrainRequested,
        "every target becomes empty; no more problems are posed; scripts that run on after their loop may do so for "
        "the grace",
    ),
    Effect(e.PoolReopened, "the drain is over; the new configuration applies", "if there are trainers"),
    Effect(
        e.EntriesLost,
        "the next groups get higher generations, and the next plan a higher id, than those that are named; a group "
        "that forms is dissolved if it could have one of these generations",
        "if no plan's id is named",
    ),
    Effect(
        e.PlanReady,
        "targets, if the plan's id is the newest and trainers can have its counts",
        "if too many nodes are set aside for a trainer: within what it can have",
    ),
    Effect(e.PlanFailed, "nothing: targets stay as they are"),
    Effect(
        e.WorkerReady,
        "the worker can join a group; if others failed to start, their nodes were at fault",
        "if a node was set aside for all",
    ),
    Effect(e.WorkerSlow, "the others no longer wait for the worker"),
    Effect(
        e.CodeLoaded,
        "the first version of each file; a worker that loaded another one is stopped, and its node is set aside for "
        "the trainer; if no other worker can go on, the trainer's target becomes empty and it ends once it has none",
        "if a worker loaded another version",
    ),
    Effect(
        e.WorkerExited,
        "the worker is gone; its group is dissolved; who was at fault: the script (the trainer failed), or the "
        "node (it is set aside); if no node could start it for five minutes because of what cannot be read, it is "
        "held; if it ran out of memory, and the pool has several types of nodes, it gives those of this type back",
        "if it failed or is held, or a node was set aside, or its node was busy, or its type is excluded",
    ),
    Effect(
        e.GroupFormed,
        "the forming group trains; its members hold the state; if it was loaded, and one other node could not load it, "
        "that node was at fault",
        "if a node was set aside for all",
    ),
    Effect(
        e.GroupBroken,
        "the group is dissolved; five in a row without a new step: the trainer failed; a node that keeps groups from "
        "forming, that others cannot reach, or that cannot load the state is set aside; if no node can for five "
        "minutes, or the checkpoints are damaged, the trainer is held",
        "if it failed or is held, or a node was set aside",
    ),
    Effect(e.GroupPaused, "no group trains; all members hold the same state"),
    Effect(e.GroupStalled, "its members are examined, unless they already are"),
    Effect(
        e.GroupExamined,
        "the group is dissolved if all its ranks wait for one another, as one that broke",
        "if it failed",
    ),
    Effect(e.CheckpointWritten, "the state is saved (if not, it is tried again)"),
    Effect(e.CheckpointPublished, "how long writing takes"),
    Effect(
        e.ScriptChecked,
        "what came of the check, for all trials of its study; unless it is to stay on one node, it may grow",
        "if it may grow",
    ),
    Effect(
        e.Progress,
        "the step, the measured rate and rescale cost; if others failed in groups and the step was not done before, "
        "their nodes were at fault",
        "if a node was set aside for all, or the rate is now known on the count that a profile measures; or if its "
        "curve was a guess or moved by more than its error, and the last problem is half the forward-looking time old",
    ),
    Effect(
        e.SpeedsMeasured,
        "how fast the trainer computes on each type of nodes, and which nodes are slow for theirs",
        "if a node is slow from now on, or no longer; or, as for ``Progress``, if a speed differs by more than its "
        "error",
    ),
    Effect(e.TrainerFinished, "it closes; its leader's node is busy, and no trainer is to get it", "if it was open"),
    Effect(e.NodeRetried, "the node is no longer set aside", "if it was"),
    Effect(e.NodeCleared, "the node's failures are forgotten", "if something was"),
    Effect(
        e.BudgetDue,
        "at 80% of the budget, the warning; at its end the pool drains, or the trainer's target "
        "becomes empty and it ends once it has no worker",
        "if a trainer's budget is used up",
    ),
    Effect(
        e.ArrivalsDue,
        "recent arrivals are planned for",
        "if trainers arrived that could be given nodes, and no problem was posed since",
    ),
    Effect(
        e.CurvesDue,
        "that the last problem is half the forward-looking time old",
        "if a rate measured since then shows that a curve in it was a guess, or has moved by more than its error",
    ),
    Effect(e.DecisionDue, "that it is made, if plans are periodic", "if it is due"),
    Effect(e.TurnDue, "those that were due by then have been planned for", "if a trainer is overdue or a turn is over"),
    Effect(e.ProfileDue, "its profile moves on to the next count, or ends", "if it was due"),
    Effect(study.StudySubmitted, "the study; plans may give nodes to trials of it", "always"),
    Effect(
        study.StudyStopped, "its trials are shelved where they are, and no more are asked for", "if a trial trained"
    ),
    Effect(study.StudyResumed, "its trials continue, and more of them may be asked for", "always"),
    Effect(study.StudyDue, "as for a stop", "as for a stop"),
    Effect(
        study.TrialAsked,
        "the trial is a trainer from now on, on the nodes that were kept for it",
        "if none were, or not enough of them are free",
    ),
    Effect(
        study.TrialNotAsked,
        "it is asked for again; after three times the study stops, and where the space is exhausted it has no more "
        "trials",
        "as for a stop, or if the space is exhausted",
    ),
    Effect(study.TrialTold, "nothing"),
    Effect(study.ReservationDue, "the nodes that were kept for a trial are free again", "if some were"),
)


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A phase, one that may follow it, and the commands or events that cause the change. None: the trainer or worker
    does not exist.
    """

    before: StrEnum | None
    after: StrEnum | None
    causes: tuple[type, ...]


WORKER_CHANGES = (
    PhaseChange(None, WorkerPhase.STARTING, (StartWorker,)),
    PhaseChange(WorkerPhase.STARTING, WorkerPhase.READY, (e.WorkerReady,)),
    PhaseChange(WorkerPhase.STARTING, WorkerPhase.STOPPING, (StopWorker,)),
    PhaseChange(WorkerPhase.READY, WorkerPhase.STOPPING, (StopWorker,)),
    PhaseChange(WorkerPhase.STARTING, None, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(WorkerPhase.READY, None, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(WorkerPhase.STOPPING, None, (e.WorkerExited, e.PoolChanged)),
)
"""All changes of a worker's phase. A worker goes with its process, or with its node."""

TRAINER_CHANGES = (
    PhaseChange(None, Phase.QUEUED, (e.TrainerSubmitted,)),
    PhaseChange(None, Phase.STARTING, (e.TrainerSubmitted,)),
    PhaseChange(Phase.QUEUED, Phase.STARTING, (e.PlanReady, e.TrainerReleased, e.TrainerResumed)),
    PhaseChange(Phase.QUEUED, Phase.RUNNING, (e.GroupFormed,)),
    PhaseChange(Phase.STARTING, Phase.RUNNING, (e.GroupFormed,)),
    PhaseChange(
        Phase.STARTING, Phase.QUEUED, (e.PlanReady, e.WorkerExited, e.GroupBroken, e.PoolChanged, e.DrainRequested)
    ),
    PhaseChange(
        Phase.RUNNING,
        Phase.PAUSED,
        (e.GroupPaused, e.GroupBroken, e.GroupExamined, e.CodeLoaded, e.WorkerExited, e.PoolChanged),
    ),
    PhaseChange(Phase.RUNNING, Phase.STARTING, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.RUNNING, Phase.QUEUED, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.PAUSED, Phase.RUNNING, (e.GroupFormed,)),
    PhaseChange(Phase.PAUSED, Phase.STARTING, (e.CheckpointWritten, e.GroupBroken, e.WorkerExited, e.PoolChanged)),
    PhaseChange(
        Phase.PAUSED, Phase.QUEUED, (e.CheckpointWritten, e.PlanReady, e.WorkerExited, e.PoolChanged, e.DrainRequested)
    ),
    PhaseChange(Phase.QUEUED, Phase.CLOSING, (e.TrainerCancelled, e.WorkerExited, e.GroupBroken)),
    PhaseChange(Phase.STARTING, Phase.CLOSING, (e.TrainerCancelled, e.WorkerExited, e.GroupBroken)),
    PhaseChange(
        Phase.RUNNING,
        Phase.CLOSING,
        (e.TrainerFinished, e.TrainerCancelled, e.WorkerExited, e.GroupBroken, e.GroupExamined),
    ),
    PhaseChange(Phase.PAUSED, Phase.CLOSING, (e.TrainerCancelled, e.WorkerExited, e.GroupBroken)),
    PhaseChange(Phase.CLOSING, Phase.FINISHED, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.CLOSING, Phase.FAILED, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.CLOSING, Phase.CANCELLED, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.QUEUED, Phase.CANCELLED, (e.TrainerCancelled,)),
    PhaseChange(Phase.STARTING, Phase.CANCELLED, (e.TrainerCancelled,)),
    PhaseChange(Phase.QUEUED, Phase.FAILED, (e.WorkerExited,)),
    PhaseChange(Phase.STARTING, Phase.FAILED, (e.WorkerExited,)),
    PhaseChange(Phase.RUNNING, Phase.FAILED, (e.WorkerExited,)),
    PhaseChange(Phase.PAUSED, Phase.FAILED, (e.WorkerExited,)),
    PhaseChange(Phase.FAILED, Phase.QUEUED, (e.TrainerResumed,)),
    PhaseChange(Phase.FAILED, Phase.STARTING, (e.TrainerResumed,)),
    PhaseChange(Phase.CANCELLED, Phase.QUEUED, (e.TrainerResumed,)),
    PhaseChange(Phase.CANCELLED, Phase.STARTING, (e.TrainerResumed,)),
    PhaseChange(Phase.STARTING, Phase.QUEUED, (e.TrainerHeld, e.TrainerFinished, e.BudgetDue, e.CodeLoaded)),
    PhaseChange(Phase.PAUSED, Phase.QUEUED, (e.TrainerHeld, e.BudgetDue, e.CodeLoaded)),
    PhaseChange(Phase.QUEUED, Phase.STOPPED, (e.BudgetDue, e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.STARTING, Phase.STOPPED, (e.BudgetDue,)),
    PhaseChange(Phase.RUNNING, Phase.STOPPED, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.PAUSED, Phase.STOPPED, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.STOPPED, Phase.QUEUED, (e.TrainerResumed,)),
    PhaseChange(Phase.STOPPED, Phase.STARTING, (e.TrainerResumed,)),
    PhaseChange(None, Phase.QUEUED, (study.TrialAsked,)),
    PhaseChange(None, Phase.STARTING, (study.TrialAsked,)),
    PhaseChange(None, Phase.SHELVED, (study.TrialAsked,)),
    PhaseChange(Phase.PAUSED, Phase.SHELVED, (e.CheckpointWritten, e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.RUNNING, Phase.SHELVED, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.STARTING, Phase.SHELVED, (study.StudyStopped, study.StudyDue, e.WorkerExited)),
    PhaseChange(Phase.QUEUED, Phase.SHELVED, (study.StudyStopped, study.StudyDue, study.TrialNotAsked, e.WorkerExited)),
    PhaseChange(Phase.SHELVED, Phase.QUEUED, (study.StudyResumed, e.Progress)),
    PhaseChange(Phase.SHELVED, Phase.RUNNING, (e.GroupFormed,)),
    PhaseChange(Phase.SHELVED, Phase.CLOSING, (e.TrainerCancelled,)),
    PhaseChange(Phase.SHELVED, Phase.CANCELLED, (e.TrainerCancelled,)),
    PhaseChange(Phase.SHELVED, Phase.FAILED, (e.WorkerExited,)),
    PhaseChange(Phase.PAUSED, Phase.COMPLETE, (e.CheckpointWritten, e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.RUNNING, Phase.COMPLETE, (e.WorkerExited, e.PoolChanged)),
    PhaseChange(Phase.COMPLETE, Phase.CLOSING, (e.TrainerCancelled,)),
    PhaseChange(Phase.COMPLETE, Phase.CANCELLED, (e.TrainerCancelled,)),
)
"""From before an event to after it: a trainer that has no worker left when it ends is never seen closing."""
