"""The agent's state machine: events in, effects out. Pure: no clock, no processes, no sockets.

Theory of operation. The agent runs at most one worker per trainer, and per (trainer, generation) at most one rank
process. It carries out the coordinator's orders and reports the results; every order that has a completion gets one,
even if its object is gone. Workers' messages are passed on.

    process                     ends                        what follows
    worker                      status 0                    ``WorkerExited``; its rank processes end by themselves
    worker                      otherwise                   ``WorkerExited``; its generations are killed
    rank process                status 0                    nothing: its generation has ended
    rank process                its worker has gone         the worker's own end is awaited, which tells why
    rank process                otherwise                   the generation is *over*: killed here, ``GroupBroken``
    any                         killed by us                nothing

A generation that is over stays over: later orders and messages about it are dropped. Without coordinator for
``orphan_s``, or with a notice and none, or when its pool is over, the agent goes through its :class:`Shutdown`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import assert_never

from pilot.agent import diagnosis
from pilot.agent.departure import Departure, Shutdown
from pilot.agent.vocabulary import (
    CannotJoin,
    CoordinatorLost,
    CoordinatorMessage,
    Effect,
    Event,
    Exit,
    KillRank,
    KillWorker,
    LogLine,
    Noticed,
    PoolOver,
    RankEnded,
    Send,
    SendToWorker,
    Stopped,
    Ticked,
    Watch,
    Watched,
    WorkerEnded,
    WorkerMessage,
    dissolved,
)
from pilot.comm.rank_order import WORKER_GONE
from pilot.core.commands import (
    CheckScript,
    DissolveGroup,
    ExamineGroup,
    PauseGroup,
    ReleaseNode,
    SetCheckpointInterval,
    StopWorker,
    WriteCheckpoint,
)
from pilot.core.events import StallFinding, Unloaded
from pilot.protocol import wire

STOP_LIMIT_S = 30.0
"""How long a worker may take to stop; the leader's, after the loop, as long as ``StopWorker`` says."""

FINALIZE_LIMIT_S = 10.0
"""How long rank processes may outlive their worker, to leave MPI together."""

LEFT = "its training process left the group but does not end"
_NOBODY = "no worker of {} runs on this node"


@dataclass(slots=True)
class AgentWorker:
    """One worker. ``held``: it was in a group and may hold a state. ``stop_by_s``: the time by which it must have ended
    by itself; ``within_s``: how long it was given, if its loop was over (see ``core.commands.StopWorker``).

    ``loaded``: what it has said of its code, to be repeated to a coordinator that may not have heard it.
    ``checking``: its script's check has been ordered; ``checked``: its result, to be repeated as well.
    ``look``: the order to examine it, during the examination; ``waiting``: what it has said meanwhile.
    """

    trainer: str
    uid: str = ""
    up: bool = False
    held: bool = False
    step: int = 0
    stop_reason: str | None = None
    stop_by_s: float = math.inf
    within_s: float = 0.0
    stuck_reason: str | None = None
    loaded: list[wire.CodeLoaded] = field(default_factory=list)
    checking: bool = False
    checked: wire.ScriptChecked | None = None
    look: ExamineGroup | None = None
    waiting: wire.RankStalled | None = None


@dataclass(slots=True)
class AgentState:
    """Everything that an agent knows. ``paces``: what workers have measured since the last heartbeat."""

    departure: Departure = field(default_factory=Departure)
    workers: dict[str, AgentWorker] = field(default_factory=dict)
    groups: set[tuple[str, int]] = field(default_factory=set)
    shutdown: Shutdown | None = None
    paces: dict[str, wire.StepTimes] = field(default_factory=dict)
    _leftover_since_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _deserted: dict[tuple[str, int], float] = field(default_factory=dict)
    _over: set[tuple[str, int]] = field(default_factory=set)

    def handle(self, now_s: float, event: Event) -> list[Effect]:
        """Process one event; returns what to do, in this order."""
        match event:
            case CoordinatorMessage(message):
                return self._ordered(now_s, message)
            case WorkerMessage():
                return self._said(event)
            case WorkerEnded():
                return self._worker_ended(event)
            case RankEnded():
                return self._rank_ended(now_s, event)
            case wire.RankAddress() | wire.RankJoined():
                return [Send(event)] if (event.trainer, event.generation) in self.groups else []
            case wire.PeersUnreached():
                return [Send(event)]
            case Stopped():
                return self._stopped(event)
            case CannotJoin(trainer, reason):
                return self._kill(trainer, reason)
            case Watched():
                return self._watched(event)
            case Noticed(cause):
                return self.departure.noticed(now_s, cause)
            case CoordinatorLost():
                self.departure.lost()
                return []
            case PoolOver(reason):
                return self.departure.over(reason)
            case Ticked():
                return self._ticked(now_s)
            case _:
                assert_never(event)

    def inventory(self) -> list[tuple[str, str, int, int, bool]]:
        """What ``Hello.workers`` says."""
        return [(w.trainer, w.uid, self._training(w.trainer), w.step, w.up) for w in self.workers.values()]

    # --- orders -----------------------------------------------------------------------------------------------------

    def _ordered(self, now_s: float, message: wire.ToAgent) -> list[Effect]:
        match message:
            case wire.Welcome():
                loaded = [Send(said) for worker in self.workers.values() for said in worker.loaded]
                return [*loaded, *self.departure.welcomed(now_s, message)]
            case wire.HeartbeatSeen(sent_s):
                self.departure.heard(sent_s)
                return []
            case wire.Refused(reason):
                return [Exit(2, f"refused by the coordinator: {reason}")]
            case wire.Forgotten(reason):
                return [Exit(0, reason, again=not self.departure.leaves)]
            case ReleaseNode():
                return [Exit(0, message.reason)]
            case wire.StartWorker():
                return self._launch(message)
            case StopWorker():
                return self._stop(now_s, message)
            case wire.JoinGroup():
                return self._join(message)
            case wire.GroupAddresses(trainer, generation):
                return [message] if (trainer, generation) in self.groups else []
            case DissolveGroup():
                return self._kill_group(message)
            case wire.LeaveGroup() | PauseGroup():
                return self._pass_on(message)
            case ExamineGroup():
                return self._look(message)
            case SetCheckpointInterval(trainer):
                return [SendToWorker(trainer, message)] if trainer in self.workers else []
            case CheckScript():
                return self._check(message)
            case WriteCheckpoint(trainer):
                if trainer in self.workers:
                    return [SendToWorker(trainer, message)]
                return [Send(wire.CheckpointWritten(trainer, 0, 0, asked=True, error=_NOBODY.format(trainer)))]
            case _:
                assert_never(message)

    def _launch(self, message: wire.StartWorker) -> list[Effect]:
        worker = self.workers.get(message.trainer)
        if worker is None:
            self.workers[message.trainer] = AgentWorker(message.trainer, message.uid)
            return [LogLine(f"{message.trainer}: starting {message.launch.script}"), message]
        return [Send(wire.WorkerReady(message.trainer, 0.0))] if worker.up else []

    def _stop(self, now_s: float, message: StopWorker) -> list[Effect]:
        trainer, worker = message.trainer, self.workers.get(message.trainer)
        if worker is None:
            return [Send(wire.WorkerExited(trainer, "stopped", "it was not running"))]
        worker.stop_reason = message.reason
        worker.within_s = message.within_s
        worker.stop_by_s = now_s + ((message.within_s or STOP_LIMIT_S) if worker.up else 0.0)
        note = LogLine(f"{trainer}: stopping: {message.reason}")
        return [note, SendToWorker(trainer, message) if worker.up else KillWorker(trainer)]

    def _join(self, message: wire.JoinGroup) -> list[Effect]:
        key = (message.trainer, message.generation)
        if key in self._over:
            return []
        if message.trainer not in self.workers:
            return self._give_up(key, _NOBODY.format(message.trainer))
        self.workers[message.trainer].held = True
        self.groups.add(key)
        note = f"{message.trainer}: node {message.node} of {message.nodes} in generation {message.generation}"
        return [LogLine(note), SendToWorker(message.trainer, message), message]

    def _kill_group(self, message: DissolveGroup) -> list[Effect]:
        key = (message.trainer, message.generation)
        self._over.add(key)
        self.groups.discard(key)
        tell = [SendToWorker(message.trainer, message)] if message.trainer in self.workers else []
        return [KillRank(*key), *tell]

    def _pass_on(self, message: wire.LeaveGroup | PauseGroup) -> list[Effect]:
        trainer = message.trainer
        if trainer in self.workers:
            return [SendToWorker(trainer, message)]
        return self._give_up((trainer, message.generation), _NOBODY.format(trainer))

    def _check(self, message: CheckScript) -> list[Effect]:
        trainer, worker = message.trainer, self.workers.get(message.trainer)
        if worker is None:
            return [Send(wire.ScriptChecked(trainer, "unchecked", _NOBODY.format(trainer)))]
        if worker.checking:
            return [Send(worker.checked)] if worker.checked is not None else []
        worker.checking = True
        return [LogLine(f"{trainer}: checking its script"), message]

    # --- what workers say -------------------------------------------------------------------------------------------

    def _said(self, event: WorkerMessage) -> list[Effect]:
        message, worker = event.message, self.workers.get(event.trainer)
        if worker is None or getattr(message, "trainer", None) != event.trainer:
            return [LogLine(f"{event.trainer}: dropped a {type(message).__name__} that is not its own")]
        match message:
            case wire.WorkerReady(_, warm_s):
                worker.up = True
                return [LogLine(f"{event.trainer}: warm after {warm_s:.1f} s"), Send(message)]
            case wire.CodeLoaded():
                worker.loaded.append(message)
                return [Send(message)]
            case wire.GroupFormed() | wire.Progress() | wire.TrainerFinished():
                worker.step = message.step
                return [Send(message)]
            case wire.RankPaused():
                worker.step = message.step
                return [Send(message), *(self.shutdown.paused(event.trainer) if self.shutdown else [])]
            case wire.CheckpointWritten():
                ended = self.shutdown.done(event.trainer) if self.shutdown and message.asked else []
                return [Send(message), *ended]
            case wire.ScriptChecked() if worker.checking:
                worker.checked = message
                return [LogLine(f"{event.trainer}: its script: {message.result}: {message.text}"), Send(message)]
            case wire.GroupBroken(_, generation, reason, unloaded):
                return self._give_up((event.trainer, generation), reason, unloaded)
            case wire.RankStalled():
                worker.waiting = message
                return [Send(message)]
            case wire.RankStepTimes():
                self.paces[event.trainer] = message.pace
                return []
            case wire.Remark():
                return [Send(message)]
            case _:
                return [LogLine(f"{event.trainer}: dropped an unexpected {type(message).__name__} from a worker")]

    # --- ends of processes ------------------------------------------------------------------------------------------

    def _worker_ended(self, event: WorkerEnded) -> list[Effect]:
        worker = self.workers.pop(event.trainer)
        if worker.within_s:
            cut = worker.stop_by_s == math.inf
            cause, detail = diagnosis.after_loop(event, worker.within_s, worker.stop_reason or "", cut=cut)
        else:
            cause, detail = diagnosis.on_exit(event, worker.up, worker.stop_reason, worker.stuck_reason)
        return [
            LogLine(f"{event.trainer}: worker {cause.value}: {detail.splitlines()[-1] if detail else ''}"),
            *([] if event.status == 0 else self._end_groups(event.trainer)),
            Send(wire.WorkerExited(event.trainer, cause.value, detail, event.log)),
            *(self.shutdown.done(event.trainer) if self.shutdown else []),
        ]

    def _rank_ended(self, now_s: float, event: RankEnded) -> list[Effect]:
        key = (event.trainer, event.generation)
        if key not in self.groups:
            return []
        if event.status == WORKER_GONE and event.trainer in self.workers:
            self._deserted[key] = now_s + STOP_LIMIT_S  # a script that raised an exception may take seconds to exit
            return []
        if event.status != 0:
            return self._give_up(key, diagnosis.on_rank(event))
        self.groups.discard(key)
        return []

    def _stopped(self, event: Stopped) -> list[Effect]:
        worker = self.workers.get(event.trainer)
        if worker is None:
            return []
        reason = f"stopped (SIGSTOP) for {event.stopped_s:.0f} s"
        if event.generation:
            return self._give_up((event.trainer, event.generation), f"a rank process was {reason}")
        return self._kill(event.trainer, f"{reason}, then killed")

    def _kill(self, trainer: str, reason: str) -> list[Effect]:
        """Kill a worker that is of no use; its end says why."""
        worker = self.workers.get(trainer)
        if worker is None:
            return []
        worker.stuck_reason = reason
        return [KillWorker(trainer)]

    # --- looks ------------------------------------------------------------------------------------------------------

    def _look(self, message: ExamineGroup) -> list[Effect]:
        """Ask the worker itself, and watch it, because a stuck one cannot answer."""
        worker = self.workers.get(message.trainer)
        if worker is None:
            return [
                Send(
                    wire.RankExamined(
                        message.trainer, message.generation, StallFinding.UNKNOWN, _NOBODY.format(message.trainer)
                    )
                )
            ]
        worker.look, worker.waiting = message, None
        return [SendToWorker(message.trainer, message), Watch(message.trainer)]

    def _watched(self, event: Watched) -> list[Effect]:
        worker = self.workers.get(event.trainer)
        if worker is None or worker.look is None:
            return []
        look, worker.look = worker.look, None
        silent_s = self.departure.welcome.silent_s if self.departure.welcome is not None else math.inf
        seen, detail = diagnosis.on_look(look, worker.waiting, event, silent_s)
        looked = Send(wire.RankExamined(look.trainer, look.generation, seen, detail))
        if seen is not StallFinding.LOST:
            return [looked]
        worker.stuck_reason = f"the others were waiting for it and {detail}: killed"
        return [looked, KillWorker(look.trainer)]

    def _give_up(self, key: tuple[str, int], reason: str, unloaded: Unloaded | None = None) -> list[Effect]:
        """The generation cannot continue: end it here, and report that once."""
        if key in self._over:
            return []
        self._over.add(key)
        self.groups.discard(key)
        trainer, generation = key
        tell = [dissolved(trainer, generation, reason)] if trainer in self.workers else []
        note = LogLine(f"{trainer}: generation {generation} ended: {reason}")
        broken = wire.GroupBroken(trainer, generation, reason, unloaded)
        return [note, KillRank(trainer, generation), *tell, Send(broken)]

    def _end_groups(self, trainer: str) -> list[Effect]:
        """Without a report, because the worker's end is reported."""
        keys = [key for key in self.groups if key[0] == trainer]
        for key in keys:
            self._over.add(key)
            self.groups.discard(key)
        return [KillRank(*key) for key in keys]

    # --- time -------------------------------------------------------------------------------------------------------

    def _ticked(self, now_s: float) -> list[Effect]:
        if end := self.departure.ticked(now_s):
            return end
        if self.shutdown is not None:
            return self.shutdown.tick(now_s)
        if (orphaned := self.departure.orphaned(now_s)) is not None:
            holders = {w.trainer: self._training(w.trainer) for w in self.workers.values() if w.held}
            self.shutdown = Shutdown(orphaned.reason, holders, orphaned.pause_s, orphaned.end_s)
            return self.shutdown.begin()
        return self._overdue(now_s)

    def _overdue(self, now_s: float) -> list[Effect]:
        """Kill what should have ended by itself by now."""
        late = [worker for worker in self.workers.values() if now_s >= worker.stop_by_s]
        for worker in late:
            worker.stop_by_s = math.inf
        self._deserted = {key: by_s for key, by_s in self._deserted.items() if key in self.groups}
        given_up = [key for key, by_s in self._deserted.items() if now_s >= by_s]
        broken = [effect for key in given_up for effect in self._give_up(key, LEFT)]
        leftover = [key for key in self.groups if key[0] not in self.workers]
        self._leftover_since_s = {key: self._leftover_since_s.get(key, now_s) for key in leftover}
        overdue = [key for key in leftover if now_s - self._leftover_since_s[key] >= FINALIZE_LIMIT_S]
        for key in overdue:
            self._over.add(key)
            self.groups.discard(key)
        return [*(KillWorker(worker.trainer) for worker in late), *broken, *(KillRank(*key) for key in overdue)]

    def _training(self, trainer: str) -> int:
        """The generation in which the worker trains: the oldest one that is running (a younger one waits for its
        switch)."""
        return min((number for name, number in self.groups if name == trainer), default=0)
