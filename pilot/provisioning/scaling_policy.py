"""Decide how many pilots to keep, without side effects: a :class:`PoolDemand` in, submissions and cancellations out.

==============  =======================================================================================
wanted          the nodes that a plan would use if it could, from the coordinator
living          jobs that are pending or running and were given no notice; a leaving one is replaced, and so
                is a held one
room            the site's cap less all our jobs and, where it is shared, others' jobs
bound           whatever the scheduler answers: never more than twice the jobs that are wanted,
                and ``BOUND_SLACK``, may live at once. A job counts until it is known to be over
limit           as many as the scheduler accepted before it refused one; now and then one more is tried
rate            a limit on submissions per poll
back-off        after failures nothing is submitted for a while; a preemption is not a failure
yielding        another user's job takes nodes from us: they are not replaced until it has them, as a
                pilot that we submit could take them first
planned nodes   idle, but another job or a reservation will begin there: worth a pilot only with a wall
                time that fits
==============  =======================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pilot.provisioning.scheduler import WINDOW_MARGIN_S, JobPhase, QueueSnapshot
from pilot.provisioning.submit_limit import SubmitLimit
from pilot.site.site import Site

BOUND_FACTOR = 2
"""All pilots may be leaving, with a replacement for each."""

BOUND_SLACK = 2
"""So that even a pool of one pilot can recover from a job or two whose fate is unknown."""

SUBMISSIONS_PER_POLL = 30
"""Most submissions per poll: with 30 s between polls, 600 pilots take ten minutes."""


@dataclass(frozen=True, slots=True)
class ScalingJob:
    """One of our jobs, as far as it matters for scaling.

    ``leaving``: it no longer counts (it was given notice, is cancelled, suspended or dead, or its state is unknown).
    ``spare``: it is running, but not needed. ``held``: it is queued, but will not start soon, for a reason of its own.
    """

    job: str
    phase: JobPhase
    submitted_s: float
    walltime_s: float
    leaving: bool = False
    spare: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """The basis of a decision; times are on the coordinator's clock. See the module's table.

    ``jobs`` are all that may exist; ``queue`` is the scheduler's last answer. ``warm_up_s`` is how long a trainer takes
    to start on a new node; ``yielding`` counts the jobs whose nodes others' jobs are taking, ``submitted`` those
    submitted within the last poll's time; ``limit`` is how many jobs the scheduler accepts.
    """

    now_s: float
    wanted_nodes: int
    jobs: Sequence[ScalingJob]
    queue: QueueSnapshot = field(default_factory=QueueSnapshot)
    warm_up_s: float = 0.0
    resume_s: float = 0.0
    yielding: int = 0
    submitted: int = 0
    limit: SubmitLimit = field(default_factory=SubmitLimit)


@dataclass(frozen=True, slots=True)
class Scaling:
    """One submission per wall time (seconds), and the jobs to cancel. ``held_back``: why not more are submitted."""

    submit: tuple[float, ...] = ()
    cancel: tuple[str, ...] = ()
    held_back: str = ""


@dataclass(frozen=True, slots=True)
class ShortJobs:
    """How to use planned nodes: ``count`` more jobs of ``walltime_s``, and the pending jobs (newest first) that are too
    long for them.
    """

    walltime_s: float = 0.0
    count: int = 0
    too_long: tuple[str, ...] = ()


def decide(site: Site, now: PoolDemand) -> Scaling:
    """Decide what to submit and to cancel now."""
    living = [job for job in now.jobs if not job.leaving and not job.held]
    missing = _jobs_wanted(site, now) - len(living)
    if missing < 0:
        return Scaling(cancel=_least_missed(living, -missing))
    count, held_back = _allowed(site, now, missing)
    short = _short_jobs(site, now, living)
    of_short = min(short.count, count)
    submit = (short.walltime_s,) * of_short + (float(site.walltime_s),) * (count - of_short)
    # If there are as many as wanted, a short job replaces one that is too long.
    replaced = () if held_back else short.too_long[: short.count - of_short]
    return Scaling(submit, replaced, held_back)


def _jobs_wanted(site: Site, now: PoolDemand) -> int:
    return math.ceil(now.wanted_nodes / site.nodes_per_pilot)


def fitting_walltime_s(site: Site, now: PoolDemand) -> float | None:
    """A wall time in minutes that ends before another job needs the planned nodes; None if it is too short to be
    useful."""
    if site.walltime_min is None or now.queue.window_s is None or not now.queue.planned_nodes:
        return None
    fits_s = math.floor((now.queue.window_s - WINDOW_MARGIN_S) / 60) * 60.0
    worth_s = max(site.walltime_min_s, now.warm_up_s)
    return fits_s if worth_s <= fits_s < site.walltime_s else None


def _short_jobs(site: Site, now: PoolDemand, living: Sequence[ScalingJob]) -> ShortJobs:
    """As many short jobs for planned nodes as are wanted beyond those running and those that will start on idle
    nodes."""
    walltime_s = fitting_walltime_s(site, now)
    if walltime_s is None:
        return ShortJobs()
    pending = [job for job in living if job.phase is JobPhase.PENDING]
    too_long = _newest_first(job for job in pending if job.walltime_s > walltime_s)
    running = len(living) - len(pending)
    start_anyway = (now.queue.idle_nodes or 0) // site.nodes_per_pilot
    lacking = _jobs_wanted(site, now) - running - start_anyway
    short_there = len(pending) - len(too_long)
    count = min(now.queue.planned_nodes // site.nodes_per_pilot, lacking) - short_there
    return ShortJobs(walltime_s, max(0, count), too_long)


def _allowed(site: Site, now: PoolDemand, missing: int) -> tuple[int, str]:
    """How many of ``missing`` jobs may be submitted now, and what holds the others back."""
    if now.now_s < now.resume_s:
        return 0, f"waiting {now.resume_s - now.now_s:.0f} s after failures"
    whose = "project" if site.max_jobs_scope == "project" else "user"
    ours = len(now.jobs)
    most = BOUND_FACTOR * _jobs_wanted(site, now) + BOUND_SLACK
    limits = [
        (max(0, missing - now.yielding), "waiting while another job takes nodes"),
        (
            site.max_jobs - ours - now.queue.others,
            f"the site allows {site.max_jobs} jobs per {whose}: {ours} are ours, {now.queue.others} others'",
        ),
        (most - ours, f"{ours} jobs may still exist; submitting at most {most} until that is known"),
        (SUBMISSIONS_PER_POLL - now.submitted, f"at most {SUBMISSIONS_PER_POLL} submissions per {site.poll_s:g} s"),
    ]
    if (room := now.limit.room(now.now_s, ours)) is not None:
        limits.append((room, now.limit.sentence()))
    count, held_back = min(limits, key=lambda limit: limit[0])
    return (missing, "") if missing <= count else (max(0, count), held_back)


def _least_missed(living: Sequence[ScalingJob], count: int) -> tuple[str, ...]:
    """At most ``count`` jobs to cancel: pending before running, newest first; of the running ones only spare ones."""
    pending = _newest_first(job for job in living if job.phase is JobPhase.PENDING)
    spare = _newest_first(job for job in living if job.phase is JobPhase.RUNNING and job.spare)
    return (*pending, *spare)[:count]


def _newest_first(jobs: Iterable[ScalingJob]) -> tuple[str, ...]:
    return tuple(job.job for job in sorted(jobs, key=lambda job: -job.submitted_s))
