"""Drives the core: an event goes in, the decision is journaled, and only when that is on the disk do its effects go
out.

Everything that decides is in the core and comes from the journal; everything here can be restored from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future

from pilot.core.commands import Command
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError
from pilot.core.events import Event, Progress
from pilot.io.journal import Contents, Decision
from pilot.io.journal_writer import JournalWriter
from pilot.observation.monitor import Monitor
from pilot.service.pending import PendingCommands

REFUSED_MAX = 20
"""So many entries of a journal may be left out; beyond that it is another one's, or ruined."""

Perform = Callable[[Command], None]


class Clock:
    """Seconds since the pool began, rising through restarts of its coordinator."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._zero_s = time.monotonic() - start_s

    def __call__(self) -> float:
        """Now."""
        return time.monotonic() - self._zero_s


class LiveDriver:
    """The core with its journal."""

    def __init__(self, core: Coordinator, journal: JournalWriter, clock: Clock) -> None:
        self.core = core
        self.clock = clock
        self.pending = PendingCommands()
        self.monitor = Monitor()
        self._journal = journal
        self._queue: asyncio.Queue[tuple[Future[None], list[Command]]] = asyncio.Queue()
        self._changed = asyncio.Event()

    def restore(self, contents: Contents, fresh: Callable[[], Coordinator]) -> list[str]:
        """Bring everything to where the journal ends; the effects were given then.

        An entry that the core cannot take (an earlier version could, or a bug wrote it) is left out, and all before it
        is done again with a ``fresh`` core. Returns what was left out and why.

        Raises
        ------
        JournalError
            That are more than :data:`REFUSED_MAX` entries.
        """
        refused: dict[int, str] = {}
        while (bad := self._replay(contents, refused)) is not None:
            decision, error = bad
            refused[decision.seq] = f"entry {decision.seq} ({type(decision.event).__name__}): {error}"
            if len(refused) > REFUSED_MAX:
                raise JournalError(f"more than {REFUSED_MAX} entries of the journal cannot be taken: {error}")
            self.core, self.pending, self.monitor = fresh(), PendingCommands(), Monitor()
        return list(refused.values())

    def _replay(self, contents: Contents, without: Collection[int]) -> tuple[Decision, Exception] | None:
        """The first entry that fails, and how; None: none did."""
        for decision in contents.decisions:
            if decision.seq in without:
                continue
            try:
                self._note(decision.now_s, decision.event, self.core.handle(decision.now_s, decision.event))
            except Exception as error:  # whatever it is, every restart would end with it
                return decision, error
        return None

    def post(self, event: Event) -> Future[None]:
        """Tell the core of ``event``, now. The future is done when the decision is on the disk."""
        now_s = self.clock()
        commands = self.core.handle(now_s, event)
        self._note(now_s, event, commands)
        written = self._journal.decided(now_s, event, commands)
        self._queue.put_nowait((written, commands))
        return written

    def remark(self, **note: str | float) -> None:
        """Journal a note for people."""
        now_s = self.clock()
        self.monitor.remark(now_s, note)
        self._journal.note(now_s, dict(note))

    async def run(self, perform: Perform) -> None:
        """Perform the commands of each decision, in order, once it is on the disk; until cancelled.

        Raises
        ------
        JournalError
            The journal cannot be written: nothing more must be done.
        """
        while True:
            written, commands = await self._queue.get()
            await asyncio.wrap_future(written)
            for command in commands:
                perform(command)

    async def wait_for_change(self) -> None:
        """Wait until more happens than that trainers step, of which nothing follows."""
        await self._changed.wait()

    def _note(self, now_s: float, event: Event, commands: list[Command]) -> None:
        self.pending.note(now_s, event, commands)
        self.monitor.note(now_s, event, commands)
        if commands or not isinstance(event, Progress):
            self._changed.set()
            self._changed = asyncio.Event()
