"""PBS Pro and OpenPBS: ``qselect`` says which jobs there are, ``qstat -x -f -F json`` one id at a time what they do.

One id at a time, because OpenPBS 23.06 answers for the first id only. A server keeps no history of jobs unless it is
told to (``job_history_enable``), and then refuses ``-x``: there a job that is over is an unknown one. Tested on
recorded answers; only Slurm was run.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from pilot.core.errors import SubmitError
from pilot.io.site import Site, walltime_seconds
from pilot.provisioning.scheduler import Ending, JobPhase, JobView, Run, Snapshot, run_command

_PENDING = set("QHWTM")
_OVER = set("FX")
_KILLED_WALLTIME = -29
_LOST_NODE = {-12, -18}
_BY_SIGNAL = 128
_NO_HISTORY = "not configured to maintain job history"
_NO_MORE = ("Unknown Job", "has finished")


class PbsQueue:
    """PBS's answers about this pool's jobs: those whose name starts with ``prefix`` and a dot."""

    def __init__(self, site: Site, prefix: str, run: Run = run_command, user: str | None = None) -> None:
        self._site = site
        self._prefix = f"{prefix}."
        self._run = run
        self._user = user or getpass.getuser()
        self._strangers: set[str] = set()
        self._also_over = ["-x"]

    def poll(self, jobs: Sequence[str], now_s: float) -> Snapshot:  # noqa: ARG002  # the protocol's signature
        """See :class:`pilot.provisioning.scheduler.Queue`."""
        mine = self._qselect("-u", self._user)
        unknown = [job for job in mine if job not in self._strangers and job not in jobs]
        views = {view.job: view for job in (*jobs, *unknown) if (view := self._qstat(job))}
        ours = {job: view for job, view in views.items() if job in jobs or view.name.startswith(self._prefix)}
        self._strangers = set(mine) - ours.keys()
        return Snapshot(ours, self._others(mine, ours.keys()))

    def kill(self, jobs: Sequence[str]) -> None:
        """See :class:`pilot.provisioning.scheduler.Queue`."""
        self._run(["qdel", "-W", "force", *jobs], self._site.command_timeout_s)

    def _others(self, mine: Sequence[str], ours: Any) -> int:
        """Living jobs that count against ``max_jobs`` beside ours; asked for only where there is a cap."""
        if self._site.max_jobs is None:
            return 0
        if self._site.max_jobs_scope == "project" and self._site.account:
            return len(set(self._qselect("-A", self._site.account)) - ours)
        return len(set(mine) - ours)

    def _qselect(self, *which: str) -> list[str]:
        queue = ["-q", self._site.queue] if self._site.queue else []
        return self._run(["qselect", *which, *queue], self._site.command_timeout_s).split()

    def _qstat(self, job: str) -> JobView | None:
        """The job; None where PBS no longer knows it."""
        try:
            output = self._run(["qstat", *self._also_over, "-f", "-F", "json", job], self._site.command_timeout_s)
        except SubmitError as error:
            if self._also_over and _NO_HISTORY in str(error):
                self._also_over = []
                return self._qstat(job)
            if any(words in str(error) for words in _NO_MORE):
                return None
            raise
        try:
            found = msgspec.json.decode(output).get("Jobs", {})
        except (msgspec.DecodeError, AttributeError) as error:
            raise SubmitError(f"qstat -F json {job} gave what cannot be read: {error}", transient=True) from None
        # The server's name may be shortened in the answer; we asked for one job only.
        return next((_view(job, attributes) for attributes in found.values()), None)


def _view(job: str, of: dict[str, Any]) -> JobView:
    state = str(of.get("job_state", ""))
    phase = JobPhase.PENDING if state in _PENDING else JobPhase.OVER if state in _OVER else JobPhase.RUNNING
    runs = int(of.get("run_count") or 0)
    walltime_s = _walltime_s(of.get("Resource_List"))
    start_s = _time_s(of.get("stime"))
    return JobView(
        job,
        phase,
        ending=_ending(of.get("Exit_status")) if phase is JobPhase.OVER else None,
        name=str(of.get("Job_Name", "")),
        # PBS counts runs, and the first one is no restart; a job that waits again has had its earlier ones.
        restart=max(0, runs if phase is JobPhase.PENDING else runs - 1),
        start_s=start_s,
        end_s=_time_s(of.get("obittime")) or (start_s + walltime_s if start_s and walltime_s else None),
        walltime_s=walltime_s,
        nodes=str(of.get("exec_host", "")),
        detail=f"{state}, exit {of.get('Exit_status', '-')}: {of.get('comment', '')}",
    )


def _ending(status: Any) -> Ending:
    """By ``Exit_status``: PBS's own reasons are negative, 128 and more a signal (of a preemption, or of anyone)."""
    if status is None:
        return Ending.GONE
    code = int(status)
    if code == _KILLED_WALLTIME:
        return Ending.WALLTIME
    if code in _LOST_NODE:
        return Ending.NODE_FAILED
    if code >= _BY_SIGNAL:
        return Ending.GONE
    return Ending.FAILED if code else Ending.COMPLETED


def _walltime_s(resources: Any) -> float | None:
    text = str((resources or {}).get("walltime", ""))
    try:
        return float(walltime_seconds(text))
    except ValueError:
        return None


def _time_s(text: Any) -> float | None:
    """Unix time of PBS's ``Thu Mar 13 17:32:05 2026``, which is local time."""
    try:
        return time.mktime(time.strptime(str(text)))
    except ValueError:
        return None
