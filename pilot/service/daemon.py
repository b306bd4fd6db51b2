"""The coordinator's process: ``python -m pilot.service.daemon``. ``pilot up`` runs it as a daemon."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from pilot.core.errors import JournalError, NoRestartError, PilotError, UserError
from pilot.core.events import EntriesLost
from pilot.core.ids import StudyId
from pilot.core.study.study import Study
from pilot.core.trainer.spec import TrainerSpec
from pilot.host.printable import printable
from pilot.planners.one_thread import load_numpy
from pilot.protocol.gate import allow_many_files
from pilot.provisioning.keeper import KeeperEvent
from pilot.provisioning.keeper_factory import make_keeper
from pilot.rundir.heartbeat import BEAT_S
from pilot.rundir.journal import Contents
from pilot.rundir.rundir import Ended, Lock, RunDir, default_path, learned_path, remember, write_end
from pilot.service import process
from pilot.service.agents.admission import Admission
from pilot.service.agents.roster import Roster
from pilot.service.durability import housekeeping, startup
from pilot.service.durability.learned import Learned
from pilot.service.durability.live_driver import Clock, LiveDriver
from pilot.service.durability.restore import Restored, lost_generations, lost_trainers, restore
from pilot.service.durability.startup import PoolIdentity
from pilot.service.planning.autoscaler import Autoscaler
from pilot.service.planning.sampler_process import SamplerProcess
from pilot.service.planning.solver_process import SolverProcess
from pilot.service.requests.api import Api
from pilot.service.requests.launch_store import LaunchStore
from pilot.service.requests.status_view import About
from pilot.service.requests.study_store import StudyStore
from pilot.service.service import Service
from pilot.service.settings import Settings, config_of
from pilot.site.hostlist import NodePattern
from pilot.site.site_files import SiteFile, load_site_file

log = logging.getLogger("pilot.service")

ANSWERS_S = 1.0
"""How long an exiting coordinator stays to answer earlier requests."""

TIMES_MISSED = 2
"""How often in a row the journal's file must not be there, or not whole, before it is begun again: a shared file system
may not show a file for a moment."""

_HARMED = "was removed or damaged while the pool was up"

LEARNED_S = 30.0
"""How often to store what trainers measured; a killed coordinator loses no more than this."""


class Live:
    """One running coordinator. The constructor binds its port and restores its state; :meth:`run` serves."""

    def __init__(
        self,
        rundir: RunDir,
        lock: Lock,
        site_file: SiteFile,
        pool: PoolIdentity,
        pilots: int | None,
        learned: Learned,
        *,
        restarted: bool = False,
    ) -> None:
        self._learned = learned
        site = self._site = site_file.site
        self._rundir = rundir
        self._lock = lock
        self._pool = pool
        news: asyncio.Queue[KeeperEvent] = asyncio.Queue()
        self._server = startup.listen(pool, site)
        where = self._where = startup.announce(rundir, pool, site, site_file.path, self._server)
        only = NodePattern.read(site.only_nodes) if site.only_nodes else None
        self._admission = Admission(where, rundir.pilots, site.nodes_per_pilot, only)
        self._keeper = make_keeper(site_file, rundir.pilots, rundir.root, news.put_nowait, self._admission)
        self._endpoint = where.endpoint
        self._journal = startup.open_journal(rundir, pool)
        self._driver = LiveDriver(pool.core(), self._journal, Clock(pool.start_s(lock.zero_s)))
        lock.say_zero(self._driver.clock())
        self._launches = LaunchStore(rundir, pool.name, site.checkpoint_dir)
        self._solver = SolverProcess(pool.settings, rundir.solver, self._driver.post, self._tell)
        self._studies = StudyStore(rundir, self._launches)
        self._sampler = SamplerProcess(self._studies, self._study, rundir.sampler, self._driver.post)
        self._roster = Roster(site)
        self._damage: list[str] = []
        if pool.contents is not None:
            self._restore(pool.contents)
        elif pool.lost:
            self._tell(pool.lost)
        books = self._roster, self._launches, self._studies
        self._api = Api(site, self._server, self._driver, *books, self._about, self._scale, learned)
        self._service = Service(
            site,
            pool.name,
            self._admission,
            server=self._server,
            driver=self._driver,
            roster=self._roster,
            launches=self._launches,
            solver=self._solver,
            sampler=self._sampler,
            requests=self._api,
            jobs=self._keeper,
        )
        scaled = self._driver.books.scaled
        if scaled is not None and (restarted or pilots is None):
            pilots = scaled[0]
        self._autoscaler = Autoscaler(site, self._service, self._driver, self._admission, self._keeper, news, pilots)
        if scaled is not None and pilots != scaled[0]:
            self._autoscaler.scale(pilots)
        log.info("coordinator %s listens at %s", pool.name, where.endpoint)

    async def run(self) -> Ended:
        """Serve until the pool has drained, or a second signal demands an immediate end. Returns what is left."""
        process.freeze_what_is_loaded()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _heeded():
            loop.add_signal_handler(number, self._asked_to_end, number, stopped)
        async with asyncio.TaskGroup() as tasks:
            scaling = tasks.create_task(self._autoscaler.run())
            served = [self._service.run(), self._solver.run(), self._sampler.run(), self._autoscaler.listen()]
            served += [self._beat(), self._keep_files(), self._tidy(), self._keep_learned()]
            serving = [tasks.create_task(part) for part in served]
            await _either(stopped.wait(), self._drained())
            scaling.cancel()
            nodes_left = tuple(self._driver.core.pool.nodes)
            jobs_left = tuple(await self._autoscaler.down())
            await self._api.answered(ANSWERS_S)  # an empty pool may be down before the request is answered
            for task in serving:
                task.cancel()
        await self._write_learned()
        jobs_unknown = "" if jobs_left or self._keeper.answers else self._keeper.status().trouble
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
        self._damage = self._look_for_damage(restored)
        self._roster.expect(now_s, driver.core.pool.nodes)
        self._roster.gone.update(driver.books.lost)
        for trainer in driver.core.trainers.values():
            if trainer.outcome is None:
                self._read_back(trainer.spec)
        if driver.pending.solve is not None:
            self._solver.solve(driver.pending.solve)
        for told in driver.pending.telling.values():
            self._sampler.perform(told)
        for asked in driver.pending.asking.values():
            self._sampler.perform(asked)
        if self._pool.lost:
            self._tell(f"pilots of before the restart cannot come back, they save and leave: {self._pool.lost}")
        for what in self._damage:
            self._tell(what)
        driver.remark(text=text, down_s=down_s)
        if self._damage:
            driver.begin_segment()  # with a snapshot, so that the next restart need not read what is damaged
        log.warning("%s; %d nodes may come back", text, len(driver.core.pool))

    def _read_back(self, trainer: TrainerSpec) -> None:
        """If this cannot be read now, the pool continues anyway: it may be readable when a worker is to be started."""
        try:
            self._launches.launch(trainer)
        except JournalError as error:
            log.error("%s", error)
            self._driver.remark(trainer=trainer.trainer, text=f"it continues with its present workers: {error}")

    def _look_for_damage(self, restored: Restored) -> list[str]:
        """What is damaged or lost, for people. Generations that the core has lost are never granted again."""
        core = self._driver.core
        generations = lost_generations(core, self._launches, restored.generations)
        if generations or restored.missing:
            self._driver.post(EntriesLost(generations))
        lost = lost_trainers(self._rundir, core, self._pool.header.started_unix_s)
        told = [f"{trainer} goes on after generation {generation}" for trainer, generation in generations]
        unknown = [f"the journal lacks the newest groups: {', '.join(told)}"] if told else []
        return [*restored.flaws, *unknown, *([lost] if lost else [])]

    def _study(self, study: StudyId) -> Study | None:
        return self._driver.core.studies.get(study)

    def _tell(self, text: str) -> None:
        log.warning("%s", text)
        self._driver.remark(text=text)

    def _asked_to_end(self, number: int, stopped: asyncio.Event) -> None:
        if not self._driver.core.draining:
            self._api.drain(signal.Signals(number).name)
        elif number != signal.SIGHUP:  # nobody's word: a terminal that closes sends it twice, systemd after SIGTERM
            log.warning("stopped by a second signal")
            stopped.set()

    def _scale(self, pilots: int | None) -> None:
        self._autoscaler.scale(pilots)

    def _about(self) -> About:
        return About(
            self._pool.name,
            self._site.name,
            self._endpoint,
            str(self._rundir.root),
            self._pool.header.started_unix_s,
            keeper=self._keeper.status(),
            objective=self._pool.settings.objective,
            only_nodes=self._site.only_nodes or "",
            trouble=self._driver.trouble,
            damage=self._damage,
        )

    async def _beat(self) -> None:
        """Show other hosts that this one owns the run directory; if writing fails, try again next time."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await asyncio.to_thread(self._lock.beat)
            except (OSError, RuntimeError) as error:  # no space, or no thread
                log.warning("cannot show other hosts that this coordinator is alive: %s", error)

    async def _keep_files(self) -> None:
        """Write again what somebody removes or damages of the files without which a restart would lose the pool."""
        missed = 0
        while True:
            await asyncio.sleep(BEAT_S)
            if self._driver.core.draining:  # it removes some itself, and its journal's last segment shows the drain
                continue
            put: list[str] = []
            whole: bool | None = None
            with suppress(OSError, RuntimeError, UserError):  # a disk that fails for a while, or no thread for us
                put = await asyncio.to_thread(startup.put_back, self._rundir, self._pool, self._where)
                whole = await asyncio.to_thread(self._journal.is_whole)
            if put:
                self._tell(f"{' and '.join(put)} {_HARMED}; written again")
            if whole is None:
                continue
            if whole and missed >= TIMES_MISSED:  # only now is it on the disk
                again = "begun again: the pool goes on, but pilot report may lack what was before"
                self._tell(f"{self._rundir.journal.name} {_HARMED}; {again}")
            missed = 0 if whole else missed + 1
            if missed >= TIMES_MISSED:
                self._driver.begin_segment()

    async def _tidy(self) -> None:
        """Limit the size of what pilots leave behind, and of our own log."""
        while True:
            specs = [trainer.spec for trainer in self._driver.core.trainers.values()]
            logs = [(self._launches.directory(spec) / "logs", spec.uid) for spec in specs]
            here = set(self._roster.pilots)
            with suppress(RuntimeError):  # no thread can be started now
                await asyncio.to_thread(housekeeping.tidy, self._rundir.pilots, logs, here)
                await asyncio.to_thread(process.rotate, self._rundir.log)
            await asyncio.sleep(housekeeping.EVERY_S)

    async def _keep_learned(self) -> None:
        """Store what trainers measured, for later pools."""
        while True:
            await asyncio.sleep(LEARNED_S)
            await self._write_learned()

    async def _write_learned(self) -> None:
        news = self._learned.news(self._driver.core.trainers.values())
        with suppress(RuntimeError):  # no thread can be started now
            await asyncio.to_thread(self._learned.write, news)

    async def _drained(self) -> None:
        """Wait until no pilot is left, including registered ones that the core does not know yet."""
        while not self._driver.core.draining or self._driver.core.pool.nodes or self._roster.pilots:
            await self._driver.wait_for_change()


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()


def main(arguments: list[str] | None = None) -> int:
    """Run a coordinator in the foreground; returns its exit status."""
    os.umask(0o077)
    process.return_large_blocks()
    allow_many_files()
    _children_without_threads()
    for number in _heeded():
        signal.signal(number, _stop_starting)
    screen = os.dup(2)
    options = _parser().parse_args(arguments)
    owned = None
    try:
        site_file = load_site_file(options.site).on(options.only_nodes)
        rundir = RunDir(options.run_dir or default_path(site_file.site.name))
        learned = Learned.read(learned_path(site_file.site.name), site_file.site.name)
        settings = _settings(options, learned)
        config_of(startup.configured(site_file.site, settings))  # reports mistakes before anything is changed
        rundir.create()
        lock = Lock(rundir)  # held until the process ends
        process.begin(rundir.log)
        rundir.ended.unlink(missing_ok=True)
        owned = rundir
        remember(rundir.root)
        load_numpy()  # for plans and the status
        _end(rundir, asyncio.run(_serve(rundir, lock, site_file, settings, options, learned)))
        with suppress(OSError):
            lock.leave()
    except BaseExceptionGroup as group:
        return _fail(_first(group), screen, owned)
    except KeyboardInterrupt as stop:
        again = "no pool was changed; pilot up continues one that is here"
        return _fail(UserError(f"the coordinator was stopped by {stop} while starting; {again}"), screen, owned)
    except Exception as error:
        status = _fail(error, screen, owned)
        if options.go_on and not isinstance(error, NoRestartError):
            return PilotError.exit_status  # what worked before may work again (a disk, a quota): the supervisor tries
        return status
    return 0


def _heeded() -> list[signal.Signals]:
    """The signals that ask the coordinator to end; under nohup, a terminal that closes does not."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hang_up]


def _stop_starting(number: int, _frame: object) -> NoReturn:
    """A signal during the start, for example in the middle of a restart: exit, leaving everything as it was.

    Not an ``Exception``, so that it is not mistaken for a journal entry that cannot be applied.
    """
    raise KeyboardInterrupt(signal.Signals(number).name)


def _children_without_threads() -> None:
    """Before Python 3.12, asyncio starts a thread for each child process, and login nodes limit threads."""
    if sys.version_info < (3, 12):
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())


async def _serve(
    rundir: RunDir,
    lock: Lock,
    site_file: SiteFile,
    settings: Settings,
    options: argparse.Namespace,
    learned: Learned,
) -> Ended:
    pool = startup.open_pool(rundir, site_file.site, settings, anew=not options.go_on, fresh=options.fresh)
    live = Live(rundir, lock, site_file, pool, options.pilots, learned, restarted=options.go_on)
    try:
        return await live.run()
    finally:
        live.close()
        await live.wait_closed()


def _end(rundir: RunDir, how: Ended) -> None:
    """Report the end in the log for people, and in a file for ``pilot down``."""
    for problem in how.problems():
        log.error("%s", problem)
    write_end(rundir.ended, how)


def _settings(options: argparse.Namespace, learned: Learned) -> Settings:
    expected = learned.priors
    plain = (expected.ln_a.mean, expected.ln_a.sd, expected.ln_b.mean, expected.ln_b.sd) if learned.found else None
    try:
        given = msgspec.json.decode(options.settings, type=Settings)
    except msgspec.DecodeError as error:
        raise UserError(f"--settings: {error}") from None
    return msgspec.structs.replace(given, priors=plain)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pilot.service.daemon", description=__doc__)
    parser.add_argument("--run-dir", type=Path, help="default: $PILOT_RUN_DIR, or pilot/<site> in the state directory")
    parser.add_argument("--site", required=True, help="a site's name, or the path of a site file")
    parser.add_argument("--only-nodes", help="which nodes pilots may run on; default: as the site says")
    parser.add_argument("--pilots", type=int, help="pilots to keep; default: as many as the trainers can use")
    parser.add_argument("--go-on", action="store_true", help="only continue a pool that did not end cleanly")
    parser.add_argument("--fresh", action="store_true", help="start a new pool; the previous one is kept aside")
    parser.add_argument("--settings", default="{}", help="a pilot.service.settings.Settings as JSON")
    return parser


def _fail(error: BaseException, screen: int, rundir: RunDir | None = None) -> int:
    """Print one line, in case somebody is looking; the traceback of an internal error goes to the log."""
    failure = str(error) if isinstance(error, PilotError) else f"{type(error).__name__}: {error}"
    more = f"; see {rundir.log}" if rundir is not None else ""
    line, status = f"pilot: the coordinator failed ({failure}){more}", 1
    if isinstance(error, PilotError):
        line, status = f"pilot: {error}", error.exit_status
    if rundir is not None:
        log.critical("%s", error, exc_info=None if isinstance(error, PilotError) else error)
        with suppress(OSError):
            write_end(rundir.ended, Ended(failure=failure))
    with suppress(OSError):
        os.write(screen, f"{printable(line)}\n".encode())
    return status


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a group of tasks; the others' cancellations are ignored."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


if __name__ == "__main__":
    sys.exit(main())
