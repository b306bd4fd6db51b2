"""LSF: one ``bjobs -json`` for our user's jobs, and another one for a project's jobs if they count. Tested on recorded
answers only."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import msgspec

from pilot.core.errors import SubmitError
from pilot.provisioning.scheduler import BatchQueue, JobEnd, JobPhase, JobView, QueueSnapshot, States, local_time_s

_STATES = States(pending={"PEND", "PSUSP", "WAIT"}, suspended={"USUSP", "SSUSP"}, over={"DONE", "EXIT"})
_REASONS = {
    "TERM_PREEMPT": JobEnd.PREEMPTED,
    "TERM_RUNLIMIT": JobEnd.WALLTIME,
    "TERM_DEADLINE": JobEnd.WALLTIME,
    "TERM_WINDOW": JobEnd.WALLTIME,
    "TERM_OWNER": JobEnd.CANCELLED,
    "TERM_FORCE_OWNER": JobEnd.CANCELLED,
    "TERM_ADMIN": JobEnd.CANCELLED,
    "TERM_FORCE_ADMIN": JobEnd.CANCELLED,
    "TERM_ZOMBIE": JobEnd.NODE_FAILED,
    "TERM_RMS": JobEnd.NODE_FAILED,
}
_BY_SIGNAL = 128


class _Row(msgspec.Struct, rename="upper"):
    jobid: str = ""
    stat: str = ""
    user: str = ""
    queue: str = ""
    project: str = ""
    job_name: str = ""
    exit_code: str = ""
    exit_reason: str = ""
    exec_host: str = ""
    finish_time: str = ""


class _Reply(msgspec.Struct):
    RECORDS: list[_Row]


_decoder = msgspec.json.Decoder(_Reply)


class LsfQueue(BatchQueue):
    """LSF's answers about this pool's jobs."""

    CANCELS = ("bkill",)
    KILLS = ("bkill", "-r")
    NO_MORE = ("Job has already finished", "No matching job found")

    def poll(self, jobs: Sequence[str], now_s: float) -> QueueSnapshot:
        """See :class:`pilot.provisioning.scheduler.Queue`."""
        rows = self._bjobs("-a")
        asked = set(jobs)
        ours = {row.jobid: row for row in rows if row.jobid in asked or self._is_ours(row)}
        return QueueSnapshot({job: _view(row, now_s) for job, row in ours.items()}, self._others(rows, ours))

    def _is_ours(self, row: _Row) -> bool:
        return row.user == self._user and row.job_name.startswith(self._prefix)

    def _others(self, rows: Sequence[_Row], ours: Collection[str]) -> int:
        """Other jobs in our queue that count against ``max_jobs``. (Ours may have been switched to another queue.)"""
        site = self._site
        if site.max_jobs_scope == "project" and site.account:
            rows = self._bjobs("-u", "all", "-P", site.account)
        here = [row for row in rows if site.queue in (None, row.queue)]
        return sum(row.stat not in _STATES.over and row.jobid not in ours for row in here)

    def _bjobs(self, *which: str) -> list[_Row]:
        """Our user's jobs, or those of ``which``; -a: including those that ended recently."""
        command = ["bjobs", *which, "-json", "-o", " ".join(_Row.__struct_fields__)]
        try:
            output = self._ask(*command)
        except SubmitError as error:
            if "No job found" in str(error):
                return []
            raise
        try:
            return _decoder.decode(output).RECORDS
        except msgspec.MsgspecError as error:
            raise SubmitError(f"cannot parse the output of bjobs -json: {error}", transient=True) from None


def _view(row: _Row, now_s: float) -> JobView:
    phase = _STATES.phase(row.stat)
    return JobView(
        row.jobid,
        phase,
        ending=_ending(row) if phase is JobPhase.OVER else None,
        name=row.job_name,
        end_s=_end_s(row.finish_time, now_s) if phase is JobPhase.RUNNING else None,
        nodes=frozenset(host.rpartition("*")[2] for host in row.exec_host.split(":")).difference(["", "-"]),
        held=row.stat == "PSUSP",
        detail=" ".join(part for part in (row.stat, row.exit_code, row.exit_reason) if part),
    )


def _ending(row: _Row) -> JobEnd:
    """By ``EXIT_REASON`` (``TERM_PREEMPT: job killed after preemption``), otherwise by the exit code."""
    if row.stat == "DONE":
        return JobEnd.COMPLETED
    known = _REASONS.get(row.exit_reason.split(":")[0].strip())
    by_signal = row.exit_code.isdecimal() and int(row.exit_code) > _BY_SIGNAL
    return known or (JobEnd.GONE if by_signal else JobEnd.FAILED)


def _end_s(finish: str, now_s: float) -> float | None:
    """Unix time of LSF's ``Nov 22 23:50 L``, which is local time without a year; None unless it is a run limit (L),
    such as an estimate (E)."""
    when, _, kind = finish.strip().rpartition(" ")
    year = time.localtime(now_s).tm_year
    years = [local_time_s(f"{y} {when}", "%Y %b %d %H:%M") for y in (year - 1, year, year + 1)]
    ends_s = [end_s for end_s in years if end_s is not None]
    return min(ends_s, key=lambda end_s: abs(end_s - now_s), default=None) if kind == "L" else None
