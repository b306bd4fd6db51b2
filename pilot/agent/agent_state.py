"""The agent's state machine: events in, effects out. Pure: no clock, no processes, no sockets.

Theory of operation. The agent runs at most one worker per trainer, and per (trainer, generation) at most one rank
process. It carries out the coordinator's orders and reports the results; every order that has a completion gets one,
even if its worker or group is gone. Workers' messages are passed on.

    process                     ends                        what follows
    worker                      status 0                    ``WorkerExited``; its rank processes end by themselves
    worker                      otherwise                   ``WorkerExited``; its generations are killed
    rank process                status 0                    nothing: its generation has ended
    rank process                its worker has gone         the worker's own end is awaited, which shows why
    rank process                otherwise                   the generation is *over*: killed here, ``GroupBroken``
    any                         killed by us                nothing

A generation that is over stays over: later orders and messages about it are dropped. Without coordinator for
``orphan_s``, or with a notice and none, or when its pool is over, the agent goes through its :class:`Shutdown`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import assert_never

from pilot.agent import diagnosis
from pilot.agent.departure import Departure, Shutdown
from pilot.agent.events_effects import (
    CoordinatorLost,
    CoordinatorMessage,
    Effect,
    Event,
    Exit,
    KillRank,
    KillWorker,
    LogLine,
    PoolOver,
    ProcessFailed,
    RankEnded,
    Send,
    SendToWorker,
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
from pilot.protocol.fields import StepTimes

STOP_LIMIT_S = 30.0
"""The time that a worker may take to stop, unless ``StopWorker`` allows a leader longer for the code after its loop."""

FINALIZE_LIMIT_S = 10.0
"""The time that rank processes may outlive their worker, to leave MPI together."""

LEFT = "its training process left the group but does not end"
_NOBODY = "no worker of {} runs on this node"


@dataclass(slots=True)
class AgentWorker:
    """One worker. ``held``: it was in a group and may hold a state. ``stop_by_s``: the time by which it must have ended
    by itself; ``within_s``: how long it was given, if its loop was over (see ``core.commands.StopWorker``).

    ``loaded``: its reports of loaded code, to be repeated to a coordinator that may not have received them.
    ``checking``: its script's check has been ordered; ``checked``: its result, to be repeated as well.
    ``raised``: the exception that ends its script.
    ``examination``: the order to examine it, until that is done; ``answer``: its last answer to such an order.
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
    raised: wire.ScriptRaised | None = None
    examination: ExamineGroup | None = None
    answer: wire.RankStalled | None = None


@dataclass(slots=True)
class AgentState:
    """Everything that an agent knows. ``step_times``: workers' measurements since the last heartbeat."""

    departure: Departure = field(default_factory=Departure)
    workers: dict[str, AgentWorker] = field(default_factory=dict)
    groups: set[tuple[str, int]] = field(default_factory=set)
    shutdown: Shutdown | None = None
    step_times: dict[str, StepTimes] = field(default_factory=dict)
    _end_by_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _over: set[tuple[str, int]] = field(default_factory=set)

    def handle(self, now_s: float, event: Event) -> list[Effect]:
        """Process one event; returns the effects, in order."""
        match event:
            case CoordinatorMessage(message):
                return self._from_coordinator(now_s, message)
            case WorkerMessage():
                return self._from_worker(now_s, event)
            case WorkerEnded():
                return self._worker_ended(now_s, event)
            case RankEnded():
                return self._rank_ended(now_s, event)
            case wire.RankAddress() | wire.RankJoined():
                return [Send(event)] if (event.trainer, event.generation) in self.groups else []
            case wire.PeersUnreached():
                return [Send(event)]
            case ProcessFailed(trainer, generation, reason):
                give_up = generation and trainer in self.workers
                return self._give_up((trainer, generation), reason) if give_up else self._kill(trainer, reason)
            case Watched():
                return self._watched(event)
            case wire.Noticed():
                return self.departure.noticed(now_s, event)
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
        """Return the value of ``Hello.workers``."""
        return [(w.trainer, w.uid, self._training(w.trainer), w.step, w.up) for w in self.workers.values()]

    # --- orders -----------------------------------------------------------------------------------------------------

    def _from_coordinator(self, now_s: float, message: wire.ToAgent) -> list[Effect]:
        match message:
            case wire.Welcome():
                loaded = [Send(report) for worker in self.workers.values() for report in worker.loaded]
                return [*loaded, *self.departure.welcomed(now_s, message)]
            case wire.HeartbeatSeen(sent_s):
                self.departure.heard(sent_s)
                return []
            case wire.AreYouThere():
                return [Send(wire.Heartbeat(now_s, {}))]
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
                return self._examine(message)
            case SetCheckpointInterval(trainer) | wire.ReplicaAddresses(trainer):
                return self._to_worker(trainer, message)
            case CheckScript():
                return self._check(message)
            case WriteCheckpoint(trainer):
                failure = wire.CheckpointWritten(trainer, 0, 0, asked=True, error=_NOBODY.format(trainer))
                return self._to_worker(trainer, message) or [Send(failure)]
            case _:
                assert_never(message)

    def _to_worker(self, trainer: str, message: wire.Sent) -> list[Effect]:
        """Send to the worker of ``trainer``, if there is one."""
        return [SendToWorker(trainer, message)] if trainer in self.workers else []

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
        before_s = worker.stop_by_s if worker.raised is not None else math.inf
        kill = message.kill or not worker.up
        worker.stop_by_s = min(before_s, now_s + (0.0 if kill else message.within_s or STOP_LIMIT_S))
        note = LogLine(f"{trainer}: stopping: {message.reason}")
        return [note, KillWorker(trainer) if kill else SendToWorker(trainer, message)]

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
        return [*self._close(key), *self._to_worker(message.trainer, message)]

    def _pass_on(self, message: wire.LeaveGroup | PauseGroup) -> list[Effect]:
        trainer, key = message.trainer, (message.trainer, message.generation)
        return self._to_worker(trainer, message) or self._give_up(key, _NOBODY.format(trainer))

    def _check(self, message: CheckScript) -> list[Effect]:
        trainer, worker = message.trainer, self.workers.get(message.trainer)
        if worker is None:
            return [Send(wire.ScriptChecked(trainer, "unchecked", _NOBODY.format(trainer)))]
        if worker.checking:
            return [Send(worker.checked)] if worker.checked is not None else []
        worker.checking = True
        return [LogLine(f"{trainer}: checking its script"), message]

    # --- messages of workers ----------------------------------------------------------------------------------------

    def _from_worker(self, now_s: float, event: WorkerMessage) -> list[Effect]:
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
                worker.answer = message
                return [Send(message)]
            case wire.RankStepTimes():
                self.step_times[event.trainer] = message.times
                return []
            case wire.ScriptRaised():
                worker.raised = worker.raised or message
                worker.stop_by_s = min(worker.stop_by_s, now_s + STOP_LIMIT_S)  # its threads may hold it
                return []
            case wire.ReplicaAddresses():  # for other nodes, and for this one's other processes
                return [Send(message), SendToWorker(event.trainer, message)]
            case wire.Remark():
                return [Send(message)]
            case _:
                return [LogLine(f"{event.trainer}: dropped an unexpected {type(message).__name__} from a worker")]

    # --- ends of processes ------------------------------------------------------------------------------------------

    def _worker_ended(self, now_s: float, event: WorkerEnded) -> list[Effect]:
        worker = self.workers.pop(event.trainer)
        groups = [key for key in self.groups if key[0] == event.trainer]
        self._end_by_s |= dict.fromkeys(groups, now_s + FINALIZE_LIMIT_S)
        raised, origin = (worker.raised.text, worker.raised.origin) if worker.raised is not None else ("", "")
        cut = worker.stop_by_s == math.inf
        if cut and worker.raised is not None:
            event, cut = replace(event, status=worker.raised.status), False
        if worker.within_s:
            cause, detail = diagnosis.after_loop(event, worker.within_s, worker.stop_reason or "", raised, cut=cut)
        else:
            cause, detail = diagnosis.on_exit(event, worker.up, worker.stop_reason, worker.stuck_reason, raised)
        ordered = worker.stop_reason is not None or worker.stuck_reason is not None
        no_memory = not ordered and (event.out_of_memory or (worker.raised is not None and worker.raised.out_of_memory))
        return [
            LogLine(f"{event.trainer}: worker {cause.value}: {detail}"),
            *([] if event.status == 0 else [effect for key in groups for effect in self._close(key)]),
            Send(wire.WorkerExited(event.trainer, cause.value, detail, event.log, origin, no_memory)),
            *(self.shutdown.done(event.trainer) if self.shutdown else []),
        ]

    def _rank_ended(self, now_s: float, event: RankEnded) -> list[Effect]:
        key = (event.trainer, event.generation)
        if key not in self.groups:
            return []
        if event.status == WORKER_GONE and event.trainer in self.workers:
            self._end_by_s[key] = now_s + STOP_LIMIT_S  # a script that raised an exception may take seconds to exit
            return []
        if event.status != 0:
            return self._give_up(key, diagnosis.on_rank(event))
        self.groups.discard(key)
        return []

    def _kill(self, trainer: str, reason: str) -> list[Effect]:
        """Kill a worker that is of no use; ``reason`` becomes the detail of its end."""
        worker = self.workers.get(trainer)
        if worker is None:
            return []
        worker.stuck_reason = reason
        return [KillWorker(trainer)]

    # --- examinations -----------------------------------------------------------------------------------------------

    def _examine(self, order: ExamineGroup) -> list[Effect]:
        """Ask the worker itself, and watch it, because a stuck one cannot answer."""
        trainer, worker = order.trainer, self.workers.get(order.trainer)
        if worker is None:
            return [Send(wire.RankExamined(trainer, order.generation, StallFinding.UNKNOWN, _NOBODY.format(trainer)))]
        worker.examination, worker.answer = order, None
        return [SendToWorker(trainer, order), Watch(trainer)]

    def _watched(self, event: Watched) -> list[Effect]:
        worker = self.workers.get(event.trainer)
        if worker is None or worker.examination is None:
            return []
        order, worker.examination = worker.examination, None
        silent_s = self.departure.welcome.silent_s if self.departure.welcome is not None else math.inf
        finding, detail = diagnosis.on_examination(order, worker.answer, event, silent_s)
        examined = Send(wire.RankExamined(order.trainer, order.generation, finding, detail))
        if finding is not StallFinding.LOST:
            return [examined]
        return [examined, *self._kill(order.trainer, f"the others were waiting for it and {detail}: killed")]

    def _give_up(self, key: tuple[str, int], reason: str, unloaded: Unloaded | None = None) -> list[Effect]:
        """The generation cannot continue: end it here, and report that once."""
        if key in self._over:
            return []
        trainer, generation = key
        note = LogLine(f"{trainer}: generation {generation} ended: {reason}")
        dissolve = [dissolved(trainer, generation, reason)] if trainer in self.workers else []
        broken = wire.GroupBroken(trainer, generation, reason, unloaded)
        return [note, *self._close(key), *dissolve, Send(broken)]

    def _close(self, key: tuple[str, int]) -> list[Effect]:
        """End the generation here, without a report."""
        self._over.add(key)
        self.groups.discard(key)
        return [KillRank(*key)]

    # --- time -------------------------------------------------------------------------------------------------------

    def _ticked(self, now_s: float) -> list[Effect]:
        if end := self.departure.ticked(now_s):
            return end
        if self.shutdown is not None:
            return self.shutdown.tick(now_s)
        holders = {w.trainer: self._training(w.trainer) for w in self.workers.values() if w.held}
        self.shutdown = self.departure.orphaned(now_s, holders)
        return self._overdue(now_s) if self.shutdown is None else self.shutdown.begin()

    def _overdue(self, now_s: float) -> list[Effect]:
        """Kill workers and rank processes that should have ended by themselves."""
        effects: list[Effect] = []
        for worker in self.workers.values():
            if now_s >= worker.stop_by_s:
                worker.stop_by_s = math.inf
                effects.append(KillWorker(worker.trainer))
        self._end_by_s = {key: by_s for key, by_s in self._end_by_s.items() if key in self.groups}
        for key in [key for key, by_s in self._end_by_s.items() if now_s >= by_s]:
            effects += self._give_up(key, LEFT) if key[0] in self.workers else self._close(key)
        return effects

    def _training(self, trainer: str) -> int:
        """Return the generation in which the worker trains: the oldest of those that run here (0: none)."""
        return min((number for name, number in self.groups if name == trainer), default=0)
