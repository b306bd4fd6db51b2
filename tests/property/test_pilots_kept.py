"""How many pilot jobs there are in the end: the knowledge of jobs and the decisions from it, simulated together.

Nothing is submitted for real: a world stands in for the scheduler and the agents, and remembers what is true.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.provisioning.pilot_jobs import PilotJobs
from pilot.provisioning.scaling_policy import BOUND_FACTOR, BOUND_SLACK, PoolDemand, Scaling, decide
from pilot.provisioning.scheduler import JobEnd, JobPhase, JobView, QueueSnapshot
from pilot.site.site import Site

SITE = Site(name="x", scheduler="slurm", poll_s=30, grace_s=30, max_jobs=10_000)


@dataclass
class World:
    """Jobs that we submitted: ``alive`` are those that may run or wait, since nobody has ended them."""

    book: PilotJobs = field(default_factory=lambda: PilotJobs(SITE))
    now_s: float = 0.0
    wanted: int = 0
    alive: set[str] = field(default_factory=set)
    present: set[str] = field(default_factory=set)
    cancels: bool = True
    submitted: int = 0

    def act(self) -> Scaling:
        """What the keeper's loop does after an answer or a message."""
        self.cancel(self.book.to_cancel(self.now_s))
        found = decide(
            SITE,
            PoolDemand(
                self.now_s,
                self.wanted,
                self.book.scaling_jobs(self.now_s),
                yielding=self.book.yielding(self.now_s),
                submitted=self.book.just_submitted(self.now_s),
            ),
        )
        self.cancel(found.cancel)
        for walltime_s in found.submit:
            job = str(self.submitted)
            self.submitted += 1
            self.alive.add(job)
            self.book.submitted(self.now_s, job, walltime_s)
        return found

    def cancel(self, jobs: list[str] | tuple[str, ...]) -> None:
        """A scheduler that answers and does what it says."""
        due = self.book.due(self.now_s, jobs, lambda record: record.cancelling)
        self.book.asked_to_cancel(self.now_s, due, SITE.poll_s)
        if self.cancels:
            self.alive -= set(due)
            self.book.cancelled(self.now_s, due)

    def connected(self) -> None:
        self.book.connected(self.now_s, frozenset(self.present))


views = st.builds(
    JobView,
    st.just(""),
    st.sampled_from(JobPhase),
    st.none() | st.sampled_from(JobEnd),
    restart=st.integers(0, 2),
    start_s=st.none() | st.just(0.0),
    preempt_s=st.none() | st.just(1.0),
)
answers = st.lists(st.none() | views, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), answers),
        st.tuples(st.just("same answer"), st.none() | views),
        st.tuples(st.just("same answer"), st.none() | views),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 30.0, 700.0, 90_000.0])),
        st.tuples(st.just("want"), st.integers(0, 6)),
        st.tuples(st.just("cancels"), st.booleans()),
        st.tuples(st.just("registers"), st.integers(0, 20)),
        st.tuples(st.just("notices"), st.integers(0, 20)),
        st.tuples(st.just("ends"), st.integers(0, 20)),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(steps, st.booleans())
def test_the_number_of_jobs_is_bounded_whatever_the_scheduler_answers(
    script: list[tuple[str, object]], cancels: bool
) -> None:
    world = World(wanted=4, cancels=cancels)
    world.act()
    for verb, what in script:
        play(world, verb, what)
        world.connected()
        if world.act().submit:
            assert len(world.alive) <= BOUND_FACTOR * world.wanted + BOUND_SLACK
        assert world.alive <= world.book.jobs.keys() | world.present


def play(world: World, verb: str, what: object) -> None:
    """One event: an answer that may say anything about any job, or a fact."""
    alive = sorted(world.alive, key=int)
    match verb, what:
        case "answer", list(told):
            jobs = sorted(world.book.jobs, key=int)[-len(told) :] if told else []
            shown = {job: _of(job, view) for job, view in zip(jobs, told, strict=False) if view is not None}
            world.book.update(world.now_s, world.now_s, QueueSnapshot(shown))
        case "same answer", _:
            told = {job: _of(job, what) for job in world.book.jobs} if isinstance(what, JobView) else {}
            world.book.update(world.now_s, world.now_s, QueueSnapshot(told))
        case "wait", float(seconds):
            world.now_s += seconds
        case "want", int(wanted):
            world.wanted = wanted
        case "cancels", bool(whether):
            world.cancels = whether
        case "registers", int(number) if alive:
            world.present.add(alive[number % len(alive)])
            world.connected()
            world.book.registered(world.now_s, alive[number % len(alive)], 0)
        case "notices", int(number) if alive:
            world.book.noticed(world.now_s, alive[number % len(alive)], "signal TERM")
        case "ends", int(number) if world.present:
            job = sorted(world.present, key=int)[number % len(world.present)]
            world.present.discard(job)
            world.alive.discard(job)


def _of(job: str, view: JobView) -> JobView:
    return JobView(job, view.phase, view.ending, "", view.restart, view.start_s, None, view.preempt_s)


def test_a_large_pool_that_keeps_losing_pilots_stays_at_its_size() -> None:
    """600 pilots with a mean lifetime of an hour lose one every six seconds."""
    chance = random.Random(1)
    world = World(wanted=600)
    ends_s: dict[str, float] = {}
    kept: list[int] = []
    for _ in range(2 * 120):
        world.act()
        for job in world.book.jobs.keys() - ends_s.keys():
            ends_s[job] = world.now_s + chance.expovariate(1 / 3600)
            world.book.registered(world.now_s, job, 0)
        world.now_s += SITE.poll_s
        shown = {}
        for job in world.book.jobs:
            left_s = ends_s[job] - world.now_s
            phase = JobPhase.RUNNING if left_s > 0 else JobPhase.OVER
            taken_s = world.now_s if 0 < left_s < SITE.grace_s else None
            shown[job] = JobView(job, phase, None if left_s > 0 else JobEnd.PREEMPTED, start_s=0.0, preempt_s=taken_s)
        world.book.update(world.now_s, world.now_s, QueueSnapshot(shown))
        kept.append(sum(view.phase is JobPhase.RUNNING and view.preempt_s is None for view in shown.values()))
    assert sum(kept[-120:]) / 120 > 0.97 * 600
