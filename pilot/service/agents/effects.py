"""Turns commands into messages to agents and orders to the solver: the table in ``docs/processes.md``, with its
timeouts."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import msgspec

from pilot.core import commands
from pilot.core.errors import JournalError
from pilot.core.events import CheckpointWritten, Event, GroupBroken, ScriptChecked, WorkerSlow
from pilot.core.ids import NodeId, TrainerId
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol import wire
from pilot.provisioning.retry import pause_s
from pilot.service.agents.pending import On, PendingCommands
from pilot.service.planning.sampler_process import SamplerProcess
from pilot.service.planning.solver_process import SolverProcess
from pilot.service.requests.launch_store import LaunchStore
from pilot.site.site import Site
from pilot.submission import script_code

if TYPE_CHECKING:
    from pilot.service.service import Service

log = logging.getLogger(__name__)

SLOW_S = 60.0
"""If a script takes longer to reach ``pilot.train``, the trainer's other workers stop waiting for it."""

STOP_LIMIT_S = 60.0
"""If a process cannot be ended on a node within this time, the node is given up."""

MET_LIMIT_S = 3600.0
"""Members that have found each other may take so long to form a group: for the step that they are in, and until their
state has been loaded and has moved. Whether they make progress is examined meanwhile (``GroupStalled``); this is only
for what no examination finds.
"""

WRITE_LIMIT_S = 900.0
"""A requested checkpoint that takes longer has failed."""

CHECK_PATIENCE_S = 120.0
"""How long a node may take beyond the limit of a check, for its beginning and its end."""

WRITE_AGAIN_S = 1.0, 30.0
"""The first and the longest pause before a failed checkpoint is tried again; each is twice as long as the last one."""

Send = Callable[[NodeId, wire.Sent], None]


@dataclass(frozen=True, slots=True)
class Overdue:
    """The outcome of commands that have timed out."""

    events: tuple[Event, ...] = ()  #: their completions
    stops: tuple[commands.StopWorker, ...] = ()  #: to perform: workers that did not become ready, each once
    #: nodes to be given up because they do not carry out orders, with those orders
    hopeless: tuple[tuple[NodeId, str], ...] = ()


class Effects:
    """Carries out commands. ``_stopped`` are the workers that were told to end since they were last started."""

    def __init__(
        self,
        site: Site,
        pending: PendingCommands,
        launches: LaunchStore,
        solver: SolverProcess,
        sampler: SamplerProcess,
        send: Send,
        trainers: Service,
    ) -> None:
        self._site = site
        self._pending = pending
        self._launches = launches
        self._solver = solver
        self._sampler = sampler
        self._send = send
        self._trainers = trainers
        self._stopped: set[On] = set()

    def perform(self, command: commands.Command) -> None:
        """Carry out what the core decided."""
        match command:
            case commands.Solve():
                self._solver.solve(command)
            case commands.StartWorker():
                self._stopped.discard((command.trainer, command.node))
                self._start(command)
            case commands.StopWorker():
                self._stopped.add((command.trainer, command.node))
                self._send(command.node, command)
            case commands.FormGroup():
                self._form(command)
            case commands.PauseGroup() | commands.ExamineGroup() | commands.DissolveGroup():
                for node in command.members:
                    self._send(node, command)
            case commands.WriteCheckpoint():
                self._write(command)
            case commands.CheckScript() | commands.SetCheckpointInterval() | commands.ReleaseNode():
                self._send(command.node, command)
            case commands.SetNodeAside():
                log.warning("%s is set aside for %s: %s", command.node, command.trainer or "all", command.reason)
            case commands.HoldTrainer():
                log.warning("%s is %s", command.trainer, command.reason)
            case commands.WarnOfBudget():
                log.warning("%s: %s", command.trainer or "the pool", command.reason)
            case commands.DrainPool():
                self._trainers.drain(command.reason)
            case commands.CloseTrainer():
                self._launches.forget(command.trainer)
                log.info("trainer %s %s: %s", command.trainer, command.outcome, command.reason)
            case commands.AskTrial() | commands.TellTrial():
                self._sampler.perform(command)
            case _:
                assert_never(command)

    def _write(self, command: commands.WriteCheckpoint) -> None:
        """At once; after failures with pauses, in which a full or slow file system may recover."""
        failures = self._trainers.failed_writes(command.trainer)
        if not failures:
            self._send_write(command)
            return
        first_s, longest_s = WRITE_AGAIN_S
        wait_s = min(longest_s, pause_s(first_s, failures - 1))
        asyncio.get_running_loop().call_later(wait_s, self._send_write, command)

    def _send_write(self, command: commands.WriteCheckpoint) -> None:
        """Unless it is no longer wanted."""
        waiting = self._pending.writing.get((command.trainer, command.node))
        if waiting is not None and waiting[0] is command:
            self._send(command.node, command)

    def overdue(self, now_s: float) -> Overdue:
        """What has timed out by ``now_s``; takes no action."""
        stops, hopeless = self._late_workers(now_s)
        return Overdue(
            (
                *self._late_groups(now_s),
                *self._late_writes(now_s),
                *self._late_checks(now_s),
                *self._slow_to_start(now_s),
            ),
            stops,
            hopeless,
        )

    def _late_groups(self, now_s: float) -> Iterator[GroupBroken]:
        limit_s = self._site.form_timeout_s
        for of, (_, since_s) in self._pending.forming.items():
            may_s = max(limit_s, MET_LIMIT_S) if self._trainers.have_met(of) else limit_s
            if now_s - since_s > may_s:
                yield GroupBroken(*of, f"not formed within {may_s:g} s")
        for of, (_, since_s) in self._pending.pausing.items():
            if now_s - since_s > limit_s:
                yield GroupBroken(*of, f"not paused within {limit_s:g} s")

    def _late_writes(self, now_s: float) -> Iterator[CheckpointWritten]:
        for write, since_s in self._pending.writing.values():
            if now_s - since_s > WRITE_LIMIT_S:
                error = f"not written within {WRITE_LIMIT_S:g} s"
                yield CheckpointWritten(write.trainer, write.node, 0, error)

    def _late_checks(self, now_s: float) -> Iterator[ScriptChecked]:
        may_s = self._site.check_limit_s + CHECK_PATIENCE_S
        for on, (_, since_s) in self._pending.checking.items():
            if now_s - since_s > may_s:
                yield ScriptChecked(*on, ProofState.UNCHECKED, f"its node has not answered within {may_s:g} s")

    def _slow_to_start(self, now_s: float) -> Iterator[WorkerSlow]:
        for on, (_, since_s) in self._pending.starting.items():
            if now_s - since_s > SLOW_S and on not in self._pending.slow:
                yield WorkerSlow(*on)

    def _late_workers(self, now_s: float) -> tuple[tuple[commands.StopWorker, ...], tuple[tuple[NodeId, str], ...]]:
        """Workers that did not become ready are ended by their agents; nodes on which even that fails are given up."""
        patience_s = STOP_LIMIT_S + self._site.grace_s
        stops: list[commands.StopWorker] = []
        hopeless: list[tuple[NodeId, str]] = []
        self._stopped.intersection_update(self._pending.starting)
        warm_s = {on: self._warm_up_s(on[0]) for on in self._pending.starting}
        warm_by_s = {on: since_s + warm_s[on] for on, (_, since_s) in self._pending.starting.items()}
        end_by_s = {on: since_s + stop.within_s for on, (stop, since_s) in self._pending.stopping.items()}
        for (trainer, node), by_s in (*warm_by_s.items(), *end_by_s.items()):
            if now_s - by_s > patience_s:
                hopeless.append((node, f"{trainer}'s process could not be ended within {patience_s:g} s"))
            elif now_s > warm_by_s.get((trainer, node), now_s) and (trainer, node) not in self._stopped:
                why = f"its training loop did not begin within {warm_s[trainer, node]:g} s (--warm-up-s)"
                stops.append(commands.StopWorker(trainer, node, why))
        return tuple(stops), tuple(hopeless)

    def _warm_up_s(self, trainer: TrainerId) -> float:
        """No limit for one that has been closed: its workers are stopped anyway."""
        spec = self._trainers.spec(trainer)
        return spec.warm_up_s if spec is not None else math.inf

    def _form(self, group: commands.FormGroup) -> None:
        """Tell every member to join, and the previous group's other ranks to part."""
        of, size = (group.trainer, group.generation), len(group.members)
        for rank, node in enumerate(group.members):
            self._send(node, wire.JoinGroup(*of, rank, size, group.saved_step, group.given_up))
        for node in self._previous_members(group):
            if node not in group.members:
                self._send(node, wire.LeaveGroup(*of))

    def _previous_members(self, group: commands.FormGroup) -> tuple[NodeId, ...]:
        """Empty if the trainer has been closed since the core decided."""
        previous = group.previous and self._pending.groups.get((group.trainer, group.previous))
        return previous.members if previous else ()

    def _start(self, command: commands.StartWorker) -> None:
        spec = self._trainers.spec(command.trainer)
        if spec is None:  # it and many others have ended while this decision waited for the disk
            return
        try:
            order = self._order(spec)
        except JournalError as error:
            self._trainers.unstartable(command.trainer, str(error))
            return
        self._send(command.node, order)

    def _order(self, trainer: TrainerSpec) -> wire.StartWorker:
        launch, directory = self._launches.launch(trainer), self._launches.directory(trainer)
        archive = str(script_code.archive_in(directory, launch.code_sha256)) if launch.code_sha256 else ""
        return wire.StartWorker(
            trainer.trainer,
            trainer.uid,
            str(directory),
            msgspec.structs.replace(launch, archive=archive),
            self._site.checkpoint_interval_s,
            launch.checkpoints_kept or self._site.checkpoints_kept,
            trainer.patience_s,
            self._site.ranks_per_node,
            self._site.node_fabric or "",
        )
