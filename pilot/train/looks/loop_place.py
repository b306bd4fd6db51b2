"""In which of the script's functions the session's loop is, and where it begins there."""

from __future__ import annotations

import inspect
from itertools import dropwhile
from types import FrameType

from pilot.train.script import loop_code, refusal
from pilot.train.script.bytecode import running_at


class LoopPlace:
    """Of one session's. ``head``: where the loop begins in its function; 0: the script has no such loop."""

    def __init__(self) -> None:
        self.head = 0
        self._frame = 0
        self._may_be: list[tuple[int, int]] = []

    def begin(self) -> None:
        """The loop begins: in the function that asks for its first turn, or, if that only hands turns on (``for epoch
        in progress(session.epochs(3))``), in the one that asks for those.
        """
        self._may_be = []
        for frame in refusal.frames():
            self._may_be.append((id(frame), max(loop_code.heads(frame.f_code, running_at(frame)), default=0)))
            if not frame.f_code.co_flags & inspect.CO_GENERATOR:
                break
        self._frame, self.head = next(iter(self._may_be), (0, 0))  # none of the script's if all of it is installed

    def step(self) -> None:
        """The script steps, and what hands turns on waits."""
        if self._may_be[1:]:
            running = set(map(id, refusal.frames()))
            self._frame, self.head = next((one for one in self._may_be if one[0] in running), self._may_be[0])
        self._may_be = []

    def is_in(self, frame: FrameType) -> bool:
        """Whether it is that function's."""
        return id(frame) == self._frame

    def frames(self) -> list[FrameType]:
        """The running functions, from that one on."""
        return list(dropwhile(lambda frame: not self.is_in(frame), [*refusal.frames()][::-1]))
