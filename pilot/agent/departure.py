"""When an agent leaves: its notices, and how long its coordinator has been away. Pure.

The agent reports a notice (a signal, the wall time's end) to the coordinator, which sends ``ReleaseNode`` when the node
is no longer needed; otherwise the agent leaves shortly before the grace, or the wall time, is over. Without a
coordinator it leaves by itself: early enough before an announced end, when the pool is over, or when its *lease* ends,
``orphan_s`` after it sent the last message that the coordinator is known to have received. The coordinator may replace
it after that, so it must have stopped stepping by then.

How it leaves without one is a :class:`Shutdown`: pause the groups, save the states, exit. Nobody regroups without the
coordinator, so a group that does not pause in time is given up on this node: its workers abort their current step and
hold a complete state, which is then written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pilot.agent.events_effects import Effect, Exit, KillRank, LogLine, Send, SendToWorker, dissolved
from pilot.core.commands import PauseGroup, WriteCheckpoint
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.protocol import wire

WALLTIME_MARGIN_S = 5.0
"""A pilot gives notice so much earlier than its grace before the wall time's end."""

_WALLTIME = "wall time"
"""The notice that a pilot gives itself. Its deadline is the wall time's end, whatever the site's grace is."""

_IMPATIENT = "signal SIGINT"
"""The notice of Ctrl-C in a terminal: a second one ends the agent at once."""

_FAREWELL_MIN_S = 60.0
_FAREWELL_SHARE = 0.9
_PAUSE_SHARE = 1 / 3
_PATIENCE_SHARE = 1 / 4
_MARGIN_SHARE = 0.1
_MARGIN_MAX_S = 1.0
_WALLTIME_EXIT_S = 2.0
"""The agent exits so long before the wall time's end (within WALLTIME_MARGIN_S): on a busy node, ending all processes
takes more than a second.
"""
_LEASE_SHARE = 0.2
_LEASE_MARGIN_MAX_S = 10.0
"""Groups are asked to pause so long before the lease's end; those still training at its end are killed."""


@dataclass(slots=True)
class Departure:
    """An agent's knowledge of its own end."""

    own_grace_s: float | None = None  #: this pilot's grace, if its batch script overrides the site's
    walltime_end_s: float = math.inf  #: when the job ends, on the clock of ``now_s``
    welcome: wire.Welcome | None = None
    _notice: wire.Noticed | None = None
    _deadline_s: float = math.inf
    _greeted_s: float = -math.inf
    _heard_s: float = -math.inf
    _away: bool = False
    _over: str = ""

    @property
    def grace_s(self) -> float:
        """How long this pilot lives after a notice."""
        if self.own_grace_s is not None:
            return self.own_grace_s
        return self.welcome.grace_s if self.welcome is not None else 0.0

    @property
    def leaves(self) -> bool:
        """Whether it has got a notice."""
        return self._notice is not None

    def greeted(self, now_s: float) -> None:
        """Record that ``Hello`` was sent."""
        self._greeted_s = now_s

    def heard(self, sent_s: float) -> None:
        """Record that the coordinator received a message sent at ``sent_s``."""
        self._heard_s = max(self._heard_s, sent_s)

    def welcomed(self, now_s: float, welcome: wire.Welcome) -> list[Effect]:
        """Handle the answer of a coordinator, which may not know of the notice yet."""
        self.welcome, self._away = welcome, False
        self.heard(self._greeted_s)
        joined = LogLine(f"joined pool {welcome.coordinator} as {welcome.node}")
        return [joined] if self._notice is None else [joined, Send(self._report(self._notice, now_s))]

    def lost(self) -> None:
        """Record that the connection closed."""
        self._away = True

    def over(self, reason: str) -> list[Effect]:
        """Handle the end of the pool: no coordinator will come back."""
        if self.welcome is None:
            return [Exit(2, reason)]
        self._over = reason
        return []

    def noticed(self, now_s: float, notice: wire.Noticed) -> list[Effect]:
        """Handle a notice, of which only the first one is reported."""
        cause = notice.cause
        if self._notice is not None:
            return [Exit(0, f"{cause}, twice")] if cause == self._notice.cause == _IMPATIENT else []
        self._notice = notice
        self._deadline_s = min(now_s + notice.grace_s, self.walltime_end_s)
        if self.welcome is None:
            return [Exit(0, f"{cause}, before it joined")]
        report = self._report(notice, now_s)
        note = LogLine(f"notice: {cause}; {report.grace_s:.0f} s are left")
        return [note] if self._away else [note, Send(report)]

    def _report(self, notice: wire.Noticed, now_s: float) -> wire.Noticed:
        return wire.Noticed(notice.cause, max(0.0, self._deadline_s - now_s))

    def ticked(self, now_s: float) -> list[Effect]:
        """Give notice before the wall time's end, and leave when the grace is over."""
        if self._notice is None and now_s >= self.walltime_end_s - self.grace_s - WALLTIME_MARGIN_S:
            return self.noticed(now_s, wire.Noticed(_WALLTIME, self.walltime_end_s - now_s))
        if self._notice is not None and now_s >= self._deadline_s - self._margin_s:
            return [Exit(0, f"{self._notice.cause}: out of time")]
        return []

    @property
    def _margin_s(self) -> float:
        """How long before the deadline to leave."""
        if self._notice is not None and self._notice.cause == _WALLTIME:
            return _WALLTIME_EXIT_S
        return min(_MARGIN_MAX_S, _MARGIN_SHARE * self.grace_s)

    def orphaned(self, now_s: float, holders: dict[str, int]) -> Shutdown | None:
        """Return how to leave without a coordinator if it has been away too long. After a notice there is less time to
        wait for it, and to write. ``holders``: see :class:`Shutdown`.
        """
        if self.welcome is None:
            return None
        end_s = min(self._deadline_s, now_s + max(self.grace_s, _FAREWELL_MIN_S))
        left_s, unheard_s, lease_s = end_s - now_s, now_s - self._heard_s, self.welcome.orphan_s
        patience_s = lease_s - min(_LEASE_MARGIN_MAX_S, _LEASE_SHARE * lease_s)
        if self._notice is not None and self._away:
            patience_s = min(patience_s, _PATIENCE_SHARE * left_s)
        if unheard_s < patience_s and not self._over:
            return None
        pause_s = min(self._heard_s + lease_s, now_s + _PAUSE_SHARE * left_s)
        reason = self._over or f"no coordinator for {unheard_s:.0f} s"
        return Shutdown(reason, holders, pause_s, now_s + _FAREWELL_SHARE * left_s)


HERE = NodeId("")
"""The agent's own node, in orders that the agent itself gives."""


class Shutdown:
    """The last steps of an agent.

    Parameters
    ----------
    reason : for the log
    holders : the workers that hold a state, with the generation in which they train (0: none)
    pause_s, end_s : until when to wait for the pause, and for the checkpoints
    """

    def __init__(self, reason: str, holders: dict[str, int], pause_s: float, end_s: float) -> None:
        self.reason = reason
        self.end_s = end_s
        self._pause_s = pause_s
        self._training = {trainer: generation for trainer, generation in holders.items() if generation}
        self._parked = [trainer for trainer in holders if trainer not in self._training]
        self._writing: set[str] = set()

    def begin(self) -> list[Effect]:
        """Ask all groups to pause; workers outside of groups write at once."""
        pauses = [
            SendToWorker(trainer, PauseGroup(TrainerId(trainer), Generation(number), (), self.reason))
            for trainer, number in self._training.items()
        ]
        writes = [effect for trainer in self._parked for effect in self._write(trainer)]
        return [LogLine(f"leaving: {self.reason}"), *pauses, *writes, *self._exit_when_done()]

    def paused(self, trainer: str) -> list[Effect]:
        """Handle a pause: all ranks of the group of ``trainer`` stopped after the same step."""
        if self._training.pop(trainer, 0) == 0:
            return []
        return self._write(trainer)

    def done(self, trainer: str) -> list[Effect]:
        """Handle the end of a worker, or of its checkpoint's write."""
        self._training.pop(trainer, None)
        self._writing.discard(trainer)
        return self._exit_when_done()

    def tick(self, now_s: float) -> list[Effect]:
        """Give up on groups that did not pause in time, and on checkpoints that were not written in time."""
        if now_s >= self.end_s:
            return [Exit(0, f"{self.reason}; not all states were written in time")]
        if now_s < self._pause_s:
            return []
        late, self._training = self._training, {}
        effects: list[Effect] = []
        for trainer, generation in late.items():
            effects += [
                LogLine(f"{trainer}: generation {generation} did not pause in time; killed on this node"),
                KillRank(trainer, generation),
                dissolved(trainer, generation, self.reason),
                *self._write(trainer),
            ]
        return effects

    def _write(self, trainer: str) -> list[Effect]:
        self._writing.add(trainer)
        return [SendToWorker(trainer, WriteCheckpoint(TrainerId(trainer), HERE, self.reason))]

    def _exit_when_done(self) -> list[Effect]:
        return [] if self._training or self._writing else [Exit(0, self.reason)]
