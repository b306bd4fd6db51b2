"""Turns commands into messages to agents and orders to the solver: the table in ``docs/development/processes.md``, with
its timeouts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from pilot.core import commands, events
from pilot.core.errors import JournalError
from pilot.core.events import Event
from pilot.core.growing import growing_s
from pilot.core.ids import NodeId, TrainerId
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol import wire
from pilot.service.agents.pending import Of, On
from pilot.service.durability.live_driver import LiveDriver
from pilot.service.planning.sampler_process import SamplerProcess
from pilot.service.planning.solver_process import SolverProcess
from pilot.service.requests.launch_store import LaunchStore
from pilot.site.site import Site
from pilot.submission import script_code

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
"""Time that a node may take beyond the limit of a check, for its beginning and its end."""

WRITE_AGAIN_S = 1.0, 30.0
"""The first and the longest pause before a failed checkpoint is tried again; each is twice as long as the last one."""

Send = Callable[[NodeId, wire.Sent, int], None]
"""Sends a message to a node; the number is that of the journal entry that caused it."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """The outcome of commands that have timed out."""

    events: tuple[Event, ...] = ()  #: their completions
    stops: tuple[commands.StopWorker, ...] = ()  #: to perform: workers that did not become ready, each once
    #: nodes to be given up because they do not carry out orders, with those orders
    hopeless: tuple[tuple[NodeId, str], ...] = ()


@dataclass(slots=True, eq=False)
class Effects:
    """Carries out commands. ``have_met`` says whether the members of a forming group have found each other.

    ``_stopped`` are the workers that were ordered to end since they were last started.
    """

    site: Site
    driver: LiveDriver
    launches: LaunchStore
    solver: SolverProcess
    sampler: SamplerProcess
    send: Send
    have_met: Callable[[Of], bool]
    _stopped: set[On] = field(default_factory=set)

    def perform(self, command: commands.Command, event: int = 0) -> None:
        """Carry out what the core decided in the journal's entry ``event``; 0: it is not in the journal."""
        match command:
            case commands.Solve():
                self.solver.solve(command)
            case commands.StartWorker():
                self._stopped.discard((command.trainer, command.node))
                self._start(command, event)
            case commands.StopWorker():
                self._stopped.add((command.trainer, command.node))
                self.send(command.node, command, event)
            case commands.FormGroup():
                self._form(command, event)
            case commands.PauseGroup() | commands.ExamineGroup() | commands.DissolveGroup():
                for node in command.members:
                    self.send(node, command, event)
            case commands.WriteCheckpoint():
                self._write(command, event)
            case commands.CheckScript() | commands.SetCheckpointInterval() | commands.ReleaseNode():
                self.send(command.node, command, event)
            case commands.DrainPool():
                if not self.driver.core.draining:
                    self.driver.post(events.DrainRequested(command.reason))
            case commands.CloseTrainer():
                self.launches.forget(command.trainer)
            case commands.AskTrial() | commands.TellTrial():
                self.sampler.perform(command)
            case commands.SetNodeAside() | commands.MarkNodeSlow() | commands.HoldTrainer() | commands.WarnOfBudget():
                pass  # for people: the driver has logged it
            case _:
                assert_never(command)

    def _write(self, command: commands.WriteCheckpoint, event: int) -> None:
        """At once; after failures with pauses, in which a full or slow file system may recover."""
        trainer = self.driver.core.trainers.get(command.trainer)
        if trainer is None or not trainer.failed_writes:
            self._send_write(command, event)
            return
        first_s, longest_s = WRITE_AGAIN_S
        wait_s = growing_s(first_s, trainer.failed_writes - 1, longest_s)
        asyncio.get_running_loop().call_later(wait_s, self._send_write, command, event)

    def _send_write(self, command: commands.WriteCheckpoint, event: int) -> None:
        """Unless it is no longer wanted."""
        waiting = self.driver.pending.writing.get((command.trainer, command.node))
        if waiting is not None and waiting.command is command:
            for node in (command.node, *command.mates):
                self.send(node, command, event)

    def overdue(self, now_s: float) -> Overdue:
        """The commands that have timed out by ``now_s``; takes no action."""
        return Overdue(tuple(self._late(now_s)), *self._late_workers(now_s))

    def _late(self, now_s: float) -> Iterator[Event]:
        """The completions of commands that only wait; those of workers need an order first."""
        pending, site = self.driver.pending, self.site
        for of, form in pending.forming.items():
            limit_s = max(site.form_timeout_s, MET_LIMIT_S) if self.have_met(of) else site.form_timeout_s
            if now_s - form.since_s > limit_s:
                yield events.GroupBroken(*of, f"not formed within {limit_s:g} s")
        for of, pause in pending.pausing.items():
            if now_s - pause.since_s > site.form_timeout_s:
                yield events.GroupBroken(*of, f"not paused within {site.form_timeout_s:g} s")
        for on, write in pending.writing.items():
            if now_s - write.since_s > WRITE_LIMIT_S:
                yield events.CheckpointWritten(*on, 0, f"not written within {WRITE_LIMIT_S:g} s")
        limit_s = site.check_limit_s + CHECK_PATIENCE_S
        for on, check in pending.checking.items():
            if now_s - check.since_s > limit_s:
                yield events.ScriptChecked(*on, ProofState.UNCHECKED, f"its node has not answered within {limit_s:g} s")
        for on, start in pending.starting.items():
            if now_s - start.since_s > SLOW_S and on not in pending.slow:
                yield events.WorkerSlow(*on)

    def _late_workers(self, now_s: float) -> tuple[tuple[commands.StopWorker, ...], tuple[tuple[NodeId, str], ...]]:
        """Workers that did not become ready are ended by their agents; nodes on which even that fails are given up."""
        patience_s = STOP_LIMIT_S + self.site.grace_s
        stops: list[commands.StopWorker] = []
        hopeless: list[tuple[NodeId, str]] = []
        starting = self.driver.pending.starting
        self._stopped.intersection_update(starting)
        warm_s = {on: self._warm_up_s(on[0]) for on in starting}
        warm_by_s = {on: start.since_s + warm_s[on] for on, start in starting.items()}
        end_by_s = {on: stop.since_s + stop.command.within_s for on, stop in self.driver.pending.stopping.items()}
        for (trainer, node), by_s in (*warm_by_s.items(), *end_by_s.items()):
            if now_s - by_s > patience_s:
                hopeless.append((node, f"{trainer}'s process could not be ended within {patience_s:g} s"))
            elif now_s > warm_by_s.get((trainer, node), now_s) and (trainer, node) not in self._stopped:
                why = f"its training loop did not begin within {warm_s[trainer, node]:g} s (--warm-up-s)"
                stops.append(commands.StopWorker(trainer, node, why))
        return tuple(stops), tuple(hopeless)

    def _warm_up_s(self, trainer: TrainerId) -> float:
        """No limit for one that has been closed: its workers are stopped anyway."""
        known = self.driver.core.trainers.get(trainer)
        return known.spec.warm_up_s if known is not None else math.inf

    def _form(self, group: commands.FormGroup, event: int) -> None:
        """Order every member to join, and the previous group's other ranks to leave."""
        of, size = (group.trainer, group.generation), len(group.members)
        for rank, node in enumerate(group.members):
            self.send(node, wire.JoinGroup(*of, rank, size, group.saved_step, group.given_up), event)
        previous = group.previous and self.driver.pending.groups.get((group.trainer, group.previous))
        for node in previous.members if previous else ():  # none if the trainer was closed since the core decided
            if node not in group.members:
                self.send(node, wire.LeaveGroup(*of), event)

    def _start(self, command: commands.StartWorker, event: int) -> None:
        trainer = self.driver.core.trainers.get(command.trainer)
        if trainer is None:  # it and many others have ended while this decision waited for the disk
            return
        try:
            order = self._order(trainer.spec, command)
        except JournalError as error:  # the pool continues without it
            reason = f"held because none of its workers can be started: {error}"
            self.driver.post(events.TrainerHeld(command.trainer, reason))
            return
        self.send(command.node, order, event)

    def _order(self, trainer: TrainerSpec, command: commands.StartWorker) -> wire.StartWorker:
        launch, directory = self.launches.launch(trainer), self.launches.directory(trainer)
        archive = str(script_code.archive_in(directory, launch.code_sha256)) if launch.code_sha256 else ""
        return wire.StartWorker(
            trainer.trainer,
            trainer.uid,
            str(directory),
            msgspec.structs.replace(launch, archive=archive),
            self.site.checkpoint_interval_s,
            launch.checkpoints_kept or self.site.checkpoints_kept,
            trainer.patience_s,
            self.site.ranks_per_node,
            self.site.node_fabric or "",
            launch.between_nodes or self.site.between_nodes,
            command.replica,
            command.place,
            trainer.nodes_per_replica,
        )
