"""A real coordinator that measures itself: the processor time of its event loop for each event.

An event's cost is the loop's CPU time from taking up the bytes (or the timer) that bring it until the core has answered
and the journal has the line, plus handing each resulting command to TLS. Waiting (for the disk, for a CPU) is not
counted, and the solver is another process.
"""

from __future__ import annotations

import threading
import time
from asyncio.events import Handle
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

from pilot.core.commands import Command
from pilot.core.coordinator import Coordinator
from pilot.core.events import Event
from pilot.service import daemon
from pilot.service.agents.effects import Effects
from pilot.service.durability.live_driver import LiveDriver


def main(arguments: list[str], pipe: Pipe) -> None:
    """Run the daemon; each request through ``pipe`` is answered with the measurements since the last one."""
    costs = Costs()
    costs.listen()
    threading.Thread(target=_tell, args=(pipe, costs), daemon=True).start()
    daemon.main(arguments)


def _tell(pipe: Pipe, costs: Costs) -> None:
    while True:
        pipe.recv()
        pipe.send(costs.take())


@dataclass(slots=True)
class _Cost:
    """An event's cost so far, and how many of its commands are still to be performed."""

    event: str
    commands: int
    spent_s: float = 0.0


class Costs:
    """Seconds of the loop's thread by kind of event, and the longest time that it was blocked."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._costs: dict[str, list[float]] = defaultdict(list)
        self._longest_s = 0.0
        self._last = _Cost("", 0)
        self._open = dict[int, _Cost]()

    def take(self) -> dict[str, Any]:
        """The measurements since the last call."""
        costs, self._costs = self._costs, defaultdict(list)
        longest_s, self._longest_s = self._longest_s, 0.0
        return {"events": dict(costs), "longest_callback_s": longest_s}

    def listen(self) -> None:
        """Instrument the loop, the core, and the effects that perform its commands."""
        run, post, perform = Handle._run, LiveDriver.post, Effects.perform
        handle = Coordinator.handle

        def timed_run(handle: Handle) -> None:
            began_s = self._since_s = time.thread_time()
            run(handle)
            self._longest_s = max(self._longest_s, time.thread_time() - began_s)

        def noted_handle(core: Coordinator, now_s: float, event: Event) -> list[Command]:
            commands = handle(core, now_s, event)
            self._last = _Cost(type(event).__name__, len(commands))
            self._open.update((id(command), self._last) for command in commands)
            return commands

        def timed_post(driver: LiveDriver, event: Event) -> Future[None]:
            written = post(driver, event)
            self._spent(self._last, self._since_s)
            return written

        def timed_perform(effects: Effects, command: Command, event: int = 0) -> None:
            began_s = time.thread_time()
            perform(effects, command, event)
            cost = self._open.pop(id(command), None)
            if cost is not None:
                cost.commands -= 1
                self._spent(cost, began_s)

        for where, name, instead in (
            (Handle, "_run", timed_run),
            (Coordinator, "handle", noted_handle),
            (LiveDriver, "post", timed_post),
            (Effects, "perform", timed_perform),
        ):
            setattr(where, name, instead)

    def _spent(self, cost: _Cost, began_s: float) -> None:
        self._since_s = time.thread_time()
        cost.spent_s += self._since_s - began_s
        if not cost.commands:
            self._costs[cost.event].append(cost.spent_s)
