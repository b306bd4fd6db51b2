"""Drives the core: an event goes in, the decision is journaled, and its effects are carried out once that is on disk.

All decisions are made in the core and recorded in the journal; everything here can be restored from it. The log has the
sentences of ``pilot events``, with the numbers of their journal entries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

from pilot.core import events
from pilot.core.commands import Command
from pilot.core.coordinator import Coordinator
from pilot.history.monitor import Monitor
from pilot.history.story import Story
from pilot.rundir.entries import Decision, Entry, JournalNote
from pilot.rundir.journal import Header
from pilot.service.agents.pending import PendingCommands
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.durability.restore import Books, Restored, taken

log = logging.getLogger(__name__)

WAITING_MAX = 64 << 20
"""Journal bytes that may wait in memory for space on the disk: hours of reports from several trainers."""

Perform = Callable[[Command, int], None]
"""Carries out a command of the journal entry with this number."""


class Clock:
    """Seconds since the pool began; keeps running through restarts of the coordinator."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._zero_s = time.monotonic() - start_s

    def __call__(self) -> float:
        """Now."""
        return time.monotonic() - self._zero_s


class LiveDriver:
    """The core with its journal."""

    def __init__(self, core: Coordinator, journal: JournalWriter, clock: Clock) -> None:
        self.core = core
        self.books = Books.beside(core)
        self.clock = clock
        self._journal = journal
        self._queue: asyncio.Queue[tuple[Future[None], list[Command], int]] = asyncio.Queue()
        self._story = Story(0.0)
        self._changed = asyncio.Event()

    @property
    def pending(self) -> PendingCommands:
        """Commands waiting for their completion."""
        return self.books.pending

    @property
    def monitor(self) -> Monitor:
        """Information for users."""
        return self.books.monitor

    @property
    def trouble(self) -> str:
        """Why decisions do not take effect at the moment: the journal cannot be written. "" if it can."""
        return self._journal.trouble

    @property
    def overfull(self) -> bool:
        """Whether so much is waiting for the disk that optional entries have to be dropped."""
        return self._journal.waiting_bytes > WAITING_MAX

    def adopt(self, restored: Restored) -> None:
        """Continue from an earlier life of this coordinator; its effects were carried out then."""
        self.core, self.books = restored.core, restored.books
        solve = [self.pending.solve] if self.pending.solve is not None else []
        starting = [given.command for given in self.pending.starting.values()]
        forming = [given.command for given in self.pending.forming.values()]
        known = events.PoolChanged(noticed=tuple(self.core.pool.leaving))
        self._story.events_of(Decision(0, self.clock(), known, (*solve, *starting, *forming)))

    def reopen(self, header: Header, *, pilots_come_back: bool) -> None:
        """A drained pool is up again, under the last configuration of ``header``. Must come first.

        If its pilots no longer know it (``pilots_come_back``), those that had not left are lost.
        """
        self.post(events.PoolReopened())
        if self.core.pool.nodes and not pilots_come_back:
            self.post(events.PoolChanged(lost=tuple(self.core.pool.nodes), cause="the pool was down"))
        self._journal.end_segment(self.clock(), *taken(self.core, self.books, self._journal.last_seq), header)

    def post(self, event: events.Event) -> Future[None]:
        """Pass ``event`` to the core now. The future completes when the decision is on disk."""
        now_s = self.clock()
        commands = self.core.handle(now_s, event)
        seq = self._journal.last_seq + 1
        self.books.note(now_s, event, commands, seq)
        self._log(Decision(seq, now_s, event, tuple(commands)))
        written = self._journal.decided(now_s, event, commands)
        self._queue.put_nowait((written, commands, seq))
        if commands or not isinstance(event, events.Progress):
            self._changed.set()
            self._changed = asyncio.Event()
        if self._journal.segment_is_long and not self.core.draining:  # the last segment must show that it was drained
            self.begin_segment()
        return written

    def begin_segment(self) -> None:
        """Begin a new segment of the journal, with the present state."""
        self._journal.end_segment(self.clock(), *taken(self.core, self.books, self._journal.last_seq))

    def remark(self, **note: str | float | None) -> None:
        """Journal and log a note that does not affect the core; most are for people."""
        now_s = self.clock()
        self.books.remark(now_s, note)
        self._log(JournalNote(self._journal.last_seq + 1, now_s, dict(note)))
        self._journal.note(now_s, dict(note))

    async def run(self, perform: Perform) -> None:
        """Carry out the commands of each decision, in order, once it is on disk; until cancelled.

        Raises
        ------
        JournalError
            The journal cannot be written: stop.
        """
        while True:
            written, commands, seq = await self._queue.get()
            await asyncio.wrap_future(written)
            for command in commands:
                perform(command, seq)

    async def wait_for_change(self) -> None:
        """Wait until something happens other than trainers' steps, which have no consequences."""
        await self._changed.wait()

    def _log(self, entry: Entry) -> None:
        if isinstance(entry, Decision) and isinstance(entry.event, events.CheckpointPublished):
            return  # they would fill the log
        level = logging.INFO if isinstance(entry, Decision) else logging.WARNING
        for event in self._story.events_of(entry):
            log.log(level, "%s (event %d)", event.text, event.event)
