"""What each event does, and which phase of a trainer follows which: two tables that cover the whole core.

Nothing is decided here: :mod:`pilot.core.coordinator` and :mod:`pilot.core.trainer.transitions` note events, and a
trainer's phase follows from its facts. The property tests check both tables, in both directions, against all that they
play; ARCHITECTURE.md shows them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilot.core.events import (
    ArrivalsDue,
    BudgetDue,
    CheckpointPublished,
    CheckpointWritten,
    CodeLoaded,
    DecisionDue,
    DrainRequested,
    EntriesLost,
    Event,
    GroupBroken,
    GroupExamined,
    GroupFormed,
    GroupPaused,
    GroupStalled,
    NodeCleared,
    NodeRetried,
    PlanFailed,
    PlanReady,
    PoolChanged,
    PoolReopened,
    ProfileDue,
    Progress,
    ScriptChecked,
    TrainerCancelled,
    TrainerFinished,
    TrainerHeld,
    TrainerReleased,
    TrainerRemoved,
    TrainerResumed,
    TrainerSubmitted,
    WorkerExited,
    WorkerReady,
    WorkerSlow,
)
from pilot.core.study.events import (
    ReservationDue,
    StudyDue,
    StudyResumed,
    StudyStopped,
    StudySubmitted,
    TrialAsked,
    TrialNotAsked,
    TrialTold,
)
from pilot.core.trainer.trainer import Phase, PhaseChange


@dataclass(frozen=True, slots=True)
class Effect:
    """What is ``noted`` for an event, and when it makes a new problem (``asks``; "": never)."""

    event: type[Event]
    noted: str
    asks: str = ""


EFFECTS = (
    Effect(
        PoolChanged,
        "nodes come (in a drain they are leaving at once); leaving and lost ones leave their targets; a group with a "
        "lost member, and one that forms with a leaving one, is dissolved",
        "if a node came, or one that was counted on left",
    ),
    Effect(
        TrainerSubmitted,
        "the trainer, last in the order of submission, and its arrival; if no node could be given to it, it only "
        "queues; while arrivals are collected (``arrivals_s``) and no plan is being made, its target is its minimum "
        "of the free nodes",
        "if it arrived and arrivals are not collected (``arrivals_s`` is 0)",
    ),
    Effect(
        TrainerCancelled,
        "it closes; if it has finished, what its script does after the loop is cut short",
        "if it was open",
    ),
    Effect(
        TrainerResumed,
        "one that failed or was cancelled is open again, last in the order of submission, with its step, its "
        "generation and its measurements; from scratch, one that is held as well, and its checkpoints are given up; "
        "its arrival",
        "as for a submission",
    ),
    Effect(TrainerHeld, "its target becomes empty, and no plan includes it until it is released", "if it was open"),
    Effect(
        TrainerReleased, "plans may include it again, at its place in the order; its arrival", "as for a submission"
    ),
    Effect(TrainerRemoved, "one that has ended is forgotten"),
    Effect(
        DrainRequested,
        "every target becomes empty; no more problems are posed; scripts that run on after their loop may do so for "
        "the grace",
    ),
    Effect(PoolReopened, "the drain is over; the new configuration applies", "if there are trainers"),
    Effect(
        EntriesLost,
        "the next groups get higher generations, and the next plan a higher id, than those that are named; a group "
        "that forms is dissolved if it could have one of these generations",
        "if no plan's id is named",
    ),
    Effect(
        PlanReady,
        "targets, if the plan's id is the newest and trainers can have its counts",
        "if too many nodes are set aside for a trainer: within what it can have",
    ),
    Effect(PlanFailed, "nothing: targets stay as they are"),
    Effect(
        WorkerReady,
        "the worker can join a group; if others failed to start, their nodes were at fault",
        "if a node was set aside for all",
    ),
    Effect(WorkerSlow, "the others no longer wait for the worker"),
    Effect(
        CodeLoaded,
        "the first version of each file; a worker that loaded another one is stopped, and its node is set aside for "
        "the trainer; if no other worker can go on, the trainer's target becomes empty and it ends once it has none",
        "if a worker loaded another version",
    ),
    Effect(
        WorkerExited,
        "the worker is gone; its group is dissolved; who was at fault: the script (the trainer failed), or the "
        "node (it is set aside); if no node could start it for five minutes because of what cannot be read, it is held",
        "if it failed or is held, or a node was set aside",
    ),
    Effect(
        GroupFormed,
        "the forming group trains; its members hold the state; if it was loaded, and one other node could not load it, "
        "that node was at fault",
        "if a node was set aside for all",
    ),
    Effect(
        GroupBroken,
        "the group is dissolved; five in a row without a new step: the trainer failed; a node that keeps groups from "
        "forming, that others cannot reach, or that cannot load the state is set aside; if no node can for five "
        "minutes, or the checkpoints are damaged, the trainer is held",
        "if it failed or is held, or a node was set aside",
    ),
    Effect(GroupPaused, "no group trains; all members hold the same state"),
    Effect(GroupStalled, "its members are examined, unless they already are"),
    Effect(
        GroupExamined, "the group is dissolved if all its ranks wait for one another, as one that broke", "if it failed"
    ),
    Effect(CheckpointWritten, "the state is saved (if not, it is tried again)"),
    Effect(CheckpointPublished, "how long writing takes"),
    Effect(
        ScriptChecked,
        "what came of the check, for all trials of its study; unless it is to stay on one node, it may grow",
        "if it may grow",
    ),
    Effect(
        Progress,
        "the step, the measured rate and rescale cost; if others failed in groups and the step was not done before, "
        "their nodes were at fault",
        "if a node was set aside for all, or the rate is now known on the count that a profile measures; or if its "
        "curve was a guess or moved by more than its error, and the last problem is half the forward-looking time old",
    ),
    Effect(TrainerFinished, "it closes", "if it was open"),
    Effect(NodeRetried, "the node is no longer set aside", "if it was"),
    Effect(NodeCleared, "the node's failures are forgotten", "if something was"),
    Effect(
        BudgetDue,
        "at 80% of the budget, the warning; at its end the pool drains, or the trainer's target "
        "becomes empty and it ends once it has no worker",
        "if a trainer's budget is used up",
    ),
    Effect(
        ArrivalsDue,
        "recent arrivals are planned for",
        "if trainers arrived that could be given nodes, and no problem was posed since",
    ),
    Effect(DecisionDue, "that it is made, if plans are periodic", "if it is due"),
    Effect(ProfileDue, "its profile moves on to the next count, or ends", "if it was due"),
    Effect(StudySubmitted, "the study; plans may give nodes to trials of it", "always"),
    Effect(StudyStopped, "its trials are shelved where they are, and no more are asked for", "if a trial trained"),
    Effect(StudyResumed, "its trials continue, and more of them may be asked for", "always"),
    Effect(StudyDue, "as for a stop", "as for a stop"),
    Effect(
        TrialAsked,
        "the trial is a trainer from now on, on the nodes that were kept for it",
        "if none were, or not enough of them are free",
    ),
    Effect(
        TrialNotAsked,
        "it is asked for again; after three times the study stops, and where the space is exhausted it has no more "
        "trials",
        "as for a stop, or if the space is exhausted",
    ),
    Effect(TrialTold, "nothing"),
    Effect(ReservationDue, "the nodes that were kept for a trial are free again", "if some were"),
)

TRAINER_CHANGES = (
    PhaseChange(None, Phase.QUEUED, (TrainerSubmitted,)),
    PhaseChange(None, Phase.STARTING, (TrainerSubmitted,)),
    PhaseChange(Phase.QUEUED, Phase.STARTING, (PlanReady, TrainerReleased, TrainerResumed)),
    PhaseChange(Phase.QUEUED, Phase.RUNNING, (GroupFormed,)),
    PhaseChange(Phase.STARTING, Phase.RUNNING, (GroupFormed,)),
    PhaseChange(Phase.STARTING, Phase.QUEUED, (PlanReady, WorkerExited, GroupBroken, PoolChanged, DrainRequested)),
    PhaseChange(
        Phase.RUNNING, Phase.PAUSED, (GroupPaused, GroupBroken, GroupExamined, CodeLoaded, WorkerExited, PoolChanged)
    ),
    PhaseChange(Phase.RUNNING, Phase.STARTING, (WorkerExited, PoolChanged)),
    PhaseChange(Phase.RUNNING, Phase.QUEUED, (WorkerExited, PoolChanged)),
    PhaseChange(Phase.PAUSED, Phase.RUNNING, (GroupFormed,)),
    PhaseChange(Phase.PAUSED, Phase.STARTING, (CheckpointWritten, GroupBroken, WorkerExited, PoolChanged)),
    PhaseChange(Phase.PAUSED, Phase.QUEUED, (CheckpointWritten, PlanReady, WorkerExited, PoolChanged, DrainRequested)),
    PhaseChange(Phase.QUEUED, Phase.CLOSING, (TrainerCancelled, WorkerExited, GroupBroken)),
    PhaseChange(Phase.STARTING, Phase.CLOSING, (TrainerCancelled, WorkerExited, GroupBroken)),
    PhaseChange(
        Phase.RUNNING, Phase.CLOSING, (TrainerFinished, TrainerCancelled, WorkerExited, GroupBroken, GroupExamined)
    ),
    PhaseChange(Phase.PAUSED, Phase.CLOSING, (TrainerCancelled, WorkerExited, GroupBroken)),
    PhaseChange(Phase.CLOSING, Phase.FINISHED, (WorkerExited, PoolChanged)),
    PhaseChange(Phase.CLOSING, Phase.FAILED, (WorkerExited, PoolChanged)),
    PhaseChange(Phase.CLOSING, Phase.CANCELLED, (WorkerExited, PoolChanged)),
    PhaseChange(Phase.QUEUED, Phase.CANCELLED, (TrainerCancelled,)),
    PhaseChange(Phase.STARTING, Phase.CANCELLED, (TrainerCancelled,)),
    PhaseChange(Phase.QUEUED, Phase.FAILED, (WorkerExited,)),
    PhaseChange(Phase.STARTING, Phase.FAILED, (WorkerExited,)),
    PhaseChange(Phase.RUNNING, Phase.FAILED, (WorkerExited,)),
    PhaseChange(Phase.PAUSED, Phase.FAILED, (WorkerExited,)),
    PhaseChange(Phase.FAILED, Phase.QUEUED, (TrainerResumed,)),
    PhaseChange(Phase.FAILED, Phase.STARTING, (TrainerResumed,)),
    PhaseChange(Phase.CANCELLED, Phase.QUEUED, (TrainerResumed,)),
    PhaseChange(Phase.CANCELLED, Phase.STARTING, (TrainerResumed,)),
    PhaseChange(Phase.STARTING, Phase.QUEUED, (TrainerHeld, BudgetDue, CodeLoaded)),
    PhaseChange(Phase.PAUSED, Phase.QUEUED, (TrainerHeld, BudgetDue, CodeLoaded)),
    PhaseChange(Phase.QUEUED, Phase.STOPPED, (BudgetDue, WorkerExited, PoolChanged)),
    PhaseChange(Phase.STARTING, Phase.STOPPED, (BudgetDue,)),
    PhaseChange(Phase.RUNNING, Phase.STOPPED, (WorkerExited, PoolChanged)),
    PhaseChange(Phase.PAUSED, Phase.STOPPED, (WorkerExited, PoolChanged)),
    PhaseChange(Phase.STOPPED, Phase.QUEUED, (TrainerResumed,)),
    PhaseChange(Phase.STOPPED, Phase.STARTING, (TrainerResumed,)),
    PhaseChange(None, Phase.QUEUED, (TrialAsked,)),
    PhaseChange(None, Phase.STARTING, (TrialAsked,)),
    PhaseChange(None, Phase.SHELVED, (TrialAsked,)),
    PhaseChange(Phase.PAUSED, Phase.SHELVED, (CheckpointWritten, WorkerExited, PoolChanged)),
    PhaseChange(Phase.RUNNING, Phase.SHELVED, (WorkerExited, PoolChanged)),
    PhaseChange(Phase.STARTING, Phase.SHELVED, (StudyStopped, StudyDue, WorkerExited)),
    PhaseChange(Phase.QUEUED, Phase.SHELVED, (StudyStopped, StudyDue, TrialNotAsked, WorkerExited)),
    PhaseChange(Phase.SHELVED, Phase.QUEUED, (StudyResumed, Progress)),
    PhaseChange(Phase.SHELVED, Phase.RUNNING, (GroupFormed,)),
    PhaseChange(Phase.SHELVED, Phase.CLOSING, (TrainerCancelled,)),
    PhaseChange(Phase.SHELVED, Phase.CANCELLED, (TrainerCancelled,)),
    PhaseChange(Phase.SHELVED, Phase.FAILED, (WorkerExited,)),
)
"""From before an event to after it: a trainer that has no worker left when it ends is never seen closing."""
