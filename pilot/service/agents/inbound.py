"""Turns agents' messages into events, if they complete a pending command or report something current.

Everything else is stale or repeated and is dropped here, by trainer, generation and sender: an agent may be late or
wrong, but it cannot complete a command twice, or complete another agent's command. What gets here is about what the
agent runs, and its texts are lines (:mod:`pilot.service.agents.intake`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pilot.core import events
from pilot.core.curves.curve import is_rate
from pilot.core.events import Event
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.trainer import WorkerPhase
from pilot.protocol import wire
from pilot.protocol.remaining_work import Goal
from pilot.service.agents.members import Rendezvous, StallChecks, Unreached, finding_of, group_of, members_of
from pilot.service.agents.pending import Of
from pilot.service.agents.roster import Roster
from pilot.service.agents.silence import SilenceChecks
from pilot.service.durability.live_driver import LiveDriver
from pilot.submission.loaded_code import FILES_MAX

log = logging.getLogger(__name__)

REPORTS_MOST = 1000
METRICS_MAX, METRIC_NAME_MAX = 64, 64
WORDS_MAX = 64
"""Maximum number of words in a run's identity, and in its changes."""

MEASURE_MAX = 1e12
"""In seconds: 30,000 years. For rates, the core has limits: :data:`pilot.core.curves.curve.RATES`."""

_DELAYING = {events.StallFinding.SLOW: "is slow", events.StallFinding.LOST: "was stuck and was restarted"}


class Inbound:
    """Translates messages of agents. ``rendezvous`` sends the members of a forming group each other's addresses.

    It remembers which members of a group have paused, and the trainers with ``gaps`` in their ledgers: their progress
    was not recorded while the disk was full.
    """

    def __init__(self, driver: LiveDriver, roster: Roster, send: Callable[[NodeId, wire.Sent], None]) -> None:
        core, pending = driver.core, driver.pending
        self._driver, self._core, self._pending, self._roster, self._send = driver, core, pending, roster, send
        self.rendezvous = Rendezvous(pending, send)
        self.unreached = Unreached(pending)
        self.stall_checks = StallChecks(core, pending)
        self.silence = SilenceChecks(core, roster, send)
        self.gaps: dict[str, None] = {}
        self._paused: dict[Of, dict[NodeId, int]] = {}
        self._handlers: dict[type[wire.Message], Callable[[NodeId, Any], Sequence[Event]]] = {
            wire.WorkerReady: self._worker_ready,
            wire.CodeLoaded: self._code_loaded,
            wire.ReplicaAddresses: self._replica_addresses,
            wire.WorkerExited: self._worker_exited,
            wire.RankAddress: self.rendezvous.arrived,
            wire.RankJoined: self.rendezvous.joined,
            wire.PeersUnreached: self.unreached.reported,
            wire.GroupFormed: self._group_formed,
            wire.GroupBroken: self._group_broken,
            wire.RankPaused: self._rank_paused,
            wire.RankStalled: self._rank_stalled,
            wire.RankExamined: self._rank_examined,
            wire.CheckpointWritten: self._checkpoint_written,
            wire.ScriptChecked: self._script_checked,
            wire.Progress: self._progress,
            wire.TrainerFinished: self._trainer_finished,
            wire.Remark: self._remark,
        }

    def events_of(self, node: NodeId, message: wire.FromAgent) -> Sequence[Event] | None:
        """The events that a message of ``node`` means; None: an agent does not send this."""
        handler = self._handlers.get(type(message))
        return None if handler is None else handler(node, message)

    def _worker_ready(self, node: NodeId, message: wire.WorkerReady) -> list[Event]:
        """Completes ``StartWorker``."""
        trainer = TrainerId(message.trainer)
        return [events.WorkerReady(trainer, node)] if (trainer, node) in self._pending.starting else []

    def _code_loaded(self, node: NodeId, message: wire.CodeLoaded) -> list[Event]:
        """The files that a worker has loaded, without those known in the same version: most nodes have no others."""
        trainer = self._core.trainers.get(TrainerId(message.trainer))
        worker = trainer.workers.get(node) if trainer is not None else None
        if trainer is None or worker is None or worker.phase is WorkerPhase.STOPPING:
            return []
        differing = [(path, sha) for path, sha in sorted(message.files.items()) if trainer.code.get(path) != sha]
        room = max(0, FILES_MAX - len(trainer.code))
        changed, new = ([file for file in differing if (file[0] in trainer.code) is known] for known in (True, False))
        files = (*changed, *new[:room])
        return [events.CodeLoaded(trainer.id, node, files)] if files else []

    def _replica_addresses(self, node: NodeId, message: wire.ReplicaAddresses) -> list[Event]:
        """Passed on to the replica's other nodes. Nothing is kept: it is repeated until they are connected."""
        trainer = self._core.trainers.get(TrainerId(message.trainer))
        worker = trainer.workers.get(node) if trainer is not None else None
        if trainer is not None and worker is not None and worker.replica == message.replica:
            for mate in trainer.replica_of(node):
                if mate != node:
                    self._send(mate, message)
        return []

    def _worker_exited(self, node: NodeId, message: wire.WorkerExited) -> list[Event]:
        """Completes ``StopWorker`` and ``StartWorker``, or reports that a worker ended by itself."""
        trainer = self._core.trainers.get(TrainerId(message.trainer))
        if trainer is None or node not in trainer.workers:
            return []
        detail = f"{message.detail}\n(log: {message.log})" if message.log else message.detail
        cause = _cause(message.cause)
        return [events.WorkerExited(trainer.id, node, cause, detail, message.origin, message.out_of_memory)]

    def _group_formed(self, node: NodeId, message: wire.GroupFormed) -> list[Event]:
        """Completes ``FormGroup``."""
        of = group_of(message)
        waiting = self._pending.forming.get(of)
        if waiting is None or waiting.command.members[0] != node:
            return []
        identity = tuple(sorted(message.identity.items())[:WORDS_MAX])
        return [events.GroupFormed(*of, message.step, message.resumed, identity, tuple(message.accepted[-WORDS_MAX:]))]

    def _group_broken(self, node: NodeId, message: wire.GroupBroken) -> list[Event]:
        """Completes ``FormGroup`` and ``PauseGroup``, or reports that a training group broke."""
        of = group_of(message)
        broken = events.GroupBroken(*of, f"{node}: {message.reason}", node, unloaded=message.unloaded)
        return [broken] if node in members_of(self._core, of) else []

    def _rank_paused(self, node: NodeId, message: wire.RankPaused) -> list[Event]:
        """Completes ``PauseGroup`` when the last member has reported."""
        of = group_of(message)
        waiting = self._pending.pausing.get(of)
        if waiting is None or node not in waiting.command.members:
            return []
        steps = self._paused.setdefault(of, {})
        steps[node] = message.step
        if len(steps) < len(waiting.command.members):
            return []
        del self._paused[of]
        if len(set(steps.values())) > 1:
            return [events.GroupBroken(*of, f"its ranks paused after different steps: {steps}")]
        return [events.GroupPaused(*of, message.step)]

    def _rank_stalled(self, node: NodeId, message: wire.RankStalled) -> list[Event]:
        """At first it is only asked whether the others are there; their workers are examined after long waits."""
        if message.waited_s >= self._roster.site.silent_s:
            return self.stall_checks.rank_stalled(node, message)
        self.silence.rank_stalled(self._driver.clock(), node, message)
        return []

    def _rank_examined(self, node: NodeId, message: wire.RankExamined) -> list[Event]:
        """Completes ``ExamineGroup`` when the last member has been examined. Users see which node is slow or was stuck,
        except that newcomers wait for the end of a long step.
        """
        trainer = self._core.trainers.get(TrainerId(message.trainer))
        in_a_step = trainer is not None and trainer.group is not None and trainer.group.generation < message.generation
        finding = finding_of(message)
        expected = in_a_step and finding is events.StallFinding.SLOW
        if finding in _DELAYING and not expected and self.stall_checks.awaits(node, message):
            text = f"{node} {_DELAYING[finding]}, the others wait for it: {message.detail}"
            self.remark(message.trainer, text, failed="step")
        return [self.unreached.explained(event) for event in self.stall_checks.rank_examined(node, message)]

    def _checkpoint_written(self, node: NodeId, message: wire.CheckpointWritten) -> list[Event]:
        """Reports the time of a write; completes ``WriteCheckpoint`` if it was requested."""
        if message.error:
            why = f"a checkpoint at step {message.step} failed on {node}: {message.error}"
            self.remark(message.trainer, why, failed="checkpoint")
        trainer = self._core.trainers.get(TrainerId(message.trainer))
        if trainer is None or node not in trainer.workers:
            return []
        alone_s = _measured(message.alone_s) if message.path else None
        out: list[Event] = [] if alone_s is None else [events.CheckpointPublished(trainer.id, message.step, alone_s)]
        if message.asked and (trainer.id, node) in self._pending.writing:
            out.append(events.CheckpointWritten(trainer.id, node, message.step, message.error))
        return out

    def _script_checked(self, node: NodeId, message: wire.ScriptChecked) -> list[Event]:
        """Completes ``CheckScript``."""
        trainer = TrainerId(message.trainer)
        if (trainer, node) not in self._pending.checking:
            return []
        return [events.ScriptChecked(trainer, node, ProofState(message.result), message.text)]

    def _progress(self, node: NodeId, message: wire.Progress) -> list[Event]:
        """Progress from the leader of a group; also accepted late, because its ledger still counts."""
        if self._driver.overfull:
            self.gaps[message.trainer] = None
            return []
        if not self._leads(node, message):
            return []
        return [_progress(message, self._core.reports_of(TrainerId(message.trainer)))]

    def _trainer_finished(self, node: NodeId, message: wire.TrainerFinished) -> list[Event]:
        """The trainer ended; its last metrics are progress."""
        if not self._leads(node, message):
            return []
        of, epoch = group_of(message), self._core.trainers[TrainerId(message.trainer)].epoch
        last = events.Progress(*of, message.step, epoch, message.samples, metrics=_metrics(message.metrics))
        return [last, events.TrainerFinished(*of, message.step, message.samples)]

    def _remark(self, node: NodeId, message: wire.Remark) -> list[Event]:
        if message.holds:
            self.remark(message.trainer, f"{message.text} on {node}", holds=node)
        else:
            self.remark(message.trainer, message.text, lasting="yes")
        return []

    def remark(self, trainer: str, text: str, **more: str) -> None:
        """Journal a remark about a trainer, if there is one of this name."""
        if TrainerId(trainer) in self._core.trainers:
            self._driver.remark(trainer=trainer, text=text, **more)

    def _leads(self, node: NodeId, message: wire.Progress | wire.TrainerFinished) -> bool:
        group = self._pending.groups.get(group_of(message))
        return group is not None and group.members[0] == node


def _cause(text: str) -> events.ExitCause:
    try:
        return events.ExitCause(text)
    except ValueError:
        log.warning("an agent gave an unknown cause for a worker's end: %r", text)
        return events.ExitCause.DIED


def _progress(message: wire.Progress, reports: int) -> events.Progress:
    """``reports``: how many are known. They are sent again, as some may have been lost; the journal has them once."""
    return events.Progress(
        *group_of(message),
        step=message.step,
        epoch=message.epoch,
        samples=message.samples,
        samples_per_s=message.samples_per_s if is_rate(message.samples_per_s) else None,
        stall_s=_measured(message.stall_s),
        rescale_s=_measured(message.rescale_s),
        ledger=tuple(events.LedgerRange(Generation(row[0]), *row[1:]) for row in message.ledger),
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
    """The time that a leaving pilot will stay; 0 if it gives no valid one."""
    return message.grace_s if 0 <= message.grace_s <= MEASURE_MAX else 0.0
