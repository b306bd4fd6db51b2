"""The keeper's loop: with real local processes where possible, with scripted answers where a scheduler must fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import psutil
import pytest

from pilot.core.errors import SubmitError, UserError
from pilot.host.proc import kill_marked, marked
from pilot.protocol.connection import Connection
from pilot.provisioning.keeper import Keeper, KeeperEvent, pool_name
from pilot.provisioning.keeper_factory import make_keeper
from pilot.provisioning.pilot_jobs import JobEnded
from pilot.provisioning.provider import PilotProvider
from pilot.provisioning.retry import Troubled, Troubles
from pilot.provisioning.scheduler import JobEnd, JobPhase, SchedulerThread
from pilot.service.agents.admission import Admission
from pilot.site.site import Site
from pilot.site.site_files import SiteFile
from tests.unit.provisioning.scripted import NOT_CANCELLED, REFUSAL, Scripted

LIMIT_S = 30.0
LOCAL = Site(name="test", scheduler="local", poll_s=0.1, grace_s=0.5)


class Pool:
    """A keeper of real local processes, and its reports."""

    def __init__(self, folder: Path, command: str, site: Site = LOCAL) -> None:
        self.events: list[KeeperEvent] = []
        self.folder = folder / "pilots"
        self.folder.mkdir()
        self.tokens = Admission(Connection("tcp://127.0.0.1:1", "0" * 64, "u", "e", "pool", "0"), self.folder, 1)
        self.keeper = make_keeper(
            SiteFile(site, Path("test.py"), None), self.folder, folder, self.events.append, self.tokens, command=command
        )

    def processes(self) -> list[psutil.Process]:
        """Living processes of this pool's jobs."""
        return [p for job in self.keeper.book.jobs for p in marked(f"PILOT_JOB={job}")]

    def ended(self) -> list[JobEnded]:
        """Jobs reported as ended."""
        return [event for event in self.events if isinstance(event, JobEnded)]


@pytest.fixture
def leftovers(tmp_path: Path) -> Iterator[None]:
    """Nothing of a pool survives its test."""
    yield
    prefix = pool_name(tmp_path)
    left = [p for p in psutil.process_iter() if prefix in _job_name(p)]
    for process in left:
        kill_marked(f"JOBNAME={_job_name(process)}")
    assert left == []


def _job_name(process: psutil.Process) -> str:
    try:
        return process.environ().get("JOBNAME", "")
    except psutil.Error:
        return ""


async def until(true: Callable[[], object]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end_s, "not within the deadline"
        await asyncio.sleep(0.01)


def play(keeper: Keeper, script: Callable[[], Awaitable[None]], down_s: float = LIMIT_S) -> list[str]:
    """Run the keeper while ``script`` runs, then shut it down; returns the jobs that are left."""

    async def both() -> list[str]:
        loop = asyncio.create_task(keeper.run())
        try:
            await asyncio.wait_for(script(), LIMIT_S)
        finally:
            loop.cancel()
            left = await keeper.down(down_s)
        return left

    return asyncio.run(both())


@pytest.mark.usefixtures("leftovers")
def test_pilots_are_submitted_replaced_and_cancelled(tmp_path: Path) -> None:
    pool = Pool(tmp_path, "sleep 600")
    keeper = pool.keeper

    async def script() -> None:
        keeper.want(3)
        await until(lambda: len(pool.processes()) == 3 and keeper.status().running == 3)
        first, *others = keeper.book.jobs
        for job in keeper.book.jobs:
            keeper.registered(job)
        for process in marked(f"PILOT_JOB={first}"):
            process.kill()
        await until(lambda: first not in keeper.book.jobs and keeper.status().running == 3)
        assert set(others) < set(keeper.book.jobs)
        assert [(end.job, end.ending, end.failed) for end in pool.ended()] == [(first, JobEnd.GONE, None)]
        keeper.want(1, spare=others[:1])
        await until(lambda: len(keeper.book.jobs) == 2)
        assert others[0] not in keeper.book.jobs

    assert play(keeper, script) == []
    assert pool.processes() == []


@pytest.mark.usefixtures("leftovers")
def test_a_pilot_that_ignores_its_cancellation_is_killed_with_its_children(tmp_path: Path) -> None:
    stubborn = 'bash -c \'trap "" TERM; setsid bash -c "trap : TERM; sleep 601 & wait; sleep 602" & sleep 600\''
    pool = Pool(tmp_path, stubborn)
    pool.keeper.want(1)

    async def script() -> None:
        await until(lambda: len(pool.processes()) >= 3)

    assert play(pool.keeper, script) == []
    assert [end.ending for end in pool.ended()] == [JobEnd.CANCELLED]


@pytest.mark.usefixtures("leftovers")
def test_a_pilot_with_notice_is_replaced_when_the_other_job_has_its_node(tmp_path: Path) -> None:
    pool = Pool(tmp_path, "bash -c 'trap \"\" TERM; while :; do sleep 0.1; done'")
    keeper = pool.keeper

    async def script() -> None:
        keeper.want(1)
        await until(lambda: keeper.status().running == 1)
        (job,) = keeper.book.jobs
        keeper.registered(job)
        keeper.noticed(job, "signal TERM")
        await until(lambda: keeper.status().held_back == "waiting while another job takes nodes")
        assert list(keeper.book.jobs) == [job]
        # A job runs as soon as its script does; a moment later the script has become the process with the job's mark.
        await until(pool.processes)
        assert kill_marked(f"PILOT_JOB={job}") == []
        await until(lambda: keeper.status().running == 1 and job not in keeper.book.jobs)
        assert [(end.ending, end.failed) for end in pool.ended()] == [(JobEnd.PREEMPTED, None)]

    assert play(keeper, script) == []


@pytest.mark.usefixtures("leftovers")
def test_pilots_that_fail_at_once_are_not_resubmitted_at_once(tmp_path: Path) -> None:
    pool = Pool(tmp_path, "false", LOCAL.replace(poll_s=0.2))
    keeper = pool.keeper

    async def script() -> None:
        keeper.want(2)
        await until(lambda: len(pool.ended()) >= 6)
        # Jobs submitted after that are cancelled at the end, possibly before they have failed.
        assert {(end.ending, end.failed is not None, end.detail) for end in pool.ended()} == {
            (JobEnd.FAILED, True, "exit 1")
        }

    began_s = time.monotonic()
    assert play(keeper, script) == []
    # Three rounds of two, with pauses of 0.2 and 0.4 s in between.
    assert time.monotonic() - began_s > 0.6
    assert keeper.status().endings["failed"] >= 6


@pytest.mark.usefixtures("leftovers")
def test_a_restarted_coordinator_takes_over_the_jobs_of_the_earlier_one(tmp_path: Path) -> None:
    slow = LOCAL.replace(prologue="sleep 1")  # like a module being loaded: the agent is not there for a while
    pool = Pool(tmp_path, "false", slow)
    job = PilotProvider(SiteFile(slow, Path("test.py"), None), pool.folder).submit("sleep 600", pool_name(tmp_path))
    keeper = pool.keeper

    async def script() -> None:
        keeper.want(1)
        await until(lambda: list(keeper.book.jobs) == [job] and keeper.status().running == 1)
        await until(lambda: marked(f"PILOT_JOB={job}"))
        assert list(keeper.book.jobs) == [job]

    assert play(keeper, script) == []
    assert [(end.job, end.ending) for end in pool.ended()] == [(job, JobEnd.CANCELLED)]


class Scene:
    """A keeper of a scripted scheduler, and its reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, **site: object) -> None:
        self.scheduler = Scripted()
        self.events: list[KeeperEvent] = []
        fast = Site(name="x", scheduler="slurm").replace(poll_s=0.05, **site)
        self.keeper = Keeper(fast, SchedulerThread(self.scheduler.submit, self.scheduler), self.events.append, clock)

    async def until_pending(self, count: int) -> None:
        """Want this many jobs, and wait until they are queued."""
        self.keeper.want(count)
        await until(lambda: self.keeper.status().pending == count)


def with_scene(
    *,
    scheduler: Mapping[str, object] = MappingProxyType({}),
    down_s: float = LIMIT_S,
    left: Sequence[str] = (),
    after: Callable[[Scene], bool] = lambda _: True,
    **options: Any,
) -> Callable[[Callable[[Scene], Awaitable[None]]], Callable[[], None]]:
    """Turn an asynchronous test into one during which a keeper works with a ``scheduler`` of these attributes. Shut
    down within ``down_s``, it returns the jobs that are ``left``; ``after`` must hold then."""

    def decorate(test: Callable[[Scene], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            scene = Scene(**options)
            for name, value in scheduler.items():
                setattr(scene.scheduler, name, value)
            assert play(scene.keeper, lambda: test(scene), down_s) == list(left)
            assert after(scene)

        run.__name__ = test.__name__
        return run

    return decorate


@with_scene()
async def test_a_scheduler_that_does_not_answer_changes_nothing_and_is_reported(scene: Scene) -> None:
    keeper, scheduler, events = scene.keeper, scene.scheduler, scene.events
    await scene.until_pending(2)
    scheduler.silent = True
    await until(lambda: Troubled("squeue did not answer within 10 s") in events)
    keeper.want(5)
    silent_since = len(events)
    await until(lambda: keeper.status().trouble)
    assert (keeper.status().pending, scheduler.submitted) == (2, 2)
    scheduler.silent = False
    await until(lambda: Troubled("the scheduler answers again") in events[silent_since:])
    await until(lambda: keeper.status().pending == 5)


@with_scene()
async def test_agents_that_answer_although_their_jobs_are_over_are_reported_while_they_do(scene: Scene) -> None:
    keeper, scheduler = scene.keeper, scene.scheduler
    await scene.until_pending(1)
    keeper.registered("0")
    keeper.want(1, present=["0"])
    scheduler.phases["0"] = JobPhase.OVER
    await until(lambda: "whose agents still answer: 0" in keeper.status().trouble)
    keeper.want(1)
    assert keeper.status().trouble == "", "before the scheduler is asked again"


@with_scene(scheduler={"refuses": True})
async def test_a_submission_that_is_refused_is_shown_and_tried_again_later(scene: Scene) -> None:
    keeper, scheduler = scene.keeper, scene.scheduler
    keeper.want(1)
    await until(lambda: "Job violates policy" in keeper.status().trouble)
    await until(lambda: keeper.status().held_back.startswith("waiting"))
    scheduler.refuses = False
    await until(lambda: keeper.status().pending == 1)
    assert keeper.status().trouble == ""
    refusal = f"submission failed: {REFUSAL}"
    assert scene.events == [Troubled(refusal), Troubled("the scheduler accepts pilots again")]


@with_scene(scheduler={"accepts": 2}, max_jobs=100)
async def test_as_many_jobs_are_kept_as_the_scheduler_accepts_and_one_that_ends_is_replaced(scene: Scene) -> None:
    keeper, scheduler = scene.keeper, scene.scheduler
    keeper.want(5)
    await until(lambda: keeper.status().held_back)
    limit = f"with 2 jobs of ours, the scheduler refused another one: {REFUSAL}"
    assert (keeper.status().held_back, keeper.status().trouble) == (limit, "")
    scheduler.phases["0"] = JobPhase.OVER
    await until(lambda: scheduler.submitted == 3)
    scheduler.accepts = 4
    await until(lambda: keeper.status().pending == 4 and "with 4 jobs" in keeper.status().held_back)
    scheduler.accepts = 3
    del scheduler.phases["1"]
    await until(lambda: keeper.status().pending == 3 and "with 3 jobs" in keeper.status().held_back)
    told = [event.text.partition(",")[0] for event in scene.events if isinstance(event, Troubled)]
    assert [text for text in told if text.startswith("with")] == [f"with {most} jobs of ours" for most in (2, 4, 3)], (
        "each limit once"
    )


@with_scene(grace_s=0, scheduler={"keeps_jobs": True}, after=lambda scene: scene.scheduler.kills <= 9)
async def test_a_refused_cancellation_is_repeated_once_a_poll_and_ever_less_often(scene: Scene) -> None:
    keeper, scheduler = scene.keeper, scene.scheduler
    await scene.until_pending(2)
    for _ in range(400):  # like events of the pool, which may come at any time
        keeper.want(0)
        await asyncio.sleep(0.002)
    assert 2 <= scheduler.cancels <= 8
    assert 1 <= scheduler.kills <= 8
    scheduler.keeps_jobs = False


@with_scene(grace_s=60)
async def test_a_job_that_is_cancelled_ends_no_trouble_with_another_one(scene: Scene) -> None:
    keeper, scheduler = scene.keeper, scene.scheduler
    await scene.until_pending(2)
    scheduler.kept = {"1"}
    keeper.want(1)
    await until(lambda: scheduler.cancels == 4)  # it is asked ever less often
    keeper.want(0)
    await until(lambda: "0" not in keeper.book.jobs)
    assert [event.text for event in scene.events if isinstance(event, Troubled)] == [NOT_CANCELLED]
    assert keeper.status().trouble == NOT_CANCELLED
    scheduler.kept = set()
    await until(lambda: not keeper.status().trouble)


@with_scene(grace_s=60, scheduler={"keeps_jobs": True})
async def test_a_refused_cancellation_is_quoted_until_the_job_is_over(scene: Scene) -> None:
    keeper, scheduler = scene.keeper, scene.scheduler
    await scene.until_pending(1)
    scheduler.phases = dict.fromkeys(scheduler.phases, JobPhase.RUNNING)
    await until(lambda: keeper.status().running == 1)
    keeper.registered("0")
    keeper.want(0, spare=["0"])
    await until(lambda: keeper.status().trouble == NOT_CANCELLED)
    scheduler.phases = dict.fromkeys(scheduler.phases, JobPhase.OVER)
    await until(lambda: keeper.status().trouble == "")


@with_scene(scheduler={"slow_s": 0.3}, after=lambda scene: set(scene.scheduler.phases.values()) <= {JobPhase.OVER})
async def test_a_submission_under_way_at_the_end_is_cancelled_too(scene: Scene) -> None:
    scene.keeper.want(1)
    await asyncio.sleep(0.1)  # the submission is under way or has not begun: in both cases nothing may be left


@with_scene(down_s=5)
async def test_at_the_end_the_schedulers_answer_is_enough_whoever_was_connected_last(scene: Scene) -> None:
    await scene.until_pending(1)
    scene.keeper.registered("0")
    scene.keeper.want(1, present=["0"])


@pytest.mark.usefixtures("leftovers")
def test_a_job_whose_agent_has_left_ends_by_itself(tmp_path: Path) -> None:
    """Its agent still removes its files: a cancellation would leave them."""
    command = f"sh -c 'while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; sleep 1; touch {tmp_path}/removed'"
    pool = Pool(tmp_path, command)
    keeper = pool.keeper

    async def script() -> None:
        keeper.want(2)
        await until(lambda: keeper.status().running == 2)
        for job in keeper.book.jobs:
            keeper.registered(job)
        keeper.want(2, present=keeper.book.jobs)
        for job in keeper.book.jobs:
            keeper.left(job)
        (tmp_path / "go").touch()

    assert play(keeper, script) == []
    assert [end.ending for end in pool.ended()] == [JobEnd.COMPLETED] * 2
    assert (tmp_path / "removed").exists()


@with_scene(clock=lambda: 100.0 * time.monotonic(), down_s=1e6, after=lambda scene: scene.scheduler.cancels == 1)
async def test_a_job_that_outlives_its_agent_is_cancelled(scene: Scene) -> None:
    await scene.until_pending(1)
    scene.keeper.left("0")


@with_scene(down_s=0.2, left=["0"])
async def test_jobs_that_cannot_be_cancelled_are_returned_after_the_limit(scene: Scene) -> None:
    await scene.until_pending(1)
    scene.scheduler.silent = True


@with_scene(
    clock=map(float, count()).__next__,
    down_s=1e6,
    scheduler={"silent": True},
    after=lambda scene: not scene.keeper.answers and scene.scheduler.submitted == 0,
)
async def test_a_scheduler_that_never_answered_is_not_waited_for_to_the_end(scene: Scene) -> None:
    await until(lambda: scene.keeper.status().trouble)


@with_scene()
async def test_a_time_of_day_that_is_set_back_stops_no_poll(scene: Scene) -> None:
    await scene.until_pending(1)
    before, polls = time.time(), scene.scheduler.polls
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: before - 3600)
        await until(lambda: scene.scheduler.polls >= polls + 3)


def test_the_name_of_a_pool_is_that_of_its_run_directory(tmp_path: Path) -> None:
    assert pool_name(tmp_path) == pool_name(tmp_path / "." / "")
    assert pool_name(tmp_path) != pool_name(tmp_path / "other")


def test_trouble_is_reported_when_it_begins_changes_and_ends() -> None:
    reported: list[Troubled] = []
    troubles = Troubles(reported.append)
    for text in ("", "busy", "busy", "down"):
        troubles.set("poll", text)
    troubles.set("cancel", "unknown job")
    assert troubles.text == "down; unknown job"
    troubles.set("cancel", "")
    troubles.set("poll", "")
    troubles.set("submit", "no such partition")
    troubles.set("submit", "")
    assert [event.text for event in reported] == [
        "busy",
        "down",
        "unknown job",
        "the scheduler cancels jobs again",
        "the scheduler answers again",
        "no such partition",
        "the scheduler accepts pilots again",
    ]


@pytest.mark.parametrize(
    "error",
    [
        BlockingIOError(11, "Resource temporarily unavailable"),
        RuntimeError("can't start new thread"),
        UserError("cannot read the connection file"),
        KeyError("a field that is not there"),
    ],
)
def test_every_failed_call_is_a_submit_error_that_may_pass(error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    async def play() -> None:
        thread = SchedulerThread(fail, SimpleNamespace(poll=fail, cancel=fail, kill=fail))
        calls = [thread.poll([], 0.0), thread.submit(60.0), thread.cancel(["1"]), thread.kill(["1"])]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, SubmitError)
            assert outcome.transient
            assert str(error) in str(outcome)
        thread.close()

    asyncio.run(play())
