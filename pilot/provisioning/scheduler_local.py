"""No batch system: a pilot is a process tree of this machine, and the process table is the queue.

The shell that Parsl starts for a job, whose process id is the job's id, has the job's script in its command line. The
script sets the job's name in ``JOBNAME`` and its id in ``PILOT_JOB`` for all of its processes; the job is running as
long as the shell or one of these is. So it is visible from its submission on, also while the script's prologue runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from pilot.host.proc import kill_marked
from pilot.provisioning.scheduler import JobEnd, JobPhase, JobView, QueueSnapshot

_NAME = "JOBNAME"
_ID = "PILOT_JOB"
_GUARDIAN_S = 3.0


Living = dict[str, tuple[str, list[psutil.Process]]]
"""Job id → the job's name, and its running processes."""


class LocalQueue:
    """The jobs whose name starts with ``prefix`` and a dot.

    ``output_of`` returns the path of a job's standard error; Parsl's LocalProvider writes its exit status beside it.
    """

    def __init__(self, prefix: str, output_of: Callable[[str], Path | None]) -> None:
        self._prefix = f"{prefix}."
        self._script = re.compile(rf"/({re.escape(self._prefix)}[\d.]+)\.sh\b")
        self._output_of = output_of

    def poll(self, jobs: Sequence[str], now_s: float) -> QueueSnapshot:  # noqa: ARG002  # the protocol's signature
        """See :class:`pilot.provisioning.scheduler.Queue`."""
        shells = self._shells()  # before the others, because a shell ends after them
        names = {job: name for job, (name, _) in self._living().items()} | shells
        views = {job: JobView(job, JobPhase.RUNNING, name=name) for job, name in names.items()}
        return QueueSnapshot(views | {job: self._over(job) for job in jobs if job not in views})

    def cancel(self, jobs: Sequence[str]) -> list[str]:
        """Send one TERM to each job's process group, like a batch system; a job without processes is over."""
        shells, living = self._shells(), self._living()
        for job in jobs:
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                if job in shells:
                    os.killpg(os.getpgid(int(job)), signal.SIGTERM)
                elif (first := _oldest(living, job)) is not None:
                    os.killpg(os.getpgid(first.pid), signal.SIGTERM)
        return list(jobs)

    def kill(self, jobs: Sequence[str]) -> None:
        """Kill each job's oldest process, the agent, so that its guardian cleans up; then everything that is left."""
        living = self._living()
        for job in jobs:
            name, processes = living.get(job, ("", []))
            with contextlib.suppress(psutil.Error):
                if (first := _oldest(living, job)) is not None:
                    first.kill()
            if not processes:
                continue
            psutil.wait_procs(processes, timeout=_GUARDIAN_S)
            kill_marked(f"{_NAME}={name}")

    def _living(self) -> Living:
        """Job id → its name and its running processes, for all our jobs."""
        found: Living = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                name, job = environment.get(_NAME, ""), environment.get(_ID, "")
                if job and name.startswith(self._prefix) and process.status() != psutil.STATUS_ZOMBIE:
                    found.setdefault(job, (name, []))[1].append(process)
        return found

    def _shells(self) -> dict[str, str]:
        """Job id → name of the jobs whose shell is running.

        Three processes of a job may have its command line: Parsl's shell, which leads the process group and ends at
        once; the job's shell; and for a moment the latter's child, before that executes the script.
        """
        found: dict[int, tuple[str, int]] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                match process.cmdline():
                    case [_, "-c", command] if script := self._script.search(command):
                        if os.getpgid(process.pid) != process.pid:
                            found[process.pid] = script[1], process.ppid()
        return {str(pid): name for pid, (name, parent) in found.items() if parent not in found}

    def _over(self, job: str) -> JobView:
        output = self._output_of(job)
        text = ""
        if output is not None:
            with contextlib.suppress(FileNotFoundError):  # the disk was full when its shell ended, or it was removed
                text = output.with_suffix(".ec").read_text().strip()
        code = int(text) if text.isdecimal() else None
        if code is None or code > 128:
            return JobView(job, JobPhase.OVER, JobEnd.GONE, detail="killed")
        return JobView(job, JobPhase.OVER, JobEnd.FAILED if code else JobEnd.COMPLETED, detail=f"exit {code}")


def _oldest(living: Living, job: str) -> psutil.Process | None:
    """The oldest process of a job, None if there is none. Raises ``psutil.Error`` if one has ended meanwhile."""
    _, processes = living.get(job, ("", []))
    return min(processes, key=psutil.Process.create_time) if processes else None
