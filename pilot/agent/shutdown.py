"""How an agent without a coordinator leaves: pause the groups, save the states, exit. Pure.

Nobody regroups without the coordinator, so a group that does not pause in time is given up on this node: its workers
abort their current step and hold a complete state, which is then written.
"""

from __future__ import annotations

from pilot.agent.vocabulary import Effect, Exit, KillRank, LogLine, Tell, dissolved
from pilot.core.commands import PauseGroup, WriteCheckpoint
from pilot.core.ids import Generation, NodeId, TrainerId

HERE = NodeId("")
"""In an order that the agent itself gives: its own node."""


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
            Tell(trainer, PauseGroup(TrainerId(trainer), Generation(number), (), self.reason))
            for trainer, number in self._training.items()
        ]
        writes = [effect for trainer in self._parked for effect in self._write(trainer)]
        return [LogLine(f"leaving: {self.reason}"), *pauses, *writes, *self._exit_when_done()]

    def paused(self, trainer: str) -> list[Effect]:
        """The group of ``trainer`` stopped, all of its ranks after the same step."""
        if self._training.pop(trainer, 0) == 0:
            return []
        return self._write(trainer)

    def done(self, trainer: str) -> list[Effect]:
        """The worker of ``trainer`` has written its state, or failed to, or has ended."""
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
        return [Tell(trainer, WriteCheckpoint(TrainerId(trainer), HERE, self.reason))]

    def _exit_when_done(self) -> list[Effect]:
        return [] if self._training or self._writing else [Exit(0, self.reason)]
