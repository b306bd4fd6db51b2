"""Drives the core: an event goes in, the decision is journaled, and its effects are carried out once that is on disk.

All decisions are made in the core and recorded in the journal; everything here can be restored from it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from pilot.core import events
from pilot.core.commands import Command, StartWorker
from pilot.core.coordinator import Coordinator
from pilot.core.ids import NodeId, TrainerId
from pilot.core.pool.evidence import headline
from pilot.history.monitor import Monitor
from pilot.history.words import node_count, node_names
from pilot.rundir.journal import Header
from pilot.service.agents.pending import PendingCommands
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.durability.restore import Books, Restored, taken

WAITING_MAX = 64 << 20
"""Journal bytes that may wait in memory for space on the disk: hours of reports from several trainers."""

Perform = Callable[[Command], None]


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
        self._queue: asyncio.Queue[tuple[Future[None], list[Command]]] = asyncio.Queue()
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
        self._note(now_s, event, commands)
        written = self._journal.decided(now_s, event, commands)
        self._queue.put_nowait((written, commands))
        if self._journal.segment_is_long and not self.core.draining:  # the last segment must show that it was drained
            self.begin_segment()
        return written

    def begin_segment(self) -> None:
        """Begin a new segment of the journal, with the present state."""
        self._journal.end_segment(self.clock(), *taken(self.core, self.books, self._journal.last_seq))

    def remark(self, **note: str | float | None) -> None:
        """Journal a note that does not affect the core; most are for people."""
        now_s = self.clock()
        self.books.remark(now_s, note)
        self._journal.note(now_s, dict(note))

    async def run(self, perform: Perform) -> None:
        """Carry out the commands of each decision, in order, once it is on disk; until cancelled.

        Raises
        ------
        JournalError
            The journal cannot be written: stop.
        """
        while True:
            written, commands = await self._queue.get()
            await asyncio.wrap_future(written)
            for command in commands:
                perform(command)

    async def wait_for_change(self) -> None:
        """Wait until something happens other than trainers' steps, which have no consequences."""
        await self._changed.wait()

    def _note(self, now_s: float, event: events.Event, commands: list[Command]) -> None:
        self.books.note(now_s, event, commands)
        tell(event, commands, self.monitor)
        if commands or not isinstance(event, events.Progress):
            self._changed.set()
            self._changed = asyncio.Event()


log = logging.getLogger(__name__)


def tell(event: events.Event, commands: Sequence[Command], monitor: Monitor) -> None:
    """Log what ``event`` and ``commands`` mean; ``monitor`` has processed them already."""
    for line in (*_of_event(event, monitor), *_of_commands(commands)):
        log.info("%s", line)


def _of_event(event: events.Event, monitor: Monitor) -> Iterator[str]:
    match event:
        case events.PlanReady():
            yield from (text for at_s, text in monitor.decisions if at_s == monitor.now_s)
        case events.WorkerReady():
            yield f"{event.trainer}: ready on {event.node}"
        case events.WorkerSlow():
            yield f"{event.trainer}: still starting on {event.node}; the others do not wait for it"
        case events.WorkerExited() if event.cause not in (events.ExitCause.STOPPED, events.ExitCause.UNREAD):
            yield f"{event.trainer}: {event.cause} on {event.node}: {headline(event.detail)}"
        case events.GroupFormed():
            record = monitor.trainers.get(event.trainer)
            nodes = node_count(record.nodes) if record is not None else "no node"
            whence = "" if event.resumed is None else " from a checkpoint" if event.resumed else " from scratch"
            yield f"{event.trainer}: training on {nodes}{whence} at step {event.step}"
        case events.GroupBroken() | events.GroupStalled():
            what = "its group broke" if isinstance(event, events.GroupBroken) else "its group stalls"
            yield f"{event.trainer}: {what}: {headline(event.reason)}"
        case events.ScriptChecked():
            yield f"{event.trainer}: its script, checked on {event.node}: {event.result}: {event.line}"
        case events.GroupPaused():
            yield f"{event.trainer}: paused at step {event.step}"
        case _:
            pass


def _of_commands(commands: Sequence[Command]) -> Iterator[str]:
    starting: dict[TrainerId, list[NodeId]] = {}
    for command in commands:
        if isinstance(command, StartWorker):
            starting.setdefault(command.trainer, []).append(command.node)
    yield from (f"{trainer}: its script starts on {node_names(nodes)}" for trainer, nodes in starting.items())
