"""How a job ended, from all that is known."""

from __future__ import annotations

import pytest

from pilot.provisioning.job_record import JobRecord
from pilot.provisioning.scheduler import JobEnd, JobPhase, JobView
from pilot.site.site import Site

SITE = Site(name="x", scheduler="slurm", notice_signal="USR1", notice_lead_s=300)

ENDINGS = [
    # the scheduler's ending and other knowledge, the cause in the agent's notice, whether we cancelled it, the result
    (JobEnd.PREEMPTED, {}, "", False, JobEnd.PREEMPTED),
    (JobEnd.PREEMPTED, {}, "", True, JobEnd.PREEMPTED),
    # It left within its grace period: the scheduler calls that completed, but had announced the preemption.
    (JobEnd.COMPLETED, {"preempt_s": 100.0}, "", False, JobEnd.PREEMPTED),
    (JobEnd.COMPLETED, {}, "signal USR1", False, JobEnd.PREEMPTED),
    (JobEnd.FAILED, {}, "signal TERM", False, JobEnd.PREEMPTED),
    (JobEnd.CANCELLED, {}, "signal TERM", False, JobEnd.CANCELLED),
    (JobEnd.COMPLETED, {}, "signal TERM", True, JobEnd.CANCELLED),
    (JobEnd.COMPLETED, {}, "wall time", False, JobEnd.WALLTIME),
    (JobEnd.WALLTIME, {}, "signal USR1", False, JobEnd.WALLTIME),
    (JobEnd.NODE_FAILED, {}, "", True, JobEnd.NODE_FAILED),
    (JobEnd.COMPLETED, {}, "", False, JobEnd.COMPLETED),
    (JobEnd.FAILED, {}, "", False, JobEnd.FAILED),
    # The same signal announces both; it means the wall time only near its end.
    (JobEnd.COMPLETED, {"start_s": 1000.0, "end_s": 4300.0, "walltime_s": 3600.0}, "signal", False, JobEnd.WALLTIME),
    (JobEnd.COMPLETED, {"start_s": 1000.0, "end_s": 2800.0, "walltime_s": 3600.0}, "signal", False, JobEnd.PREEMPTED),
    # The scheduler no longer knows it, and had never shown it, or had shown it as running.
    (None, None, "", False, JobEnd.GONE),
    (None, None, "signal TERM", False, JobEnd.PREEMPTED),
    (None, None, "", True, JobEnd.CANCELLED),
    (None, {"start_s": 5700.0, "end_s": 9300.0, "walltime_s": 3600.0}, "signal", False, JobEnd.WALLTIME),
    (None, {"start_s": 7200.0, "end_s": 10800.0, "walltime_s": 3600.0}, "signal", False, JobEnd.PREEMPTED),
]


@pytest.mark.parametrize(("shown", "known", "cause", "cancelled", "ending"), ENDINGS)
def test_how_a_job_ended(
    shown: JobEnd | None, known: dict[str, float] | None, cause: str, cancelled: bool, ending: JobEnd
) -> None:
    record = JobRecord("1", 0.0, 3600.0, cause=cause, cancelled_s=9.0 if cancelled else None)
    if known is not None:
        record.view = JobView("1", JobPhase.OVER if shown else JobPhase.RUNNING, shown, **known)
    assert record.ending(9000.0, SITE) is ending
