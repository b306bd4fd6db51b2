"""A scheduler controlled by a test."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

from pilot.core.errors import SubmissionRefused, SubmitError
from pilot.provisioning.scheduler import CancelRefused, JobEnd, JobPhase, JobView, QueueSnapshot

REFUSAL = "sbatch: error: Batch job submission failed: Job violates policy"
NOT_CANCELLED = "scancel failed: Access/permission denied"


class Scripted:
    """A scheduler whose answers the test sets; it also submits."""

    def __init__(self) -> None:
        self.phases: dict[str, JobPhase] = {}
        self.refuses = self.silent = self.keeps_jobs = False
        self.kept: set[str] = set()
        self.cancels = self.kills = self.polls = 0
        self.submitted = 0
        self.accepts = math.inf
        self.slow_s = 0.0

    def submit(self, walltime_s: float, without: Collection[str] = ()) -> str:  # noqa: ARG002  # the original's signature
        alive = sum(phase is not JobPhase.OVER for phase in self.phases.values())
        if self.refuses or alive >= self.accepts:
            raise SubmissionRefused(REFUSAL)
        time.sleep(self.slow_s)
        job = str(self.submitted)
        self.submitted += 1
        self.phases[job] = JobPhase.PENDING
        return job

    def cancel(self, jobs: Sequence[str]) -> list[str]:
        self.cancels += 1
        taken = [job for job in jobs if not self.keeps_jobs and job not in self.kept]
        for job in taken:
            self.phases[job] = JobPhase.OVER
        if len(taken) < len(jobs):
            raise CancelRefused(NOT_CANCELLED, taken)
        return taken

    def kill(self, jobs: Sequence[str]) -> None:
        self.kills += 1
        for job in [] if self.keeps_jobs else jobs:
            self.phases[job] = JobPhase.OVER

    def poll(self, jobs: Sequence[str], now_s: float) -> QueueSnapshot:  # noqa: ARG002  # the original's signature
        self.polls += 1
        if self.silent:
            raise SubmitError("squeue did not answer within 10 s", transient=True)
        endings = {JobPhase.OVER: JobEnd.CANCELLED}
        return QueueSnapshot({job: JobView(job, phase, endings.get(phase)) for job, phase in self.phases.items()})
