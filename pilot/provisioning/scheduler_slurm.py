"""Slurm: one ``squeue`` for our user's jobs and one ``sinfo`` per poll; ``sacct`` only for jobs that squeue has
forgotten, ``scontrol`` for reservations only if nodes are idle.

The output is in columns, because with ``--json`` Slurm 22.05 lists all jobs of all users, 2.5 kB each. Other users'
jobs are queried only if they matter, in a few columns: for a limit on a project's jobs, and for plans that concern our
nodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from launchers.steps import slurm_option
from pilot.core.errors import SubmitError
from pilot.host.commands import Run, run_command
from pilot.provisioning.scheduler import (
    WINDOW_MARGIN_S,
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
_HELD = re.compile(r"Held|JobHold|(?<![a-z])held|_HOLD|SPECIAL_EXIT|Dependency")
"""Found in states and reasons that concern one job only: JobHeldAdmin, ``launch failed requeued held``."""

_STATES = States(
    pending={"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"},
    suspended={"SUSPENDED", "STOPPED"},
    over=_ENDINGS,
)
_COLUMNS = (
    *("JobID", "State", "RestartCnt", "StartTime", "EndTime", "PreemptTime", "TimeLimit", "Partition", "NodeList"),
    *("Reason", "Name"),
)
"""The columns of squeue. The name is last because it may contain anything."""
_SACCT = {
    "JobIDRaw": "JobID",
    "State": "State",
    "NodeList": "NodeList",
    "Start": "StartTime",
    "End": "EndTime",
    "Timelimit": "TimeLimit",
    "Restarts": "RestartCnt",
}
"""The columns of sacct, with their names in squeue. Not every version has all of them."""

_NO_ACCOUNTING = "accounting storage is disabled"

Row = Mapping[str, str]
"""A job's values by the names of squeue's columns."""


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
        rows = self._rows()
        asked = set(jobs)
        ours = {row["JobID"]: row for row in rows if row["JobID"] in asked or row["Name"].startswith(self._prefix)}
        views = {job: _view(row) for job, row in ours.items()}
        ended, no_ends = self._sacct([job for job in jobs if job not in views])
        views |= ended
        idle, planned, no_nodes = self._sinfo()
        reserved, no_reservations = self._reserved(idle, now_s)
        runs = [job for job, view in views.items() if view.phase is JobPhase.RUNNING]
        plans = self._plans(ours) if planned or runs else []
        for job in runs:
            views[job] = replace(views[job], planned_s=_planned_s(views[job], plans))
        usable = self._usable(reserved, now_s)
        starts = [*(plan.start_s for plan in plans if planned), *usable]
        return QueueSnapshot(
            views,
            self._others(rows, ours),
            None if idle is None else len(idle - reserved.keys()),
            planned + len(usable),
            max(0.0, min(starts) - now_s) if starts else None,
            "; ".join(filter(None, (no_ends, no_nodes, no_reservations))),
        )

    def _squeue(self, *options: str) -> str:
        """The answer of squeue about jobs in any partition, also one that is hidden."""
        return self._ask("squeue", "-h", "-a", *options)

    def _rows(self) -> list[Row]:
        """Our user's jobs, including those that ended recently."""
        form = ",".join(f"{column}:|" for column in _COLUMNS)
        output = self._squeue("-t", "all", "-u", self._user, "-O", form)
        lines = [line.removesuffix("|") for line in output.splitlines() if line.strip()]
        if any(line.count("|") < len(_COLUMNS) - 1 for line in lines):
            raise SubmitError(f"cannot parse the output of squeue: {output[:80]!r}", transient=True)
        return [dict(zip(_COLUMNS, line.split("|", len(_COLUMNS) - 1), strict=True)) for line in lines]

    def _others(self, rows: Iterable[Row], ours: Collection[str]) -> int:
        """Other jobs in our partition that count against ``max_jobs``."""
        site = self._site
        if site.max_jobs_scope == "project" and site.account:
            listed = self._squeue("-A", site.account, *_in_partition(site), "-o", "%A").split()
            return len(set(listed).difference(ours))
        return sum(
            row["JobID"] not in ours
            and row["State"] not in _STATES.over
            and (site.partition is None or site.partition in row["Partition"].split(","))
            for row in rows
        )

    def _sinfo(self) -> tuple[set[str] | None, int, str]:
        """Which of the nodes that we may use are idle, and how many are idle until a planned job starts; or why that is
        not known."""
        try:
            output = self._ask("sinfo", "-h", "-N", *_in_partition(self._site), "-o", "%N %t")
        except SubmitError as error:
            return None, 0, str(error)
        states = dict(line.split()[:2] for line in output.splitlines() if len(line.split()) >= 2)
        usable = {node: state for node, state in states.items() if self._only is None or self._only.matches(node)}
        idle = {node for node, state in usable.items() if state == "idle"}
        return idle, sum(state in ("plnd", "planned") for state in usable.values()), ""

    def _reserved(self, idle: Collection[str] | None, now_s: float) -> tuple[dict[str, float], str]:
        """Which ``idle`` nodes are reserved for others before a pilot of full wall time would end, and when that begins
        (Unix time); or why that is not known."""
        begins: dict[str, float] = {}
        if not idle:
            return begins, ""
        try:
            output = self._ask("scontrol", "show", "reservation", "-o")
        except SubmitError as error:
            return begins, f"reservations are not known: {error}"
        for line in output.splitlines():
            of = dict(word.partition("=")[::2] for word in line.split())
            start_s = _time_s(of.get("StartTime", ""))
            if start_s and now_s < start_s < now_s + self._site.walltime_s and not self._may_use(of):
                for node in _names(of.get("Nodes", "")).intersection(idle):
                    begins[node] = min(start_s, begins.get(node, start_s))
        return begins, ""

    def _usable(self, reserved: Mapping[str, float], now_s: float) -> list[float]:
        """When those of the ``reserved`` nodes are needed that are free until then for long enough for a pilot."""
        shortest_s = self._site.walltime_min_s if self._site.walltime_min else 0
        return [start_s for start_s in reserved.values() if start_s - now_s >= shortest_s + WINDOW_MARGIN_S]

    def _may_use(self, reservation: Row) -> bool:
        """Whether our jobs run in it: they name it, or it attracts all jobs of its users and accounts."""
        named = ",".join(slurm_option(self._site, "--reservation"))
        if reservation.get("ReservationName") in named.split(","):
            return True
        admits = {*reservation.get("Users", "").split(","), *reservation.get("Accounts", "").split(",")}
        return "MAGNETIC" in reservation.get("Flags", "").split(",") and bool(admits & {self._user, self._site.account})

    def _plans(self, ours: Collection[str]) -> list[_Plan]:
        """When and where others' pending jobs are planned to start. The nodes are not always known: planned nodes are
        assumed to stay idle until the earliest of these starts."""
        output = self._squeue("-t", "PD", "-o", "%A|%S|%Y")
        rows = [line.split("|") for line in output.splitlines() if line.count("|") == 2]
        return [_Plan(at_s, nodes) for job, when, nodes in rows if job not in ours and (at_s := _time_s(when))]

    def _sacct(self, jobs: Sequence[str]) -> tuple[dict[str, JobView], str]:
        """How ``jobs`` ended according to accounting, and why that is not known. There may be no accounting; and it
        lags: what squeue does not list does not live, whatever is shown here."""
        found: dict[str, JobView] = {}
        if not jobs:
            return found, ""
        try:
            columns = self._sacct_columns
            for batch in batches(jobs):
                which = [f"--format={','.join(columns)}", f"--jobs={','.join(batch)}"]
                lines = [line.split("|") for line in self._ask("sacct", "-X", "-n", "-P", *which).splitlines()]
                rows = [dict(zip(columns.values(), line, strict=True)) for line in lines if len(line) == len(columns)]
                found |= {row["JobID"]: _view(row) for row in rows if row["JobID"] in batch}
        except SubmitError as error:
            return {}, "" if _NO_ACCOUNTING in str(error) else f"how jobs ended is not known: {error}"
        return {job: view for job, view in found.items() if view.phase is JobPhase.OVER}, ""

    @cached_property
    def _sacct_columns(self) -> dict[str, str]:
        known = self._ask("sacct", "--helpformat").split()
        return {name: column for name, column in _SACCT.items() if name in known}


def _in_partition(site: Site) -> list[str]:
    return ["-p", site.partition] if site.partition else []


def excluded(site: Site, run: Run = run_command) -> str:
    """The partition's nodes not in ``only_nodes``, as a list for ``--exclude``; "" if there are none.

    Slurm has no option for "one of these nodes": ``--nodelist`` asks for all of them. Raises SubmitError if Slurm does
    not answer, or no node of the partition is named.
    """
    only = NodePattern.read(site.only_nodes or "*")
    listed = run(["sinfo", "-h", "-N", *_in_partition(site), "-o", "%N"], site.command_timeout_s)
    nodes = dict.fromkeys(listed.split())
    others = [node for node in nodes if not only.matches(node)]
    if len(others) == len(nodes):
        raise SubmitError(f"no node of partition {site.partition or 'default'} matches --only-nodes {only.text}")
    return run(["scontrol", "show", "hostlist", ",".join(others)], site.command_timeout_s).strip() if others else ""


def _view(row: Row) -> JobView:
    # sacct may add whose cancellation it was; Slurm writes None for no reason.
    state, reason = row["State"].partition(" ")[0], row.get("Reason", "")
    phase = _STATES.phase(state)
    held = phase is JobPhase.PENDING and _HELD.search(f"{state} {reason}") is not None
    return JobView(
        row["JobID"],
        phase,
        ending=_ENDINGS.get(state, JobEnd.GONE) if phase is JobPhase.OVER else None,
        name=row.get("Name", ""),
        restart=int(restarts) if (restarts := row.get("RestartCnt", "")).isdecimal() else 0,
        start_s=None if held else _time_s(row.get("StartTime", "")),
        end_s=_time_s(row.get("EndTime", "")),
        preempt_s=_time_s(row.get("PreemptTime", "")),
        walltime_s=limit_s(row.get("TimeLimit", "UNLIMITED")),
        nodes=_names(row["NodeList"]),
        detail=row["State"] if reason in ("", "None") else f"{state}, {reason}",
        held=held or (phase is JobPhase.PENDING and reason == "BeginTime"),
    )


def _planned_s(view: JobView, plans: Sequence[_Plan]) -> float | None:
    """When the first of ``plans`` takes a node of the job."""
    return min((plan.start_s for plan in plans if not view.nodes.isdisjoint(_names(plan.nodes))), default=None)


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
