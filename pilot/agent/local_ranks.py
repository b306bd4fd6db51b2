"""What the training processes of one worker say, as if they were one. Pure.

A worker has one training process per rank of its node. The agent's state machine and the coordinator know workers only:
a worker's orders go to all of its processes, and what all of them say goes on once.

    ``WorkerUp``, ``Paused``     goes on when all have said it
    ``Waiting``                  in answer to ``Look``: when all have answered, as what the most hopeful one said;
                                 of its own accord: at once
    anything else                goes on at once: one process says it for all (rank 0 of the group), or for itself
    ``WriteState``               is for process 0 alone: all hold the same state
"""

from __future__ import annotations

from pilot.io.wire import FromAgent, Look, Message, Paused, Waiting, WorkerUp, WriteState


class Unison:
    """``size`` training processes, numbered from 0."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._said: dict[tuple[type, int], set[int]] = {}
        self._answers: dict[int, Waiting] | None = None

    def told(self, message: Message) -> range:
        """The processes to which ``message`` goes."""
        if isinstance(message, Look):
            self._answers = {}
        return range(1 if isinstance(message, WriteState) else self._size)

    def said(self, process: int, message: FromAgent) -> FromAgent | None:
        """What the worker says, now that one of its processes has said ``message``; None: nothing yet."""
        match message:
            case WorkerUp():
                return message if self._all_said(process, (WorkerUp, 0)) else None
            case Paused(_, generation):
                return message if self._all_said(process, (Paused, generation)) else None
            case Waiting() if self._answers is not None:
                return self._answered(self._answers, process, message)
        return message

    def looked_at(self) -> None:
        """The look is over: what is said from now on is no answer to it."""
        self._answers = None

    def silent(self) -> list[int]:
        """The processes that have not answered the last ``Look``."""
        return [process for process in range(self._size) if process not in (self._answers or {})]

    def _all_said(self, process: int, what: tuple[type, int]) -> bool:
        said = self._said.setdefault(what, set())
        said.add(process)
        if len(said) < self._size:
            return False
        del self._said[what]
        return True

    def _answered(self, answers: dict[int, Waiting], process: int, message: Waiting) -> Waiting | None:
        answers[process] = message
        if len(answers) < self._size:
            return None
        return min(answers.values(), key=lambda waiting: (waiting.summing, waiting.waited_s))
