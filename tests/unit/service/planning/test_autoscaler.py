"""How many pilots are wanted, and how the keeper's news affects the pilots of a job."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pilot import __version__
from pilot.core.curves.curve import Curve
from pilot.core.events import (
    DrainRequested,
    ExitCause,
    NodeCleared,
    PlanReady,
    PoolChanged,
    TrainerSubmitted,
    WorkerExited,
)
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.pool.evidence import SetAside
from pilot.core.pool.node_type import NodeType
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol import wire
from pilot.protocol.connection import Connection
from pilot.protocol.pool_status import KeeperStatus
from pilot.provisioning.keeper import Keeper, KeeperEvent
from pilot.provisioning.keepers import Keepers
from pilot.provisioning.pilot_jobs import EndKnown, JobEnded, JobNoticed
from pilot.provisioning.retry import Troubled
from pilot.provisioning.scheduler import JobEnd, SchedulerThread
from pilot.rundir.journal import FORMAT, Header
from pilot.service.agents.admission import Admission
from pilot.service.agents.roster import Pilot, Roster
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.durability.live_driver import Clock, LiveDriver
from pilot.service.planning.autoscaler import Autoscaler
from pilot.service.settings import core_of
from pilot.site.site import Site
from tests.unit.provisioning.scripted import Scripted
from tests.unit.service.agents.test_roster import peer
from tests.unit.service.stage import A, B

SITE = Site(name="s", scheduler="slurm", launcher="srun", nodes_per_pilot=2, silent_s=10).replace(poll_s=0.02)
LIMIT_S = 30.0


class Bench:
    """An autoscaler on a real core, driver and keeper; records which pilots are given notice or lost."""

    def __init__(self, folder: Path) -> None:
        fields = msgspec.to_builtins(SITE)
        header = Header(FORMAT, __version__, "pool", time.time(), {"planner": "dp"}, fields)
        self.journal = JournalWriter.create(folder / "journal.jsonl", header)
        self.driver = LiveDriver(core_of(header), self.journal, Clock())
        self.roster = Roster(SITE)
        self.noticed: list[tuple[NodeId, str, float]] = []
        self.lost: list[tuple[NodeId, str]] = []
        self.known_ends: dict[NodeId, float | None] = {}
        self.scheduler = Scripted()
        self.news: asyncio.Queue[KeeperEvent] = asyncio.Queue()
        thread = SchedulerThread(self.scheduler.submit, self.scheduler)
        self.keeper = Keeper(SITE, thread, self.news.put_nowait)
        self.keepers = Keepers({"": self.keeper})
        self.peer = peer()
        self.site = SITE
        self.admission = Admission(Connection("tcp://127.0.0.1:1", "0" * 64, "u", "e", "pool", "0"), folder, 1)
        self.autoscaler = Autoscaler(self, self.keepers, self.news, None)

    def notice(self, pilot: Pilot, cause: str, grace_s: float) -> None:
        self.noticed.append((pilot.node, cause, grace_s))

    def lose(self, node: NodeId, why: str) -> None:
        self.lost.append((node, why))

    def ends(self, node: NodeId, end_s: float | None) -> None:
        self.known_ends[node] = end_s

    def joins(self, node: NodeId, job: str) -> None:
        """A pilot of ``job`` registers."""
        hello = wire.Hello(node, "secret", "h", "127.0.0.1", 1, job=job)
        self.roster.register(self.driver.clock(), node, self.peer, hello)

    def hear(self, *events: KeeperEvent) -> None:
        """Let the autoscaler act on the keeper's ``events``."""

        async def listen() -> None:
            listening = asyncio.create_task(self.autoscaler.listen())
            for event in events:
                self.news.put_nowait(event)
            await asyncio.wait_for(self.news.join(), LIMIT_S)
            listening.cancel()

        asyncio.run(listen())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.journal.close()


def test_as_many_nodes_are_wanted_as_a_plan_would_use(bench: Bench) -> None:
    assert sum(bench.autoscaler.wanted_nodes().values()) == 0
    gains_until_4 = Curve.of([(1, 100.0), (4, 300.0), (8, 290.0), (64, 250.0)])
    spec = TrainerSpec(TrainerId("flat"), 1, 64, gains_until_4)
    bench.driver.post(TrainerSubmitted(spec))
    bench.driver.post(TrainerSubmitted(replace(spec, trainer=TrainerId("never flat"), curve=None, max_nodes=5)))
    bench.driver.post(TrainerSubmitted(replace(spec, trainer=TrainerId("large"), min_nodes=6)))
    assert sum(bench.autoscaler.wanted_nodes().values()) == 4 + 5 + 6
    bench.autoscaler.scale({"": 3})
    assert sum(bench.autoscaler.wanted_nodes().values()) == 3 * SITE.nodes_per_pilot
    bench.driver.post(DrainRequested("pilot down"))
    assert sum(bench.autoscaler.wanted_nodes().values()) == 0


@pytest.mark.parametrize(
    ("given", "restarted", "kept"), [(None, False, 3), (5, False, 5), (5, True, 3), (None, True, 3)]
)
def test_the_last_scale_counts_after_a_restart_and_if_no_number_is_given(
    tmp_path: Path, given: int | None, restarted: bool, kept: int
) -> None:
    bench = Bench(tmp_path)
    bench.autoscaler.scale({"": 3})
    again = Autoscaler(bench, bench.keepers, bench.news, given and {"": given}, restarted)
    assert sum(again.wanted_nodes().values()) == kept * SITE.nodes_per_pilot
    assert bench.driver.books.scaled == (kept,)
    bench.journal.close()


def test_a_node_that_is_set_aside_is_replaced_until_it_is_cleared(bench: Bench) -> None:
    bench.driver.post(TrainerSubmitted(TrainerSpec(TrainerId("a"), 1, 2)))
    bench.driver.post(PoolChanged(joined=(A, B)))
    solve = bench.driver.pending.solve
    assert solve is not None
    bench.driver.post(PlanReady(solve.plan_id, Plan(PlanStatus.OPTIMAL, ((TrainerId("a"), 2),), 1.0)))
    bench.driver.post(WorkerExited(TrainerId("a"), A, ExitCause.RAISED, "no /data on this node"))
    assert sum(bench.autoscaler.wanted_nodes().values()) == 3
    bench.driver.post(NodeCleared(A))
    assert sum(bench.autoscaler.wanted_nodes().values()) == 2


def test_the_pilots_of_a_job_that_is_to_be_preempted_are_given_notice(bench: Bench) -> None:
    for node, job in ((A, "7"), (B, "8")):
        bench.joins(node, job)
    bench.hear(JobNoticed("7", time.time() + 60), JobNoticed("8", time.time() - 5))
    (first, cause, left_s), second = bench.noticed
    assert (first, second) == (A, (B, cause, 0))
    assert (cause, 0 < left_s <= 60) == ("the scheduler preempts it", True)


def test_the_known_end_of_a_job_is_that_of_all_its_nodes(bench: Bench) -> None:
    for node in (A, B):
        bench.joins(node, "7")
    bench.hear(EndKnown("7", 90.0), EndKnown("elsewhere", 50.0))
    assert bench.known_ends == {A: 90.0, B: 90.0}


def test_of_a_job_that_is_over_those_pilots_are_lost_that_cannot_speak_for_themselves(bench: Bench) -> None:
    bench.joins(A, "7")
    bench.joins(B, "7")
    bench.roster.pilots[B].away_s = 0.0
    bench.hear(JobEnded("7", JobEnd.PREEMPTED, "requeued"))
    assert bench.lost == [(B, "its job 7 ended: preempted")]
    assert bench.driver.monitor.pool_remarks == []


def test_trouble_is_a_remark(bench: Bench) -> None:
    bench.hear(Troubled("squeue does not answer"))
    assert bench.driver.monitor.pool_remarks == ["squeue does not answer"]


def test_what_ends_while_it_is_taken_down_is_acted_on(bench: Bench) -> None:
    bench.driver.post(TrainerSubmitted(TrainerSpec(TrainerId("a"), 1, 2)))

    async def play() -> list[str]:
        listening = asyncio.create_task(bench.autoscaler.listen())
        running = asyncio.create_task(bench.autoscaler.run())
        await until(lambda: bench.keeper.status().pending == 1)
        bench.joins(A, "0")
        bench.roster.pilots[A].away_s = 0.0
        return await taken_down(bench, running, listening)

    assert asyncio.run(play()) == []
    assert bench.lost == [(A, "its job 0 ended: cancelled")]
    assert bench.news.empty()


async def taken_down(bench: Bench, running: asyncio.Task[None], listening: asyncio.Task[None]) -> list[str]:
    """The jobs left after it was taken down."""
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    left = await bench.autoscaler.down()
    listening.cancel()
    return left


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0.01)


class Typed(Bench):
    """The same on a site with two types of nodes; ``queues`` has the queue of each."""

    def __init__(self, folder: Path, pilots: dict[str, int] | None = None) -> None:
        super().__init__(folder)
        self.queues = {name: Scripted() for name in ("a100", "a40")}
        threads = {name: SchedulerThread(queue.submit, queue) for name, queue in self.queues.items()}
        self.keepers = Keepers({name: Keeper(SITE, thread, self.news.put_nowait) for name, thread in threads.items()})
        self.autoscaler = Autoscaler(self, self.keepers, self.news, pilots)


def test_each_type_of_nodes_has_its_own_number_of_pilots_and_down_leaves_none(tmp_path: Path) -> None:
    bench = Typed(tmp_path, {"a100": 1, "a40": 2})

    async def play() -> list[str]:
        listening = asyncio.create_task(bench.autoscaler.listen())
        running = asyncio.create_task(bench.autoscaler.run())
        await until(lambda: [status.pending for status in bench.keepers.statuses()] == [1, 2])
        assert (bench.keepers.status().pending, bench.keepers.status().wanted_nodes) == (3, 6)
        bench.autoscaler.scale({"a40": 0})
        await until(lambda: [status.pending for status in bench.keepers.statuses()] == [1, 0])
        return await taken_down(bench, running, listening)

    assert asyncio.run(play()) == []
    assert bench.driver.books.scaled == ("a100:1,a40:0",)
    assert [status.pending for status in bench.keepers.statuses()] == [0, 0]
    bench.journal.close()


@pytest.mark.parametrize(("given", "restarted", "kept"), [(8, False, 8), (8, True, 1)])
def test_the_number_of_each_type_is_known_after_a_restart(
    tmp_path: Path, given: int, restarted: bool, kept: int
) -> None:
    bench = Typed(tmp_path, {"a100": 4, "a40": 2})
    bench.autoscaler.scale({"a100": 1})
    again = Autoscaler(bench, bench.keepers, bench.news, {"a100": given}, restarted)
    assert again.wanted_nodes()["a100"] == kept * SITE.nodes_per_pilot
    bench.journal.close()


def test_numbers_of_types_that_the_site_no_longer_has_are_forgotten(tmp_path: Path) -> None:
    bench = Typed(tmp_path, {"a100": 4, "a40": 2})
    bench.autoscaler.scale({"a100": 1})
    one = Keepers({"": bench.keeper})
    assert Autoscaler(bench, one, bench.news, None, restarted=True).pilots is None
    bench.journal.close()


def test_what_is_told_of_all_types_together_names_them() -> None:
    class Told:
        def __init__(self, **status: object) -> None:
            self.told = KeeperStatus(**status)

        def status(self) -> KeeperStatus:
            return self.told

    keepers = Keepers(
        {
            "a100": Told(pending=1, running=2, waited_s=5.0, trouble="no answer", idle_nodes=1, endings={"failed": 1}),
            "a40": Told(running=3, waited_s=9.0, expected_unix_s=7.0, others=4, endings={"failed": 2, "preempted": 1}),
        }
    )
    assert keepers.status() == KeeperStatus(
        pending=1,
        running=5,
        waited_s=9.0,
        expected_unix_s=7.0,
        others=4,
        idle_nodes=1,
        endings={"failed": 3, "preempted": 1},
        trouble="a100: no answer",
    )
    assert [status.type for status in keepers.statuses()] == ["a100", "a40"]


def test_a_node_that_is_set_aside_is_replaced_by_one_of_its_type(tmp_path: Path) -> None:
    bench = Typed(tmp_path, {"a100": 1, "a40": 1})
    types = ((A, NodeType("a100")), (B, NodeType("a40")))
    bench.driver.post(PoolChanged(joined=(A, B), types=types))
    bench.driver.core.pool.aside[B] = SetAside(1e9, "no /data")
    assert bench.autoscaler.wanted_nodes() == {"a100": SITE.nodes_per_pilot, "a40": SITE.nodes_per_pilot + 1}
    bench.journal.close()
