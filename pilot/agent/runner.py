"""Runs the agent: one event loop that feeds the state machine and carries out its effects."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from pilot.agent import events_effects, guardian, job_environment
from pilot.agent import workdir as workdirs
from pilot.agent.agent_state import AgentState
from pilot.agent.coordinator_client import CoordinatorClient, Whereabouts
from pilot.agent.departure import Departure
from pilot.agent.hardware import hardware
from pilot.agent.job_environment import JobEnvironment
from pilot.agent.peers import Peers
from pilot.agent.ranks import Groups
from pilot.agent.shortage import tolerated, when_possible
from pilot.agent.stall_probe import StallProbe, StoppedProcesses
from pilot.agent.workers import Workers
from pilot.core.commands import CheckScript
from pilot.core.errors import PilotError
from pilot.host import proc
from pilot.host.system import become_subreaper, reap
from pilot.protocol import wire
from pilot.protocol.gate import OUT_OF
from pilot.rundir import log_marks, trainer_folder
from pilot.site import addresses

log = logging.getLogger(__name__)

TICK_S = 0.25
INSPECT_EVERY_TICKS = 4
STOPPED_S = 3.0
"""No process of ours stands still (state T) for this long, unless somebody stopped it. Debuggers may need longer."""
JOIN_LIMIT_S = 120.0

IMPORTS, CHECKS = "imports", "checks"
"""The folders beside the connection file with the imports of earlier scripts, and the results of earlier checks."""


@dataclass(frozen=True, slots=True)
class Options:
    """Command-line options. None: the system's or the site's value."""

    interfaces: Sequence[str] = ()  #: for MPI, one per rail; empty: the one towards the coordinator
    provider: str = "tcp"  #: libfabric's provider, for MPI
    python: str = sys.executable  #: the interpreter started before the first trainer arrives
    walltime_end_s: float | None = None  #: when the job ends, Unix time
    grace_s: float | None = None  #: time between a notice and the kill


def run(connection: Path, options: Options) -> int:
    """Run an agent for the pool of the file ``connection`` to its end, leaving nothing behind; returns the exit status.
    An agent that counts as lost (because it was stopped, or cut off) joins again as a new pilot.
    """
    whereabouts = Whereabouts(connection)
    job = job_environment.job_environment(os.environ, options.walltime_end_s)
    end_s = _on_our_clock(job.walltime_end_s)  # once: the system's clock may be set while we run
    while (end := _live(whereabouts, options, job, end_s)).again:
        log.info("joining again: %s", end.reason)
    log.info("left: %s", end.reason) if end.status == 0 else log.error("%s", end.reason)
    return end.status


def _live(whereabouts: Whereabouts, options: Options, job: JobEnvironment, end_s: float) -> events_effects.Exit:
    for name in workdirs.sweep():
        log.info("removed leftovers of a killed agent: %s", name)
    workdir = workdirs.create()
    watcher = guardian.start(workdir)
    become_subreaper()

    async def serve() -> events_effects.Exit:
        return await Agent(whereabouts, options, job, end_s, workdir).serve()

    try:
        return asyncio.run(serve())
    finally:
        if not watcher.clean():
            log.warning("the guardian is still cleaning %s", workdir.path)


class Agent:
    """One pilot's agent, whose job ends at ``end_s`` on the monotonic clock. Construct it in a running event loop."""

    def __init__(
        self, whereabouts: Whereabouts, options: Options, job: JobEnvironment, end_s: float, workdir: workdirs.Workdir
    ) -> None:
        self._job, self._end_s = job, end_s
        self._versions = job_environment.versions()
        interfaces = options.interfaces or [addresses.interface_to(*whereabouts.now.address)]
        self._address, *_ = [addresses.interface_address(interface) for interface in interfaces]
        self._whereabouts = whereabouts
        self._python = options.python
        self._workdir = workdir
        self._state = AgentState(Departure(options.grace_s, end_s))
        self._coordinator = CoordinatorClient(
            whereabouts,
            self._hello,
            self._heartbeat,
            self._received,
            lost=lambda: self._take(events_effects.CoordinatorLost()),
            over=lambda reason: self._take(events_effects.PoolOver(reason)),
        )
        beside = whereabouts.file.parent
        self._workers = Workers(
            workdir, self._take, self._address, interfaces, imports=beside / IMPORTS, checks=beside / CHECKS
        )
        self._groups = Groups(workdir, interfaces, options.provider, self._take)
        self._peers = Peers(self._address, self._take)
        self._stopped = StoppedProcesses()
        self._stall_probe = StallProbe()
        self._events: deque[events_effects.Event] = deque()
        self._taking = False
        self._rotation: threading.Thread | None = None
        self._exit: asyncio.Future[events_effects.Exit] = asyncio.get_running_loop().create_future()

    async def serve(self) -> events_effects.Exit:
        """Serve the coordinator until there is a reason to leave; then kill everything that was started."""
        for notice in guardian.NOTICES:
            asyncio.get_running_loop().add_signal_handler(notice, self._signalled, notice)
        log.info("agent %s on %s (%s), pid %d", self._workdir.path.name, self._job.host, self._address, os.getpid())
        self._peers.listen()
        self._groups.endpoint = self._peers.endpoint
        self._workers.warm_up(self._python)
        self._hardware = hardware()  # asked while the fork server starts, and once notices have handlers
        work: list[Coroutine[Any, Any, None]] = [self._coordinator.run(), self._join_in_time(), self._tick()]
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        for task in tasks:
            task.add_done_callback(self._failed)
        try:
            return await self._exit
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()

    # --- events in --------------------------------------------------------------------------------------------------

    def _take(self, event: events_effects.Event) -> None:
        """Feed the state machine; events caused by effects are queued instead of handled recursively."""
        self._events.append(event)
        if self._taking:
            return
        self._taking = True
        try:
            while self._events and not self._exit.done():
                for effect in self._state.handle(time.monotonic(), self._events.popleft()):
                    when_possible(partial(self._perform, effect))
        finally:
            self._taking = False

    def _received(self, message: wire.ToAgent) -> None:
        if isinstance(message, wire.Welcome):
            self._workers.node, self._workers.silent_s = message.node, message.silent_s
            self._workers.check_limit_s = message.check_limit_s
            self._groups.welcomed(message.rails)
        self._take(events_effects.CoordinatorMessage(message))

    def _signalled(self, notice: signal.Signals) -> None:
        self._take(wire.Noticed(f"signal {notice.name}", self._state.departure.grace_s))

    async def _join_in_time(self) -> None:
        try:
            async with asyncio.timeout(JOIN_LIMIT_S):
                await self._coordinator.joined.wait()
        except TimeoutError:
            where = self._whereabouts.now.endpoint
            raise PilotError(f"no coordinator answered at {where} within {JOIN_LIMIT_S:.0f} s; is it up?") from None

    async def _tick(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            ticks += 1
            self._take(events_effects.Ticked())
            with tolerated():
                for watched in self._stall_probe.tick(self._workers.silent()):
                    self._workers.end_examination(watched.trainer)
                    self._take(watched)
                if ticks % INSPECT_EVERY_TICKS == 0:
                    self._workers.count_oom_kills()
                    self._find_stopped()
                    self._rotate_logs()
            for pid, status in reap([*self._groups.pids(), *self._workers.child_pids()]):
                self._workers.reaped(pid, status)

    def _rotate_logs(self) -> None:
        """Rotate logs in a thread, one at a time: a hanging file system must not keep the agent from watching its
        lease.
        """
        if self._rotation is None or not self._rotation.is_alive():
            with suppress(RuntimeError):  # no thread can be started now
                rotation = threading.Thread(target=_rotate, args=(self._workers.logs(),), daemon=True)
                rotation.start()
                self._rotation = rotation

    def _find_stopped(self) -> None:
        workers = {pid: (trainer, 0) for trainer, pid in self._workers.pids()}
        watched = workers | {pid: key for key, pid in self._groups.ranks()}
        pids = [*watched, *self._workers.server_pids()]
        cpu_s = {pid: proc.cpu_s(pid) for pid in pids if proc.is_stopped(pid)}
        stopped = self._stopped.update(time.monotonic(), cpu_s)
        welcome = self._state.departure.welcome
        for pid, stopped_s in stopped.items():
            limit_s = math.inf if welcome is None else welcome.silent_s
            if stopped_s > (limit_s if proc.is_traced(pid) else min(STOPPED_S, limit_s)):
                if pid in watched:
                    trainer, generation = watched[pid]
                    what = f"stopped (SIGSTOP) for {stopped_s:.0f} s"
                    reason = f"a rank process was {what}" if generation else f"{what}, then killed"
                    self._take(events_effects.ProcessFailed(trainer, generation, reason))
                else:
                    self._workers.end_server(pid)

    def _failed(self, task: asyncio.Task[None]) -> None:
        """End the agent with the error of a task that ended before it left."""
        if not task.cancelled() and not self._exit.done() and (error := task.exception()) is not None:
            self._exit.set_exception(error)

    # --- effects out ------------------------------------------------------------------------------------------------

    def _perform(self, effect: events_effects.Effect) -> None:
        match effect:
            case events_effects.Send(message):
                self._coordinator.send(message)
            case events_effects.SendToWorker(trainer, message):
                self._workers.send(trainer, message)
            case wire.StartWorker():
                self._workers.launch(effect)
            case events_effects.KillWorker(trainer):
                self._workers.kill(trainer)
            case events_effects.Watch(trainer):
                self._stall_probe.begin(trainer)
            case wire.JoinGroup():
                self._start_rank(effect)
            case wire.GroupAddresses():
                self._groups.introduce(effect)
                self._peers.introduced(effect)
            case events_effects.KillRank(trainer, generation):
                self._groups.kill(trainer, generation)
            case CheckScript():
                self._workers.check(effect.trainer)
            case events_effects.LogLine(text):
                log.info("%s", text)
            case events_effects.Exit():
                if not self._exit.done():
                    self._exit.set_result(effect)
            case _:
                assert_never(effect)

    def _start_rank(self, message: wire.JoinGroup) -> None:
        sockets = self._workers.sockets_of(message.trainer)
        if not sockets:
            return
        try:
            self._groups.join(message, sockets)
        except OSError as error:
            if error.errno in OUT_OF:
                raise  # and it is tried again
            why = f"its node cannot write in {self._workdir.path}: {error.strerror}"
            self._take(events_effects.ProcessFailed(message.trainer, 0, why))

    def _hello(self) -> wire.Hello:
        self._state.departure.greeted(time.monotonic())
        return wire.Hello(
            pilot=self._workdir.path.name,
            secret=self._workdir.secret,
            host=self._job.host,
            address=self._address,
            pid=os.getpid(),
            job=self._job.job,
            restart=self._job.restart,
            walltime_s=self._end_s - time.monotonic() if math.isfinite(self._end_s) else None,
            workers=self._state.inventory(),
            versions=self._versions,
            accelerator=self._hardware.accelerator,
            accelerators=self._hardware.accelerators,
            memory_gb=self._hardware.memory_gb,
            cores=self._hardware.cores,
        )

    def _heartbeat(self) -> wire.Heartbeat:
        times, self._state.step_times = self._state.step_times, {}
        return wire.Heartbeat(time.monotonic(), times)

    async def _close(self) -> None:
        await self._peers.close()
        await self._groups.close()
        self._workers.close()
        await self._coordinator.close()
        proc.kill(proc.tree(os.getpid())[1:])


def _rotate(logs: list[tuple[Path, str]]) -> None:
    for path, uid in logs:
        with suppress(OSError):
            if log_marks.is_full(path):
                with trainer_folder.held(path.parent, uid) as folder:
                    log_marks.rotate_if_full(folder / path.name)


def _on_our_clock(unix_s: float | None) -> float:
    return math.inf if unix_s is None else time.monotonic() + unix_s - time.time()
