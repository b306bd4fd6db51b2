"""One running coordinator: its parts, what connects them, and its life from a journal to the end of a drain."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from pilot.core.errors import JournalError
from pilot.core.events import EntriesLost
from pilot.core.trainer.spec import TrainerSpec
from pilot.provisioning.keeper import KeeperEvent
from pilot.provisioning.keeper_factory import make_keepers
from pilot.rundir.journal import Contents
from pilot.rundir.rundir import Ended, Lock, RunDir
from pilot.service import process
from pilot.service.agents.admission import Admission
from pilot.service.agents.roster import Roster
from pilot.service.durability import startup
from pilot.service.durability.learned import Learned
from pilot.service.durability.live_driver import Clock, LiveDriver
from pilot.service.durability.restore import Restored, lost_generations, lost_trainers, restore
from pilot.service.durability.startup import PoolIdentity
from pilot.service.durability.upkeep import Upkeep
from pilot.service.planning.autoscaler import Autoscaler
from pilot.service.planning.sampler_process import SamplerProcess
from pilot.service.planning.solver_process import SolverProcess
from pilot.service.requests.api import Api
from pilot.service.requests.launch_store import LaunchStore
from pilot.service.requests.status_view import About, PoolView
from pilot.service.requests.study_store import StudyStore
from pilot.service.service import Service
from pilot.site.hostlist import NodePattern
from pilot.site.pilot_counts import Counts
from pilot.site.site_files import SiteFile

log = logging.getLogger("pilot.service")

ANSWERS_S = 1.0
"""Time for an exiting coordinator to answer earlier requests."""


class Live:
    """One running coordinator. The constructor binds its port and restores its state; :meth:`run` serves.

    The driver takes events into the core and the journal. They come from agents through the service, from users through
    the API, from the batch scheduler through the autoscaler, and from the solver and the sampler. The service performs
    the core's commands.
    """

    def __init__(
        self,
        rundir: RunDir,
        lock: Lock,
        site_file: SiteFile,
        pool: PoolIdentity,
        pilots: Counts | None,
        learned: Learned,
        *,
        restarted: bool = False,
    ) -> None:
        site = self._site = site_file.site
        self._rundir, self._pool = rundir, pool
        self._server = startup.listen(pool, site)
        where = self._where = startup.announce(rundir, pool, site, site_file.path, self._server)
        only = NodePattern.read(site.only_nodes) if site.only_nodes else None
        self._admission = Admission(where, rundir.pilots, site.nodes_per_pilot, only)
        jobs: asyncio.Queue[KeeperEvent] = asyncio.Queue()
        self._keepers = make_keepers(site_file, rundir.pilots, rundir.root, jobs.put_nowait, self._admission)
        self._journal = startup.open_journal(rundir, pool)
        driver = self._driver = LiveDriver(pool.core(), self._journal, Clock(pool.start_s(lock.zero_s)))
        lock.record_zero(driver.clock())
        launches = self._launches = LaunchStore(rundir, pool.name, site.checkpoint_dir)
        studies = StudyStore(rundir, launches)
        self._solver = SolverProcess(pool.settings, rundir.solver, driver.post, lambda text: driver.remark(text=text))
        self._sampler = SamplerProcess(studies, rundir.sampler, driver)
        self._roster = Roster(site)
        self._damage: list[str] = []
        if pool.contents is not None:
            self._restore(pool.contents)
        elif pool.lost:
            driver.remark(text=pool.lost)
        view = PoolView(driver.core, driver.monitor, launches, studies, self._about, driver.clock, self._roster)
        self._api = Api(
            site,
            self._server,
            driver,
            view,
            lambda pilots: self._autoscaler.scale(pilots),
            lambda node: self._autoscaler.use_again(node),
            learned,
        )
        self._service = Service(
            site,
            pool.name,
            self._admission,
            server=self._server,
            driver=driver,
            roster=self._roster,
            launches=launches,
            solver=self._solver,
            sampler=self._sampler,
            requests=self._api,
            jobs=self._keepers,
        )
        self._autoscaler = Autoscaler(self._service, self._keepers, jobs, pilots, restarted)
        self._upkeep = Upkeep(rundir, lock, pool, where, self._journal, driver, launches, self._roster, learned)
        log.info("coordinator %s listens at %s", pool.name, where.endpoint)

    async def run(self) -> Ended:
        """Serve until the pool has drained, or a second signal demands an immediate end. Returns what is left."""
        process.freeze_what_is_loaded()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in process.heeded_signals():
            loop.add_signal_handler(number, self._asked_to_end, number, stopped)
        async with asyncio.TaskGroup() as tasks:
            scaling = tasks.create_task(self._autoscaler.run())
            parts = (self._service, self._solver, self._sampler, self._upkeep)
            serving = [tasks.create_task(part) for part in (self._autoscaler.listen(), *(p.run() for p in parts))]
            await _either(stopped.wait(), self._drained())
            scaling.cancel()
            nodes_left = tuple(self._driver.core.pool.nodes)
            jobs_left = tuple(await self._autoscaler.down())
            await self._api.answered(ANSWERS_S)  # an empty pool may be down before the request is answered
            for task in serving:
                task.cancel()
        await self._upkeep.store_learned()
        answered = all(self._keepers.each(lambda keeper: keeper.answers))
        jobs_unknown = "" if jobs_left or answered else self._keepers.status().trouble
        return Ended(jobs_left=jobs_left, jobs_unknown=jobs_unknown, nodes_left=nodes_left, unsaved=self._unsaved())

    def _unsaved(self) -> tuple[str, ...]:
        """Trainers that paused but could not write their state."""
        trainers = self._driver.core.trainers.values()
        return tuple(t.id for t in trainers if t.outcome is None and t.failed_writes and not t.saved)

    def close(self) -> None:
        """Flush the journal and the socket. The connection file of a drained pool is removed."""
        self._server.close()
        self._journal.close()
        if self._driver.core.draining:
            self._admission.revoke_all()
            startup.withdraw(self._rundir)

    async def wait_closed(self) -> None:
        """After :meth:`close`: wait until everything was sent to peers."""
        await self._server.wait_closed()

    def _restore(self, contents: Contents) -> None:
        """Continue from the end of the journal: pilots may come back, and pending commands are still pending."""
        driver, now_s = self._driver, self._driver.clock()
        down_s = now_s - contents.last_s
        restored = restore(contents, self._pool.core)
        driver.adopt(restored)
        driver.pending.restart(now_s)
        text = f"the coordinator was restarted after {down_s:.1f} s"
        if self._pool.reopened or driver.core.draining:  # if it was not drained, that it came up again was lost
            driver.reopen(self._pool.header, pilots_come_back=self._pool.known)
            text = f"the pool is up again; it was down for {down_s:.1f} s"
        self._damage = self._found_damage(restored)
        self._roster.expect(now_s, driver.core.pool.nodes)
        self._roster.gone.update(driver.books.lost)
        for trainer in driver.core.trainers.values():
            if trainer.outcome is None:
                self._read_back(trainer.spec)
        if driver.pending.solve is not None:
            self._solver.solve(driver.pending.solve)
        for report in driver.pending.telling.values():
            self._sampler.perform(report)
        for question in driver.pending.asking.values():
            self._sampler.perform(question)
        if self._pool.lost:
            driver.remark(text=f"pilots of before the restart cannot come back, they save and leave: {self._pool.lost}")
        for line in self._damage:
            driver.remark(text=line)
        driver.remark(text=text, down_s=down_s)
        if self._damage:
            driver.begin_segment()  # with a snapshot, so that the next restart need not read what is damaged
        log.info("%d nodes may come back", len(driver.core.pool))

    def _read_back(self, trainer: TrainerSpec) -> None:
        """If this cannot be read now, the pool continues anyway: it may be readable when a worker is to be started."""
        try:
            self._launches.launch(trainer)
        except JournalError as error:
            self._driver.remark(trainer=trainer.trainer, text=f"it continues with its present workers: {error}")

    def _found_damage(self, restored: Restored) -> list[str]:
        """Lines about damaged and lost files. Generations that the core has lost are never granted again."""
        core = self._driver.core
        generations = lost_generations(core, self._launches, restored.generations)
        if generations or restored.missing:
            self._driver.post(EntriesLost(generations))
        lost = lost_trainers(self._rundir, core, self._pool.header.started_unix_s)
        groups = [f"{trainer} goes on after generation {generation}" for trainer, generation in generations]
        unknown = [f"the journal lacks the newest groups: {', '.join(groups)}"] if groups else []
        return [*restored.flaws, *unknown, *([lost] if lost else [])]

    def _asked_to_end(self, number: int, stopped: asyncio.Event) -> None:
        if not self._driver.core.draining:
            self._api.drain(signal.Signals(number).name)
        elif number != signal.SIGHUP:  # not a request: a terminal that closes sends it twice, systemd after SIGTERM
            log.warning("stopped by a second signal")
            stopped.set()

    def _about(self) -> About:
        return About(
            self._pool.name,
            self._site.name,
            self._where.endpoint,
            str(self._rundir.root),
            self._pool.header.started_unix_s,
            keeper=self._keepers.status(),
            keepers=self._keepers.statuses() if self._site.node_types else [],
            objective=self._pool.settings.objective,
            only_nodes=self._site.only_nodes or "",
            trouble=self._driver.trouble,
            damage=self._damage,
        )

    async def _drained(self) -> None:
        """Wait until no pilot is left, including registered ones that the core does not know yet."""
        while not self._driver.core.draining or self._driver.core.pool.nodes or self._roster.pilots:
            await self._driver.wait_for_change()


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
