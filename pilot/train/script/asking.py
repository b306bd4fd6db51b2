"""Where a script asks the session for its next turn, and whether it is still there. If a variable has the loop (``bar =
tqdm(session.epochs(5))``), ``break`` does not close it.
"""

from __future__ import annotations

import inspect
from types import CodeType

from pilot.train.script import loop_code, refusal
from pilot.train.script.bytecode import running_at

_WAITS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Asking:
    """The loops of the script in which it asks: of each running function, the outermost one. (No frames, which would
    keep their variables.)
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[int, CodeType], int] = {}
        for frame in refusal.frames():
            for head in loop_code.heads(frame.f_code, running_at(frame))[:1]:
                self._heads[id(frame), frame.f_code] = head

    def is_left(self) -> bool:
        """Whether the script is in none of them any more (it may come back). A generator of its own that is not running
        may wait in its loop, so it does not count; if there are only such, nobody knows.
        """
        running = [(frame, self._heads.get((id(frame), frame.f_code))) for frame in refusal.frames()]
        is_known = any(not code.co_flags & _WAITS for _, code in self._heads)
        return is_known and not any(head in loop_code.heads(one.f_code, running_at(one)) for one, head in running)
