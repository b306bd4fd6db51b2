"""PBS Pro and OpenPBS: ``qselect`` lists the jobs that exist, one ``qstat -f -F dsv`` shows their states.

Seen on OpenPBS 23.06.06 (``tests/pbs``): a server keeps no history of jobs unless configured to
(``job_history_enable``), and then answers ``qstat -x`` with success and no job at all. So jobs missing in an answer are
queried again without ``-x``, and a job listed by ``qselect`` is never over. Without history, PBS does not know jobs
that are over.

A routing queue passes a job on to an execution queue, so our jobs are found by their owner and name, in any queue.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from pilot.core.errors import SubmitError
from pilot.host.commands import CommandRefused, Run, run_command
from pilot.provisioning.scheduler import (
    BatchQueue,
    JobEnd,
    JobPhase,
    JobView,
    QueueSnapshot,
    States,
    batches,
    local_time_s,
)
from pilot.site.site import Site, walltime_seconds

_STATES = States(pending=set("QHWTM"), suspended=set("SU"), over=set("FX"))
_TERMINATED = "91"
"""The ``substate`` of a job that was deleted."""

_BY_MOM = {
    -29: JobEnd.WALLTIME,
    -4: JobEnd.NODE_FAILED,
    -5: JobEnd.NODE_FAILED,
    -6: JobEnd.NODE_FAILED,
    -14: JobEnd.NODE_FAILED,
    -20: JobEnd.NODE_FAILED,
}
"""``Exit_status`` (OpenPBS 23.06, ``job.h``): the wall time is over, the MoM restarted, a node was lost."""

_RERUN = {-11, -12, -18}
"""The job was run again: requeued, checkpointed, requeued by a hook."""

_BY_SIGNAL = 128
_TERMINATED_BY = re.compile(r"terminated by ([^@\s]+)@")

Attributes = Mapping[str, str]


class PbsQueue(BatchQueue):
    """PBS's answers about this pool's jobs."""

    CANCELS = ("qdel",)
    KILLS = ("qdel", "-W", "force")
    NO_MORE = ("Unknown Job", "has finished", "not configured to maintain job history")

    def __init__(self, site: Site, prefix: str, run: Run = run_command, user: str | None = None) -> None:
        super().__init__(site, prefix, run, user)
        self._strangers: set[str] = set()
        self._also_over = ["-x"]

    def poll(self, jobs: Sequence[str], now_s: float) -> QueueSnapshot:  # noqa: ARG002  # the protocol's signature
        """See :class:`pilot.provisioning.scheduler.Queue`."""
        known = {_number(job): job for job in jobs}
        mine = [known.get(_number(job), job) for job in self._qselect("-u", self._user, *self._server)]
        unknown = [job for job in mine if job not in self._strangers and job not in jobs]
        views = self._views([*jobs, *unknown])
        ours = {job: view for job, view in views.items() if job in jobs or view.name.startswith(self._prefix)}
        listed = frozenset(job for job in mine if job in jobs)
        self._strangers = {job for job in mine if job in views} - ours.keys() | (self._strangers & set(mine))
        return QueueSnapshot(ours, self._others(ours.keys() | listed), listed=listed)

    def kill(self, jobs: Sequence[str]) -> None:
        """See :class:`pilot.provisioning.scheduler.Queue`. A job whose MoM is dead is deleted from the server."""
        self._each(self.KILLS, jobs)

    @cached_property
    def _server(self) -> list[str]:
        """The option for a server other than the default one, which ``queue@server`` names."""
        _, at, server = (self._site.queue or "").partition("@")
        return ["-q", f"@{server}"] if at else []

    @cached_property
    def _queues(self) -> list[list[str]]:
        """The option for each of the queues that our jobs may be in."""
        return [["-q", name] for name in queues(self._site, self._run)] if self._site.queue else [[]]

    def _others(self, ours: Collection[str]) -> int:
        """Other jobs that count against ``max_jobs``: those in our queues."""
        site = self._site
        if site.max_jobs_scope == "project" and site.account:
            whose = ["-A", site.account]
        elif self._strangers:
            whose = ["-u", self._user]
        else:
            return 0
        listed = {_number(job) for queue in self._queues for job in self._qselect(*whose, *queue)}
        return len(listed.difference(map(_number, ours)))

    def _qselect(self, *which: str) -> list[str]:
        return self._ask("qselect", *which).split()

    def _views(self, jobs: Sequence[str]) -> dict[str, JobView]:
        """PBS's views of ``jobs``."""
        found = self._qstat(self._also_over, jobs)
        if self._also_over and (missing := [job for job in jobs if job not in found]):
            again = self._qstat([], missing)
            if again and not found:
                self._also_over = []
            found |= again
        return found

    def _qstat(self, options: Sequence[str], jobs: Sequence[str]) -> dict[str, JobView]:
        by_number = {_number(job): job for job in jobs}
        found: dict[str, JobView] = {}
        for batch in batches(jobs):
            for attributes in _parsed(self._tolerantly("qstat", *options, "-f", "-F", "dsv", *batch)):
                # The answer may abbreviate the server's name.
                if (job := by_number.get(_number(attributes["Job Id"]))) is not None:
                    found[job] = _view(job, attributes)
        return found

    def _tolerantly(self, *command: str) -> str:
        """The answer about the jobs that PBS knows, although the command fails because of the others."""
        try:
            return self._ask(*command)
        except CommandRefused as error:
            lines = error.stderr.splitlines()
            if lines and all(map(self._is_over, lines)):
                return error.output
            raise


def queues(site: Site, run: Run) -> dict[str, Mapping[str, str]]:
    """The site's queue and those that it routes jobs to, by name, with their attributes; queues that PBS does not know
    are left out. Raises SubmitError if it does not answer.
    """
    names = [site.queue] if site.queue else []
    found: dict[str, Mapping[str, str]] = {}
    for name in names:
        try:
            found[name] = attributes(run(["qstat", "-Q", "-f", name], site.command_timeout_s))
        except CommandRefused as error:
            if "Unknown queue" not in error.stderr:
                raise
            continue
        destinations = found[name].get("route_destinations", "").split(",")
        names += [to for to in destinations if to and to not in names]
    return found


def attributes(text: str) -> dict[str, str]:
    """The ``name = value`` lines of qstat -f and qmgr; long values continue on a line that starts with a tab."""
    pairs = (line.strip().partition(" = ") for line in text.replace("\n\t", "").splitlines())
    return {name: value for name, _, value in pairs if value}


def _number(job: str) -> str:
    return job.partition(".")[0]


def _parsed(output: str) -> Iterable[Attributes]:
    """The jobs in the output of ``qstat -f -F dsv``: one per line, attributes separated by a bar, which a backslash
    escapes.

    A value may contain a line break (as in ``Variable_List``); what follows belongs to the line before.
    """
    first, *lines = re.split(r"^(?=Job Id: )", output, flags=re.MULTILINE)
    if first.strip():
        raise SubmitError(f"cannot parse the output of qstat -F dsv: {first[:80]!r}", transient=True)
    for line in lines:
        head, *fields = re.split(r"(?<!\\)\|", line.rstrip("\n"))
        pairs = (field.partition("=") for field in fields)
        yield {"Job Id": head.removeprefix("Job Id: ").strip()} | {name: value for name, _, value in pairs}


def _view(job: str, of: Attributes) -> JobView:
    state, comment = of.get("job_state", ""), of.get("comment", "")
    phase = _STATES.phase(state)
    runs = _integer(of.get("run_count")) or 0
    asked_s = walltime_s(of.get("Resource_List.walltime", ""))
    # Nobody knows when a held job starts, though it may still show an estimate.
    planned = {"W": "Execution_Time", "H": ""}.get(state, "estimated.start_time")
    start_s = _time_s(of.get(planned if phase is JobPhase.PENDING else "stime", ""))
    over = phase is JobPhase.OVER
    return JobView(
        job,
        phase,
        ending=_ending(of) if over else None,
        name=of.get("Job_Name", ""),
        # PBS counts runs, and the first is not a restart; a job that is queued again has had earlier runs.
        restart=max(0, runs if phase is JobPhase.PENDING else runs - 1),
        start_s=start_s,
        end_s=_end_s(of, start_s, asked_s, over=over),
        walltime_s=asked_s,
        nodes=frozenset(re.findall(r"([^+/]+)/", of.get("exec_host", ""))),
        held=state in ("H", "W"),
        detail=": ".join(part for part in (_state(state, of.get("Exit_status")), comment) if part),
    )


def _state(state: str, status: str | None) -> str:
    words = {"H": "held", "S": "suspended", "U": "suspended"}.get(state, state)
    return f"{words}, exit {status}" if status is not None else words


def _end_s(of: Attributes, start_s: float | None, asked_s: float | None, *, over: bool) -> float | None:
    """When it ended, or will end at the latest. (``obittime`` of a job that was run again is from its earlier run.)"""
    if over and (ended_s := _time_s(of.get("obittime", ""))):
        return ended_s
    return start_s + asked_s if start_s and asked_s else None


def _ending(of: Attributes) -> JobEnd:
    """By who terminated it according to the comment; otherwise by ``Exit_status`` (128 and more: a signal from
    anyone)."""
    by = _TERMINATED_BY.search(of.get("comment", ""))
    if by is not None:
        return JobEnd.PREEMPTED if by[1] == "Scheduler" else JobEnd.CANCELLED
    code = _integer(of.get("Exit_status"))
    if code is None:
        return JobEnd.CANCELLED if of.get("substate") == _TERMINATED else JobEnd.GONE
    if code in _BY_MOM:
        return _BY_MOM[code]
    if code in _RERUN:
        return JobEnd.PREEMPTED
    if code >= _BY_SIGNAL:
        return JobEnd.GONE
    return JobEnd.FAILED if code else JobEnd.COMPLETED


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def walltime_s(text: str) -> float | None:
    """Seconds of PBS's ``hours:minutes:seconds``; None if it is no such time."""
    try:
        return float(walltime_seconds(text))
    except ValueError:
        return None


def _time_s(text: str) -> float | None:
    """Unix time of PBS's ``Thu Mar 13 17:32:05 2026``."""
    return local_time_s(text, "%a %b %d %H:%M:%S %Y")
