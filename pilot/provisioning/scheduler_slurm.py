"""Slurm: one ``squeue`` for our user's jobs and one ``sinfo`` per poll; ``sacct`` only for jobs that squeue has
forgotten.

The output is in columns, because with ``--json`` Slurm 22.05 lists all jobs of all users, 2.5 kB each. Other users'
jobs are queried only if they matter, in a few columns: for a limit on a project's jobs, and for plans that concern our
nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from pilot.core.errors import SubmitError
from pilot.host.commands import Run, run_command
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
from pilot.site.hostlist import NodePattern, expand
from pilot.site.site import Site

_ENDINGS = {
    "COMPLETED": JobEnd.COMPLETED,
    "PREEMPTED": JobEnd.PREEMPTED,
    "TIMEOUT": JobEnd.WALLTIME,
    "DEADLINE": JobEnd.WALLTIME,
    "CANCELLED": JobEnd.CANCELLED,
    "REVOKED": JobEnd.CANCELLED,
    "NODE_FAIL": JobEnd.NODE_FAILED,
    "BOOT_FAIL": JobEnd.NODE_FAILED,
    "FAILED": JobEnd.FAILED,
    "OUT_OF_MEMORY": JobEnd.FAILED,
}
_STATES = States(
    pending={"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"},
    suspended={"SUSPENDED", "STOPPED"},
    over=_ENDINGS,
)
_COLUMNS = (
    "JobID:|,State:|,RestartCnt:|,StartTime:|,EndTime:|,PreemptTime:|,TimeLimit:|,Partition:|,Account:|,NodeList:|,"
    "Reason:|,Name:|"
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of squeue, by column. The name is last because it may contain anything."""

    job: str
    state: str
    restarts: str
    start: str
    end: str
    preempt: str
    limit: str
    partition: str
    account: str
    nodes: str
    reason: str
    name: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """A pending job's expected start, and its nodes, as Slurm writes them."""

    start_s: float
    nodes: str


class SlurmQueue(BatchQueue):
    """Slurm's answers about this pool's jobs."""

    CANCELS = ("scancel",)
    KILLS = ("scancel", "--full", "--signal=KILL")
    NO_MORE = ("Invalid job id", "already completing or completed")

    def __init__(self, site: Site, prefix: str, run: Run = run_command, user: str | None = None) -> None:
        super().__init__(site, prefix, run, user)
        self._only = NodePattern.read(site.only_nodes) if site.only_nodes else None

    def poll(self, jobs: Sequence[str], now_s: float) -> QueueSnapshot:
        """See :class:`pilot.provisioning.scheduler.Queue`."""
        rows = self._squeue()
        asked = set(jobs)
        ours = {row.job: row for row in rows if row.job in asked or row.name.startswith(self._prefix)}
        views = {job: _view(row) for job, row in ours.items()}
        trouble = ""
        if forgotten := [job for job in jobs if job not in views]:
            views |= self._sacct(forgotten)
        idle: int | None = None
        planned = 0
        try:
            idle, planned = self._sinfo()
        except SubmitError as error:
            trouble = str(error)
        runs = [job for job, view in views.items() if view.phase is JobPhase.RUNNING]
        plans = self._plans(ours) if planned or runs else []
        for job in runs:
            views[job] = replace(views[job], planned_s=_planned_s(views[job], plans))
        window_s = max(0.0, min(plan.start_s for plan in plans) - now_s) if planned and plans else None
        return QueueSnapshot(views, self._others(rows, ours), idle, planned, window_s, trouble)

    def _squeue(self) -> list[_Row]:
        """Our user's jobs, including those that ended recently."""
        output, columns = self._ask("squeue", "-h", "-t", "all", "-u", self._user, "-O", _COLUMNS), len(fields(_Row))
        rows = [line.removesuffix("|").split("|", columns - 1) for line in output.splitlines() if line.strip()]
        if any(len(row) != columns for row in rows):
            raise SubmitError(f"cannot parse the output of squeue: {output[:80]!r}", transient=True)
        return [_Row(*row) for row in rows]

    def _others(self, rows: Iterable[_Row], ours: dict[str, _Row]) -> int:
        """Other jobs in our partition that count against ``max_jobs``."""
        site = self._site
        if site.max_jobs_scope == "project" and site.account:
            where = ["-p", site.partition] if site.partition else []
            listed = self._ask("squeue", "-h", "-A", site.account, *where, "-o", "%A").split()
            return len(set(listed) - ours.keys())
        return sum(
            row.job not in ours
            and row.state not in _STATES.over
            and (site.partition is None or site.partition in row.partition.split(","))
            for row in rows
        )

    def _sinfo(self) -> tuple[int, int]:
        """How many of the nodes that we may use are idle, and how many are idle until a planned job starts."""
        where = ["-p", self._site.partition] if self._site.partition else []
        output = self._ask("sinfo", "-h", "-N", *where, "-o", "%N %t")
        states = dict(line.split()[:2] for line in output.splitlines() if len(line.split()) >= 2)
        if self._only is not None:
            states = {node: state for node, state in states.items() if self._only.matches(node)}
        return sum(s == "idle" for s in states.values()), sum(s in ("plnd", "planned") for s in states.values())

    def _plans(self, ours: dict[str, _Row]) -> list[_Plan]:
        """When and where others' pending jobs are planned to start. The nodes are not always known: planned nodes are
        assumed to stay idle until the earliest of these starts."""
        output = self._ask("squeue", "-h", "-t", "PD", "-o", "%A|%S|%Y")
        rows = [line.split("|") for line in output.splitlines() if line.count("|") == 2]
        return [_Plan(at_s, nodes) for job, when, nodes in rows if job not in ours and (at_s := _time_s(when))]

    def _sacct(self, jobs: Sequence[str]) -> dict[str, JobView]:
        """What accounting remembers about ``jobs``; empty if there is no accounting."""
        columns = "JobIDRaw,State,Restarts,NodeList"
        found: dict[str, JobView] = {}
        for batch in batches(jobs):
            try:
                output = self._ask("sacct", "-X", "-n", "-P", f"--format={columns}", f"--jobs={','.join(batch)}")
            except SubmitError:
                break
            rows = [line.split("|") for line in output.splitlines() if line.count("|") == columns.count(",")]
            found |= {row[0]: _remembered(*row) for row in rows if row[0] in batch}
        return found


def excluded(site: Site, run: Run = run_command) -> str:
    """The partition's nodes not in ``only_nodes``, as a list for ``--exclude``; "" if there are none.

    Slurm has no option for "one of these nodes": ``--nodelist`` asks for all of them.

    Raises
    ------
    SubmitError : Slurm does not answer, or no node of the partition is named
    """
    only = NodePattern.read(site.only_nodes or "*")
    where = ["-p", site.partition] if site.partition else []
    nodes = dict.fromkeys(run(["sinfo", "-h", "-N", *where, "-o", "%N"], site.command_timeout_s).split())
    others = [node for node in nodes if not only.matches(node)]
    if len(others) == len(nodes):
        raise SubmitError(f"no node of partition {site.partition or 'default'} matches --only-nodes {only.text}")
    return run(["scontrol", "show", "hostlist", ",".join(others)], site.command_timeout_s).strip() if others else ""


def _view(row: _Row) -> JobView:
    phase = _STATES.phase(row.state)
    return JobView(
        row.job,
        phase,
        ending=_ENDINGS.get(row.state, JobEnd.GONE) if phase is JobPhase.OVER else None,
        name=row.name,
        restart=int(row.restarts) if row.restarts.isdecimal() else 0,
        start_s=_time_s(row.start),
        end_s=_time_s(row.end),
        preempt_s=_time_s(row.preempt),
        walltime_s=limit_s(row.limit),
        nodes=row.nodes,
        # Slurm writes None for no reason.
        detail=", ".join([row.state, *([row.reason] if row.reason not in ("", "None") else [])]),
    )


def _planned_s(view: JobView, plans: Sequence[_Plan]) -> float | None:
    """When the first of ``plans`` takes a node of the job."""
    held = _names(view.nodes)
    return min((plan.start_s for plan in plans if not held.isdisjoint(_names(plan.nodes))), default=None)


@lru_cache(maxsize=1024)
def _names(nodes: str) -> frozenset[str]:
    """The nodes of a list; empty if it is unknown or cannot be read."""
    try:
        return frozenset(expand(nodes)) if nodes not in ("", "(null)", "N/A") else frozenset()
    except ValueError:
        return frozenset()


def _time_s(text: str) -> float | None:
    """Unix time of squeue's ``2026-11-22T05:41:15``; None for ``N/A`` and ``NONE``."""
    return local_time_s(text, "%Y-%m-%dT%H:%M:%S")


def limit_s(text: str) -> float | None:
    """Seconds of Slurm's ``[days-]hours:minutes:seconds``, or a part of that; None for ``UNLIMITED``."""
    days, _, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in [days or "0", *parts]):
        return None
    seconds = sum(int(part) * unit for part, unit in zip(reversed(parts), (1, 60, 3600), strict=False))
    return float(seconds + int(days or 0) * 86400)


def _remembered(job: str, state: str, restarts: str, nodes: str) -> JobView:
    word = state.split()[0] if state else ""
    phase = _STATES.phase(word)
    return JobView(job, phase, _ENDINGS.get(word), restart=int(restarts or 0), nodes=nodes, detail=f"{state} (sacct)")
