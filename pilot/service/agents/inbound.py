"""Turns agents' messages into events, if they complete a pending command or report something current.

Everything else is stale or repeated and is dropped here, by trainer, generation and sender: an agent may be late or
wrong, but it cannot complete a command twice, or complete another agent's command. What gets here is about what the
agent runs, and its texts are lines (:mod:`pilot.service.agents.intake`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import is_rate
from pilot.core.events import (
    CheckpointPublished,
    CheckpointWritten,
    CodeLoaded,
    Event,
    ExitCause,
    GroupBroken,
    GroupFormed,
    GroupPaused,
    LedgerRange,
    Progress,
    ScriptChecked,
    TrainerFinished,
    WorkerExited,
    WorkerReady,
)
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.remaining_work import Goal
from pilot.core.trainer.trainer import WorkerPhase
from pilot.protocol import wire
from pilot.service.agents.pending import Of, PendingCommands
from pilot.submission.loaded_code import FILES_MAX

log = logging.getLogger(__name__)

REPORTS_MOST = 1000
METRICS_MAX, METRIC_NAME_MAX = 64, 64
WORDS_MAX = 64
"""Maximum number of words in a run's identity, and in its changes."""

MEASURE_MAX = 1e12
"""In seconds: 30,000 years. For rates, the core has limits: :data:`pilot.core.curves.curve.RATES`."""

Broken = Callable[[GroupBroken], None]


class Inbound:
    """The translator; it only remembers which members of a group have paused."""

    def __init__(self, core: Coordinator, pending: PendingCommands, broken: Broken) -> None:
        self._core = core
        self._pending = pending
        self._broken = broken
        self._paused: dict[Of, dict[NodeId, int]] = {}

    def worker_ready(self, node: NodeId, message: wire.WorkerReady) -> list[Event]:
        """Completes ``StartWorker``."""
        trainer = TrainerId(message.trainer)
        if (trainer, node) not in self._pending.starting:
            return []
        return [WorkerReady(trainer, node)]

    def code_loaded(self, node: NodeId, message: wire.CodeLoaded) -> list[Event]:
        """What a worker has loaded, without what is known in the same version: most nodes report nothing new."""
        trainer = self._core.trainers.get(TrainerId(message.trainer))
        worker = trainer.workers.get(node) if trainer is not None else None
        if trainer is None or worker is None or worker.phase is WorkerPhase.STOPPING:
            return []
        news = [(path, sha) for path, sha in sorted(message.files.items()) if trainer.code.get(path) != sha]
        room = max(0, FILES_MAX - len(trainer.code))
        changed, new = ([file for file in news if (file[0] in trainer.code) is known] for known in (True, False))
        files = (*changed, *new[:room])
        return [CodeLoaded(trainer.id, node, files)] if files else []

    def worker_exited(self, node: NodeId, message: wire.WorkerExited) -> list[Event]:
        """Completes ``StopWorker`` and ``StartWorker``, or reports that a worker ended by itself."""
        trainer = self._core.trainers.get(TrainerId(message.trainer))
        if trainer is None or node not in trainer.workers:
            return []
        detail = message.detail
        if message.log:
            detail = f"{detail}\n(log: {message.log})"
        return [WorkerExited(trainer.id, node, _cause(message.cause), detail)]

    def group_formed(self, node: NodeId, message: wire.GroupFormed) -> list[Event]:
        """Completes ``FormGroup``."""
        waiting = self._pending.forming.get(_of(message))
        if waiting is None or waiting[0].members[0] != node:
            return []
        identity = tuple(sorted(message.identity.items())[:WORDS_MAX])
        return [
            GroupFormed(*_of(message), message.step, message.resumed, identity, tuple(message.accepted[-WORDS_MAX:]))
        ]

    def group_broken(self, node: NodeId, message: wire.GroupBroken) -> None:
        """Completes ``FormGroup`` and ``PauseGroup``, or reports that a training group broke. Gathered by the
        driver."""
        trainer = self._core.trainers.get(TrainerId(message.trainer))
        if trainer is None:
            return
        for group in (trainer.group, trainer.forming):
            if group is not None and group.generation == message.generation and node in group.members:
                self._broken(GroupBroken(*_of(message), f"{node}: {message.reason}", node, unloaded=message.unloaded))

    def rank_paused(self, node: NodeId, message: wire.RankPaused) -> list[Event]:
        """Completes ``PauseGroup`` when the last member has reported."""
        of = _of(message)
        waiting = self._pending.pausing.get(of)
        if waiting is None or node not in waiting[0].members:
            return []
        steps = self._paused.setdefault(of, {})
        steps[node] = message.step
        if len(steps) < len(waiting[0].members):
            return []
        del self._paused[of]
        if len(set(steps.values())) > 1:
            return [GroupBroken(*of, f"its ranks paused after different steps: {steps}")]
        return [GroupPaused(*of, message.step)]

    def checkpoint_written(self, node: NodeId, message: wire.CheckpointWritten) -> list[Event]:
        """Reports the time of a write; completes ``WriteCheckpoint`` if it was requested."""
        trainer = self._core.trainers.get(TrainerId(message.trainer))
        if trainer is None or node not in trainer.workers:
            return []
        alone_s = _measured(message.alone_s) if message.path else None
        out: list[Event] = [] if alone_s is None else [CheckpointPublished(trainer.id, message.step, alone_s)]
        if message.asked and (trainer.id, node) in self._pending.writing:
            out.append(CheckpointWritten(trainer.id, node, message.step, message.error))
        return out

    def script_checked(self, node: NodeId, message: wire.ScriptChecked) -> list[Event]:
        """Completes ``CheckScript``."""
        trainer = TrainerId(message.trainer)
        if (trainer, node) not in self._pending.checking:
            return []
        return [ScriptChecked(trainer, node, ProofState(message.result), message.text)]

    def progress(self, node: NodeId, message: wire.Progress) -> list[Event]:
        """Progress from the leader of a group; also accepted late, because its ledger still counts."""
        if not self._leads(node, message):
            return []
        return [_progress(message, self._core.reports_of(TrainerId(message.trainer)))]

    def trainer_finished(self, node: NodeId, message: wire.TrainerFinished) -> list[Event]:
        """The trainer ended; its last metrics are progress."""
        if not self._leads(node, message):
            return []
        of, epoch = _of(message), self._core.trainers[TrainerId(message.trainer)].epoch
        last = Progress(*of, message.step, epoch, message.samples, metrics=_metrics(message.metrics))
        return [last, TrainerFinished(*of, message.step, message.samples)]

    def _leads(self, node: NodeId, message: wire.Progress | wire.TrainerFinished) -> bool:
        group = self._pending.groups.get(_of(message))
        return group is not None and group.members[0] == node


def _of(
    message: wire.GroupFormed | wire.GroupBroken | wire.RankPaused | wire.Progress | wire.TrainerFinished,
) -> Of:
    return TrainerId(message.trainer), Generation(message.generation)


def _cause(text: str) -> ExitCause:
    try:
        return ExitCause(text)
    except ValueError:
        log.warning("an agent gave an unknown cause for a worker's end: %r", text)
        return ExitCause.DIED


def _progress(message: wire.Progress, reports: int) -> Progress:
    """``reports``: how many are known. Those are told again, as some may have been lost; the journal has them once."""
    return Progress(
        *_of(message),
        step=message.step,
        epoch=message.epoch,
        samples=message.samples,
        samples_per_s=message.samples_per_s if is_rate(message.samples_per_s) else None,
        stall_s=_measured(message.stall_s),
        rescale_s=_measured(message.rescale_s),
        ledger=tuple(LedgerRange(Generation(row[0]), *row[1:]) for row in message.ledger),
        metrics=_metrics(message.metrics),
        reports=tuple(row for row in message.reports[-REPORTS_MOST:] if row[0] > reports),
        total_samples=Goal.of(message.metrics).total_samples(message.epoch, message.step, message.samples),
    )


def _measured(value: float | None) -> float | None:
    """A measurement that the core can use; None after a clock jump."""
    return value if value is not None and 0 <= value <= MEASURE_MAX else None


def _metrics(values: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((name[:METRIC_NAME_MAX], value) for name, value in sorted(values.items())[:METRICS_MAX])


def grace_s(message: wire.Noticed) -> float:
    """How long a leaving pilot will stay; 0 if it gives no valid time."""
    return message.grace_s if 0 <= message.grace_s <= MEASURE_MAX else 0.0
