"""The coordinator's periodic work: it shows that it is alive, restores its own files, limits what pilots leave behind,
and stores what trainers measured. A disk that fails for a while ends none of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from pilot.core.errors import UserError
from pilot.protocol.connection import Connection
from pilot.rundir.heartbeat import BEAT_S
from pilot.rundir.rundir import Lock, RunDir
from pilot.service import process
from pilot.service.agents.roster import Roster
from pilot.service.durability import housekeeping, startup
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.durability.learned import Learned
from pilot.service.durability.live_driver import LiveDriver
from pilot.service.durability.startup import PoolIdentity
from pilot.service.requests.launch_store import LaunchStore

log = logging.getLogger(__name__)

TIMES_MISSED = 2
"""The journal's file is begun again if it is missing or incomplete this often in a row: a shared file system may not
show a file for a moment."""

LEARNED_S = 30.0
"""Pause between two times that measurements are stored; a killed coordinator loses no more than this."""

_HARMED = "was removed or damaged while the pool was up"


@dataclass(slots=True)
class Upkeep:
    """Everything of one pool that needs attention. ``_missed``: how often the journal's file was not complete."""

    rundir: RunDir
    lock: Lock
    pool: PoolIdentity
    where: Connection
    journal: JournalWriter
    driver: LiveDriver
    launches: LaunchStore
    roster: Roster
    learned: Learned
    _missed: int = 0

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_every(BEAT_S, self._beat))
            tasks.create_task(_every(BEAT_S, self._restore_files))
            tasks.create_task(_every(housekeeping.EVERY_S, self._tidy, at_once=True))
            tasks.create_task(_every(LEARNED_S, self.store_learned))

    async def store_learned(self) -> None:
        """Store what trainers measured, for later pools."""
        found = self.learned.changes(self.driver.core.trainers.values())
        with suppress(RuntimeError):  # no thread can be started now
            await asyncio.to_thread(self.learned.write, found)

    async def _beat(self) -> None:
        """Show other hosts that this one owns the run directory; if writing fails, try again next time."""
        try:
            await asyncio.to_thread(self.lock.beat)
        except (OSError, RuntimeError) as error:  # no space, or no thread
            log.warning("cannot show other hosts that this coordinator is alive: %s", error)

    async def _restore_files(self) -> None:
        """Write files again that somebody removed or damaged, and without which a restart would lose the pool."""
        if self.driver.core.draining:  # it removes some itself, and its journal's last segment shows the drain
            return
        with suppress(OSError, RuntimeError, UserError):  # a disk that fails for a while, or no thread
            if put := await asyncio.to_thread(startup.put_back, self.rundir, self.pool, self.where):
                self.driver.remark(text=f"{' and '.join(put)} {_HARMED}; written again")
            self._check_journal(complete=await asyncio.to_thread(self.journal.is_complete))

    def _check_journal(self, *, complete: bool) -> None:
        if complete and self._missed >= TIMES_MISSED:  # only now is it on the disk
            again = "begun again: the pool goes on, but pilot report may lack what was before"
            self.driver.remark(text=f"{self.rundir.journal.name} {_HARMED}; {again}")
        self._missed = 0 if complete else self._missed + 1
        if self._missed >= TIMES_MISSED:
            self.driver.begin_segment()

    async def _tidy(self) -> None:
        """Limit the size of what pilots leave behind, and of our own log."""
        specs = [trainer.spec for trainer in self.driver.core.trainers.values()]
        logs = [(self.launches.directory(spec) / "logs", spec.uid) for spec in specs]
        here = set(self.roster.pilots)
        with suppress(RuntimeError):  # no thread can be started now
            await asyncio.to_thread(housekeeping.tidy, self.rundir.pilots, logs, here)
            await asyncio.to_thread(process.rotate, self.rundir.log)


async def _every(pause_s: float, act: Callable[[], Awaitable[None]], *, at_once: bool = False) -> None:
    if at_once:
        await act()
    while True:
        await asyncio.sleep(pause_s)
        await act()
