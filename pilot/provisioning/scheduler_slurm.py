"""Slurm: one ``squeue --json`` for everything and one ``sinfo`` per poll; ``sacct`` only for what squeue forgot.

Read with Slurm 22.05's fields; later versions wrap numbers as ``{"set": …, "number": …}`` and give states as lists.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pilot.core.errors import SubmitError
from pilot.io.site import Site
from pilot.provisioning.scheduler import Ending, JobPhase, JobView, Run, Snapshot, run_command

_PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_ENDINGS = {
    "COMPLETED": Ending.COMPLETED,
    "PREEMPTED": Ending.PREEMPTED,
    "TIMEOUT": Ending.WALLTIME,
    "DEADLINE": Ending.WALLTIME,
    "CANCELLED": Ending.CANCELLED,
    "REVOKED": Ending.CANCELLED,
    "NODE_FAIL": Ending.NODE_FAILED,
    "BOOT_FAIL": Ending.NODE_FAILED,
    "FAILED": Ending.FAILED,
    "OUT_OF_MEMORY": Ending.FAILED,
}


class _Job(msgspec.Struct):
    """The fields of a job of ``squeue --json`` that are read; all others are skipped while decoding."""

    job_id: Any = 0
    name: str | None = ""
    job_state: Any = ""
    user_name: str | None = ""
    account: str | None = ""
    partition: str | None = ""
    nodes: str | None = ""
    state_reason: str | None = ""
    restart_cnt: Any = 0
    start_time: Any = 0
    end_time: Any = 0
    preempt_time: Any = 0
    time_limit: Any = 0


class _Reply(msgspec.Struct):
    jobs: list[_Job]
    errors: list[Any] = []


_decoder = msgspec.json.Decoder(_Reply)


class SlurmQueue:
    """Slurm's answers about this pool's jobs: those whose name starts with ``prefix`` and a dot.

    ``run`` is how commands are run (recorded answers in tests), ``user`` whose jobs ours are.
    """

    def __init__(self, site: Site, prefix: str, run: Run = run_command, user: str | None = None) -> None:
        self._site = site
        self._prefix = f"{prefix}."
        self._run = run
        self._user = user or getpass.getuser()

    def poll(self, jobs: Sequence[str], now_s: float) -> Snapshot:
        """See :class:`pilot.provisioning.scheduler.Queue`."""
        rows = self._squeue()
        asked = set(jobs)
        ours = {str(_number(row.job_id)): row for row in rows if self._is_ours(row, asked)}
        views = {job: _view(job, row) for job, row in ours.items()}
        trouble = ""
        if forgotten := [job for job in jobs if job not in views]:
            views |= self._sacct(forgotten)
        idle: int | None = None
        planned = 0
        try:
            idle, planned = self._sinfo()
        except SubmitError as error:
            trouble = str(error)
        window_s = _window_s(rows, ours, now_s) if planned else None
        return Snapshot(views, self._others(rows, ours), idle, planned, window_s, trouble)

    def kill(self, jobs: Sequence[str]) -> None:
        """See :class:`pilot.provisioning.scheduler.Queue`."""
        self._run(["scancel", "--full", "--signal=KILL", *jobs], self._site.command_timeout_s)

    def _squeue(self) -> list[_Job]:
        output = self._run(["squeue", "--json"], self._site.command_timeout_s)
        try:
            reply = _decoder.decode(output)
        except msgspec.MsgspecError as error:
            raise SubmitError(f"squeue --json gave what cannot be read: {error}", transient=True) from None
        if reply.errors:
            # Its list of jobs is then empty or cut short; taken for the truth, all our jobs would seem to be over.
            raise SubmitError(f"squeue --json reported an error: {reply.errors[0]}", transient=True)
        return reply.jobs

    def _is_ours(self, row: _Job, asked: set[str]) -> bool:
        return str(_number(row.job_id)) in asked or (
            row.user_name == self._user and (row.name or "").startswith(self._prefix)
        )

    def _others(self, rows: Iterable[_Job], ours: dict[str, _Job]) -> int:
        """Living jobs in our partition that count against ``max_jobs`` beside ours."""
        partition, account = self._site.partition, self._site.account
        in_project = self._site.max_jobs_scope == "project"
        return sum(
            _phase(row) is not JobPhase.OVER
            and str(_number(row.job_id)) not in ours
            and (partition is None or partition in (row.partition or "").split(","))
            and (row.account == account if in_project else row.user_name == self._user)
            for row in rows
        )

    def _sinfo(self) -> tuple[int, int]:
        """Nodes of the partition that are idle for anyone, and idle until a planned job starts."""
        where = ["-p", self._site.partition] if self._site.partition else []
        output = self._run(["sinfo", "-h", "-N", *where, "-o", "%N %t"], self._site.command_timeout_s)
        states = dict(line.split()[:2] for line in output.splitlines() if len(line.split()) >= 2)
        return sum(s == "idle" for s in states.values()), sum(s in ("plnd", "planned") for s in states.values())

    def _sacct(self, jobs: Sequence[str]) -> dict[str, JobView]:
        """What accounting remembers of ``jobs``; nothing where there is none."""
        columns = "JobIDRaw,State,Restarts,NodeList"
        command = ["sacct", "-X", "-n", "-P", f"--format={columns}", f"--jobs={','.join(jobs)}"]
        try:
            output = self._run(command, self._site.command_timeout_s)
        except SubmitError:
            return {}
        rows = [line.split("|") for line in output.splitlines() if line.count("|") == columns.count(",")]
        return {row[0]: _remembered(*row) for row in rows if row[0] in jobs}


def _view(job: str, row: _Job) -> JobView:
    phase = _phase(row)
    return JobView(
        job,
        phase,
        ending=_ENDINGS.get(_states(row)[0], Ending.GONE) if phase is JobPhase.OVER else None,
        name=row.name or "",
        restart=_number(row.restart_cnt),
        start_s=_number(row.start_time) or None,
        end_s=_number(row.end_time) or None,
        preempt_s=_number(row.preempt_time) or None,
        walltime_s=_number(row.time_limit) * 60 or None,
        nodes=row.nodes or "",
        detail=", ".join([" ".join(_states(row)), *_reason(row)]),
    )


def _reason(row: _Job) -> list[str]:
    """Why it waits or ended; Slurm says ``None`` where there is nothing to say."""
    return [row.state_reason] if row.state_reason not in (None, "", "None") else []


def _phase(row: _Job) -> JobPhase:
    """Unknown states count as running: else one would submit too many."""
    states = _states(row)
    if "COMPLETING" in states:
        return JobPhase.RUNNING
    if _PENDING & set(states):
        return JobPhase.PENDING
    return JobPhase.OVER if states[0] in _ENDINGS else JobPhase.RUNNING


def _states(row: _Job) -> list[str]:
    states = row.job_state if isinstance(row.job_state, list) else [row.job_state]
    return [str(state).upper() for state in states] or [""]


def _number(value: Any) -> int:
    """A number of squeue's JSON, whichever version wrote it; 0 where it is not set."""
    if isinstance(value, dict):
        return int(value.get("number") or 0) if value.get("set") else 0
    return int(value or 0)


def _remembered(job: str, state: str, restarts: str, nodes: str) -> JobView:
    word = state.split()[0] if state else ""
    ending = _ENDINGS.get(word)
    alive = JobPhase.PENDING if word in _PENDING else JobPhase.RUNNING
    phase = JobPhase.OVER if ending else alive
    return JobView(job, phase, ending, restart=int(restarts or 0), nodes=nodes, detail=f"{state} (sacct)")


def _window_s(rows: Iterable[_Job], ours: dict[str, _Job], now_s: float) -> float | None:
    """How long planned nodes stay idle at least: until the earliest planned start of a pending job that is not ours.

    ``squeue --json`` of 22.05 does not say on which nodes, so the earliest start counts for all of them.
    """
    starts = [
        _number(row.start_time)
        for row in rows
        if _phase(row) is JobPhase.PENDING and _number(row.start_time) and str(_number(row.job_id)) not in ours
    ]
    return max(0.0, min(starts) - now_s) if starts else None
