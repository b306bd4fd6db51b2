"""Connects the keeper, which knows jobs, with the pool, which knows nodes: how many are wanted, and how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import assert_never

from pilot.history.words import pilots_words
from pilot.provisioning.keeper import KeeperEvent
from pilot.provisioning.keepers import Keepers
from pilot.provisioning.pilot_jobs import EndKnown, JobEnded, JobNoticed, JobSuspended
from pilot.provisioning.retry import Troubled
from pilot.service.agents.roster import Pilot
from pilot.service.service import Service
from pilot.site.pilot_counts import Counts, parse, text_of

log = logging.getLogger(__name__)

PACE_S = 0.5
"""Changes within this time are handled together: counting thousands of jobs takes a while."""

DISMISS_S = 60.0
"""Time limit for cancelling our jobs, beyond the site's grace."""


@dataclass(slots=True, eq=False)
class Autoscaler:
    """Keeps ``pilots`` jobs submitted, of each type; None: as many as plans would use, or as many as before.
    ``reports`` are those of ``keepers``. If the coordinator was ``restarted``, the last ``pilot scale`` counts, not
    ``pilots``.
    """

    service: Service
    keepers: Keepers
    reports: asyncio.Queue[KeeperEvent]
    pilots: Counts | None
    restarted: bool = False
    _too_many: bool = False

    def __post_init__(self) -> None:
        if (scaled := self.service.driver.books.scaled) is None:
            return
        before = None if scaled[0] is None else parse(str(scaled[0]).split(","))
        if (self.restarted or self.pilots is None) and set(before or {}) <= set(self.keepers.by_type):
            self.pilots = before
        if self.pilots != before:
            self.scale(self.pilots)

    def scale(self, pilots: Counts | None) -> Counts | None:
        """Keep this many from now on, also after a restart; None: as many as plans would use. Types that are not named
        keep theirs. Returns the number of each."""
        if pilots is not None and "" not in pilots:
            pilots = {**(self.pilots or {}), **pilots}
        noted = None if pilots is None else pilots.get("", text_of(pilots))
        self.service.driver.remark(pilots=noted, text=f"scaled: keeping {pilots_words(pilots)}")
        self.pilots, self._too_many = pilots, pilots is not None
        return pilots

    def use_again(self, node: str) -> None:
        """Submit pilots again to a node that was set aside because pilots failed there."""
        self.keepers.each(lambda keeper: keeper.clear(node))
        self.service.driver.remark(text=f"{node} was cleared: pilots are submitted there again")

    async def run(self) -> None:
        """Keep the keeper informed until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.keepers.run())
            while True:
                self._too_many = self._too_many and not self._let_go()
                wanted, present = self.wanted_nodes(), self.present_jobs()
                spare, warm_up_s = self.spare_jobs(), self._warm_up_s()
                for name, keeper in self.keepers.by_type.items():
                    keeper.want(wanted.get(name, 0), spare=spare, present=present, warm_up_s=warm_up_s)
                # Not asyncio.wait_for: in Python 3.11 it swallows a cancellation that comes together with the change.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.service.site.poll_s):
                        await self.service.driver.wait_for_change()
                await asyncio.sleep(PACE_S)

    async def listen(self) -> None:
        """Act on the keepers' reports until cancelled, also during :meth:`down`."""
        while True:
            self._act_on(await self.reports.get())
            self.reports.task_done()

    async def down(self) -> list[str]:
        """After :meth:`run` was cancelled: cancel the remaining jobs; returns those that still exist after that."""
        left = await self.keepers.down(DISMISS_S + self.service.site.grace_s)
        await self.reports.join()
        return left

    def _act_on(self, event: KeeperEvent) -> None:
        match event:
            case JobNoticed():
                left_s = None if event.deadline_s is None else max(0.0, event.deadline_s - time.time())
                grace_s = self.service.site.grace_s if left_s is None else left_s
                for pilot in self._of(event.job):
                    self.service.notice(pilot, event.cause, grace_s)
            case EndKnown():
                for pilot in self._of(event.job):
                    self.service.ends(pilot.node, event.end_s)
            case JobSuspended():
                for pilot in self._of(event.job):
                    self.service.lose(pilot.node, f"its job {event.job} is suspended")
            case JobEnded():
                self._ended(event)
            case Troubled():
                self.service.driver.remark(text=event.text)
            case _:
                assert_never(event)

    def wanted_nodes(self) -> dict[str, int]:
        """The number of nodes of each type that the pool should have. Nodes set aside do not count; they stay in the
        pool, so that the queue does not give them to us again.
        """
        core = self.service.driver.core
        if core.draining:
            return {}
        if self.pilots is None:
            return {"": core.wanted_nodes()}
        per_pilot = self.service.site.nodes_per_pilot
        useless = [core.pool.type_of.get(node, "") if "" not in self.pilots else "" for node in core.useless()]
        return {name: count * per_pilot + useless.count(name) for name, count in self.pilots.items()}

    def spare_jobs(self) -> list[str]:
        """Jobs without anything running, or about to run, on any of their nodes. In a drain all leave by themselves."""
        if self.service.driver.core.draining:
            return []
        pool = self.service.driver.core.pool
        used: dict[str, bool] = {}
        for pilot in self.service.roster.pilots.values():
            if pilot.job:
                busy = pilot.node in pool.owner or pilot.node in pool.occupant
                used[pilot.job] = used.get(pilot.job, False) or busy
        return [job for job, busy in used.items() if not busy]

    def _let_go(self) -> bool:
        """After scaling down: if cancelling queued and idle jobs is not enough, the newest jobs leave cleanly. Returns
        whether there are no more than wanted."""
        if self.service.driver.core.draining:
            return True
        spare, wanted = set(self.spare_jobs()), self.wanted_nodes()
        each = self.keepers.by_type.items()
        done = [self._lets_go(keeper.staying(), spare, wanted.get(name, 0)) for name, keeper in each]
        return all(done)

    def _lets_go(self, ours: Sequence[str], spare: Collection[str], nodes: int) -> bool:
        """The same for the jobs of one keeper, which should have so many ``nodes``."""
        wanted = math.ceil(nodes / self.service.site.nodes_per_pilot)
        here = {job: pilots for job in ours if (pilots := self._of(job))}
        busy = sorted((job for job in here if job not in spare), key=lambda job: -max(p.joined_s for p in here[job]))
        for job in busy[: max(0, len(busy) - wanted)]:
            for pilot in here[job]:
                self.service.notice(pilot, "the pool was scaled down", self.service.site.grace_s)
        return len(ours) <= wanted

    def present_jobs(self) -> set[str]:
        """Jobs with a connected agent that answers."""
        pilots = self.service.roster.pilots.values()
        return {p.job for p in pilots if p.job is not None and self._answers(p)}

    def _ended(self, event: JobEnded) -> None:
        """A job is over. Connected agents report their own end."""
        log.info("job %s ended: %s (%s)", event.job, event.ending, event.detail)
        self.service.admission.revoke(event.job)
        for pilot in self._of(event.job):
            if not self._answers(pilot):
                self.service.lose(pilot.node, f"its job {event.job} ended: {event.ending}")

    def _answers(self, pilot: Pilot) -> bool:
        return pilot.here and self.service.driver.clock() - pilot.heard_s <= self.service.site.silent_s

    def _of(self, job: str) -> list[Pilot]:
        return [pilot for pilot in self.service.roster.pilots.values() if pilot.job == job]

    def _warm_up_s(self) -> float:
        """The time that a trainer takes to start on a new node, as far as known."""
        known = self.service.driver.monitor.warm_ups_s
        return median(known) if known else 0.0
