"""Runs a script for ``torchrun`` (DistributedDataParallel) unchanged, restarting it whenever its group changes.

This follows TorchElastic's contract: at every change of members all processes end and restart from the script's own
checkpoint. Here a process with torch imported stays, and the script's process is forked from it in each generation
(:mod:`pilot.train.ddp_process`). The agent treats it as a session's worker (:mod:`pilot.train.ranks.elastic`):

============================  ========================================================================================
a generation can start        its ranks gather the address of rank 0's store, each forks the script, and rank 0 sends
                              ``GroupFormed``
the next one is ready, or a   the script gets notice and ends as soon as it has saved; then the next generation starts,
pause, or this rank leaves    or this process waits
the generation was dissolved  the script is ended at once, because a peer is gone
the script ended well         on rank 0 the trainer has finished
the script failed             if the generation is not dissolved in a moment, the failure is not due to a lost peer, and
                              ``GroupBroken`` is sent. Five in a row without a new step, and the trainer has failed
============================  ========================================================================================

Steps are the calls of ``optimizer.step``, samples are steps times ranks; the rate and the cost of a restart are
measured in these units.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address
from pathlib import Path

import psutil

from pilot.comm.channel import PeerGone
from pilot.comm.messages import Gather, Gathered, Quit
from pilot.core.commands import DissolveGroup, ExamineGroup, Outcome, PauseGroup, StopWorker, WriteCheckpoint
from pilot.core.errors import UserError
from pilot.core.pool.evidence import TAIL_BYTES, last_words
from pilot.host import private_folder
from pilot.host.files import tail
from pilot.protocol import wire
from pilot.rundir import trainer_folder
from pilot.train.ddp_process import NOTICE_S, ScriptProcess, Store, start, torchrun_environment
from pilot.train.node.membership import Membership, MembershipState, Seat
from pilot.train.node.sockets import RankConnected, RankGone, RankMessage, WorkerEvent, WorkerSockets
from pilot.train.ranks.script_end import Released

ADDRESS = "PILOT_DDP_ADDRESS"
"""The worker's environment variable with its node's address on the site's interface."""

CHECKPOINT = "checkpoint.pt"
"""The file name of the script's checkpoint in the trainer's folder."""

WITH_OPTIMIZERS = "torch._dynamo"
"""torch imports this with the first optimizer, in 2 to 4 s; it is imported before forks, and starts no thread."""

POLL_S = 0.05
PERIOD_S = 1.0
PEER_LOSS_S = 2.0
"""If a script fails because a peer is gone, its generation is dissolved within this time."""


def checkpoint_for_script(checkpoint: Path, uid: str, stack: ExitStack) -> Path:
    """Return the path of ``checkpoint`` for the script of trainer ``uid``. If other users could replace a folder on the
    way to it, the path leads through this process, which holds the folder open as long as ``stack`` is open.
    """
    folder = checkpoint.parent
    try:
        place = stack.enter_context(trainer_folder.home(folder, uid))
        if private_folder.open_to_others(folder.resolve()) is None:
            return checkpoint
    except OSError as error:
        raise UserError(f"cannot use {error.filename}: {error.strerror}") from None
    return Path(f"/proc/{os.getpid()}/fd", place.name, checkpoint.name)


class Restarts:
    """The generations of a worker whose script is restarted in each."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._trainer, self._uid = environment["PILOT_TRAINER"], environment["PILOT_TRAINER_UID"]
        self._address = environment[ADDRESS]
        self._silent_s = float(environment["PILOT_SILENT_S"])
        self._checkpoint = Path(environment["PILOT_TRAINER_DIR"], CHECKPOINT)
        self._held = ExitStack()
        self._notice = Path(environment["PILOT_WORKER_SOCKET"] + ".notice")
        self._seat = Seat.of(environment)
        self._link = WorkerSockets(int(environment["PILOT_CONTROL_FD"]), Path(environment["PILOT_WORKER_SOCKET"]))
        self._membership = MembershipState()
        self._rows: list[list[int]] = []
        self._store: Store | None = None
        self._process: ScriptProcess | None = None
        self._progress = StepCounts(self._trainer)

    def run(self) -> None:
        """Return in each process that will run the script; raise ``SystemExit`` in this one when the agent stops it."""
        checkpoint = checkpoint_for_script(self._checkpoint, self._uid, self._held)
        importlib.import_module(WITH_OPTIMIZERS)
        self._link.send(wire.WorkerReady(self._trainer, time.time() - psutil.Process().create_time()))
        try:
            while True:
                group = self._next_group()
                try:
                    endpoint = self._start_store(group)
                except PeerGone:
                    self._lose(group.generation)
                    self._end_generation()
                    continue
                variables = torchrun_environment(group, self._seat, endpoint, self._uid)
                self._process = start(variables, checkpoint, self._notice)
                if self._process is None:
                    return
                if group.rank == 0:
                    steps = self._progress.steps
                    again = steps if self._progress.again else None
                    self._link.send(wire.GroupFormed(self._trainer, group.generation, steps, again))
                self._follow(group, self._process)
        except Released:
            self._end_generation()
            raise

    # --- a generation ------------------------------------------------------------------------------------------------

    def _next_group(self) -> Membership:
        while (membership := self._membership.startable()) is None:
            self._attend(None)
        return self._membership.start(membership.generation)

    def _start_store(self, group: Membership) -> tuple[str, int]:
        """Start this generation's store on rank 0, and return its address on all ranks."""
        if group.rank == 0:
            self._store = Store(self._address)
        here = [int(IPv4Address(self._address)), self._store.port] if self._store is not None else [0, 0]
        rows = self._gather(group, [*here, *self._progress.row()])
        self._progress.began(group, [row[2:] for row in rows])
        if self._store is not None:
            self._store.serve()
        return str(IPv4Address(rows[0][0])), rows[0][1]

    def _gather(self, group: Membership, row: list[int]) -> list[list[int]]:
        self._rows = []
        self._link.channel(group.generation).send(Gather(row))
        while len(self._rows) < group.size:
            if self._membership.current is not group:
                raise PeerGone
            self._attend(None)
        return self._rows

    def _follow(self, group: Membership, process: ScriptProcess) -> None:
        """Watch the script, and report its progress and end, until the generation is over."""
        failed_s = finished_s = again_s = 0.0
        while self._membership.current is group:
            self._attend(POLL_S)
            now_s, status = time.monotonic(), process.poll()
            if status == 0 and group.rank == 0:
                if now_s >= finished_s:
                    finished_s = now_s + self._silent_s
                    self._report(group, process)
                    steps, samples = self._progress.steps, self._progress.samples
                    self._link.send(wire.TrainerFinished(self._trainer, group.generation, steps, samples))
            elif self._membership.pause_asked or self._membership.ready_for:
                self._change(group, process)
            elif status:
                if not failed_s:
                    failed_s = now_s
                    self._report(group, process)
                if now_s - failed_s >= (PEER_LOSS_S if group.size > 1 else 0.0):
                    self._progress.failed = not process.has_saved()
                    self._link.send(wire.GroupBroken(self._trainer, group.generation, _why(status)))
                    failed_s = now_s + PERIOD_S
            elif now_s >= again_s:
                again_s = now_s + PERIOD_S
                self._report(group, process)
        self._end_generation()

    def _report(self, group: Membership, process: ScriptProcess) -> None:
        if group.rank == 0:
            self._link.send(self._progress.report(group, process.tally.read()))

    def _change(self, group: Membership, process: ScriptProcess) -> None:
        """Do a planned change: the next generation, a pause, or this rank leaves."""
        if process.poll() is None and process.wants_notice():
            process.give_notice()
            self._wait_until(group, process, process.has_saved, NOTICE_S)
        parts = self._membership.joining is None and not self._membership.pause_asked
        if parts:  # the other ranks may still be saving; their end, or the agent, will end the script
            self._wait_until(group, process, lambda: False, math.inf)
        if self._membership.current is not group:
            return
        paused = self._membership.pause_asked
        self._end_generation()
        self._quit(group)
        self._membership.leave()
        if paused:
            self._link.send(wire.RankPaused(self._trainer, group.generation, self._progress.steps))

    def _wait_until(self, group: Membership, process: ScriptProcess, done: Callable[[], bool], limit_s: float) -> None:
        """Wait while the script runs and its generation is in force."""
        end_s = time.monotonic() + limit_s
        while process.poll() is None and not done() and self._membership.current is group:
            if time.monotonic() >= end_s:
                return
            self._attend(POLL_S)

    def _end_generation(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._progress.ended(process.tally.read())
        store, self._store = self._store, None
        if store is not None:
            store.close()

    # --- events ------------------------------------------------------------------------------------------------------

    def _attend(self, timeout_s: float | None) -> None:
        for event in self._link.wait(timeout_s):
            self._handle(event)

    def _handle(self, event: WorkerEvent) -> None:
        match event:
            case wire.JoinGroup(_, generation, node, nodes):
                self._membership.join_requested(self._seat.member(generation, node, nodes))
            case wire.LeaveGroup(_, generation):
                self._membership.leave_requested(generation)
            case PauseGroup(_, generation):
                self._membership.pause_requested(generation)
                if self._membership.current is None:
                    self._link.send(wire.RankPaused(self._trainer, generation, self._progress.steps))
            case ExamineGroup():
                self._link.send(wire.RankStalled(self._trainer, self._in_force(), self._progress.steps, 0.0, False))
            case DissolveGroup(_, generation):
                self._lose(generation)
                self._membership.killed(generation)
            case WriteCheckpoint() if self._seat.rank == 0:  # there is only the script's own checkpoint
                steps, path = self._progress.steps, str(self._checkpoint)
                self._link.send(wire.CheckpointWritten(self._trainer, 0, steps, asked=True, path=path))
            case StopWorker(reason=reason):
                self._stop(reason)
            case RankConnected(generation):
                if not self._membership.rank_connected(generation):
                    self._link.drop(generation)
            case RankMessage(generation, Gathered(rows)):
                self._rows += rows if self._in_force() == generation else []
            case RankGone(generation):
                self._membership.rank_lost(generation)

    def _in_force(self) -> int:
        """Return the generation in force; 0: none."""
        return self._membership.current.generation if self._membership.current is not None else 0

    def _lose(self, generation: int) -> None:
        self._link.hang_up(generation)
        self._membership.rank_lost(generation)

    def _stop(self, reason: str) -> None:
        """Stop the worker. If rank 0 has finished, the script ends by itself here, too, or the agent ends it."""
        if reason == Outcome.FINISHED.value and self._process is not None:
            self._process.wait()
        if self._membership.current is not None:
            self._quit(self._membership.current)
        raise Released(0)

    def _quit(self, group: Membership) -> None:
        """Let the rank process of ``group`` exit normally."""
        with suppress(PeerGone):
            self._link.channel(group.generation).send(Quit())


class StepCounts:
    """The progress that rank 0 reports, in steps and in samples: a step of each rank counts as one sample.

    ``failed``: the script has failed in this generation without saving, so it will repeat the same steps; ``again``: it
    had failed like this in the previous generation.
    """

    def __init__(self, trainer: str) -> None:
        self.steps, self.samples = 0, 0
        self.failed = self.again = False
        self._trainer = trainer
        self._size = 0
        self._before = (0, 0)
        self._stopped_s = 0.0
        self._stall_reported = True
        self._resized = False

    def row(self) -> list[int]:
        """Return the numbers that the ranks of the next generation need."""
        return [self.steps, self.samples, *self._before, int(self.failed)]

    def began(self, group: Membership, rows: list[list[int]]) -> None:
        """Start a generation, with the largest number of steps of any rank that will not be repeated."""
        self.failed, self.again = False, any(failed for *_, failed in rows)
        known = [(row[2], row[3]) if self.again else (row[0], row[1]) for row in rows]
        self._before = self.steps, self.samples = max(known)
        self._resized, self._size, self._stall_reported = group.size != self._size, group.size, False

    def ended(self, tally: tuple[int, float, float]) -> None:
        """Note that the script's process has ended, with this tally."""
        self._take(tally)
        self._stopped_s = tally[2] or time.monotonic()

    def report(self, group: Membership, tally: tuple[int, float, float]) -> wire.Progress:
        """Return a report of the script's progress."""
        self._take(tally)
        steps, first_s, last_s = tally
        per_s = self._size * (steps - 1) / (last_s - first_s) if last_s - first_s >= PERIOD_S else None
        stall_s = None
        if steps and not self._stall_reported:
            self._stall_reported = True
            stall_s = first_s - self._stopped_s if self._stopped_s else None
        return wire.Progress(
            self._trainer,
            group.generation,
            self.steps,
            0,
            self.samples,
            samples_per_s=per_s,
            stall_s=stall_s,
            rescale_s=stall_s if self._resized else None,
        )

    def _take(self, tally: tuple[int, float, float]) -> None:
        self.steps = self._before[0] + tally[0]
        self.samples = self._before[1] + tally[0] * self._size


def _why(status: int) -> str:
    """Return the reason why the script failed, from the end of its log, to which this process writes, too."""
    how = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
    try:
        with Path("/proc/self/fd/2").open("rb") as log:
            why = last_words(tail(log, TAIL_BYTES))
    except OSError:
        why = ""
    return f"the script {how}" + (f": {why}" if why and status > 0 else "")
