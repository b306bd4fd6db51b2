"""What the training processes of one worker say, as if they were one. Pure.

A worker has one training process per rank of its node. The agent's state machine and the coordinator know workers only:
a worker's orders go to all of its processes, and what all of them say goes on once.

    ``WorkerReady``, ``RankPaused``   goes on when all have said it
    ``RankStalled``                   in answer to ``LookAtGroup``: when all have answered, as what the most hopeful one
                                      said; of its own accord: at once
    anything else                     goes on at once: one process says it for all (rank 0 of the group), or for itself
    ``WriteCheckpoint``               is for process 0 alone: all hold the same state
"""

from __future__ import annotations

from pilot.io import wire


class LocalRanks:
    """``size`` training processes, numbered from 0."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._said: dict[tuple[type, int], set[int]] = {}
        self._answers: dict[int, wire.RankStalled] | None = None

    def told(self, message: wire.Message) -> range:
        """The processes to which ``message`` goes."""
        if isinstance(message, wire.LookAtGroup):
            self._answers = {}
        return range(1 if isinstance(message, wire.WriteCheckpoint) else self._size)

    def said(self, process: int, message: wire.FromAgent) -> wire.FromAgent | None:
        """What the worker says, now that one of its processes has said ``message``; None: nothing yet."""
        match message:
            case wire.WorkerReady():
                return message if self._all_said(process, (wire.WorkerReady, 0)) else None
            case wire.RankPaused(_, generation):
                return message if self._all_said(process, (wire.RankPaused, generation)) else None
            case wire.RankStalled() if self._answers is not None:
                return self._answered(self._answers, process, message)
        return message

    def looked_at(self) -> None:
        """The look is over: what is said from now on is no answer to it."""
        self._answers = None

    def silent(self) -> list[int]:
        """The processes that have not answered the last ``LookAtGroup``."""
        return [process for process in range(self._size) if process not in (self._answers or {})]

    def _all_said(self, process: int, what: tuple[type, int]) -> bool:
        said = self._said.setdefault(what, set())
        said.add(process)
        if len(said) < self._size:
            return False
        del self._said[what]
        return True

    def _answered(
        self, answers: dict[int, wire.RankStalled], process: int, message: wire.RankStalled
    ) -> wire.RankStalled | None:
        answers[process] = message
        if len(answers) < self._size:
            return None
        return min(answers.values(), key=lambda waiting: (waiting.summing, waiting.waited_s))
