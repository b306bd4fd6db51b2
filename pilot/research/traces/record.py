"""Record a trace of a live scheduler's idle nodes, one poll at a time (FreeTrain §2.1). Slurm's and PBS's JSON is read
by pure functions.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import IO, Any

from pilot.core.errors import PilotError, SubmitError, UserError
from pilot.core.ids import NodeId, natural_key
from pilot.host.commands import run_command
from pilot.host.output_files import reached
from pilot.research.traces.changes import HEADER, Change, format_change, stream_changes
from pilot.research.traces.text_files import read_lines
from pilot.site.hostlist import expand

QUERY_LIMIT_S = 60.0
IDLE_STATES = {"IDLE", "PLANNED"}
"""Slurm's states of a node that a job could use at once; PLANNED is reserved for a job that cannot start yet."""
PBS_USABLE = {"free", "job-busy", "job-exclusive"}
"""PBS's states of a node that is up; in the last two, its jobs leave nothing on it free."""
HOLDING_STATES = {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED"}


def query_slurm(preemptable: Collection[str] = ()) -> set[NodeId]:
    """Ask ``sinfo`` and, for nodes that only jobs of ``preemptable`` partitions hold, ``squeue``."""
    idle = _asked(slurm_idle, "sinfo", "-N", "--json")
    if not preemptable:
        return idle
    return idle | _asked(lambda squeue: slurm_preemptable(squeue, preemptable), "squeue", "--json")


def query_pbs(preemptable: Collection[str] = ()) -> set[NodeId]:
    """Ask ``pbsnodes`` and, for nodes that only jobs of ``preemptable`` queues hold, ``qselect``."""
    jobs = {
        job
        for queue in preemptable
        for job in run_command(["qselect", "-s", "RSE", "-q", queue], QUERY_LIMIT_S).split()
    }
    return _asked(lambda pbsnodes: pbs_idle(pbsnodes, jobs), "pbsnodes", "-a", "-F", "json")


def slurm_idle(sinfo: Any) -> set[NodeId]:
    """Idle nodes in the output of ``sinfo -N --json`` (Slurm 22.05: ``nodes``; since 23.02: ``sinfo``)."""
    return {node for node, states in _slurm_nodes(sinfo) if "IDLE" in states and states <= IDLE_STATES}


def _slurm_nodes(sinfo: Any) -> Iterator[tuple[NodeId, set[str]]]:
    for entry in sinfo.get("nodes", ()):
        yield NodeId(entry["name"]), _states(entry["state"]) | _states(entry.get("state_flags", ()))
    for entry in sinfo.get("sinfo", ()):
        for name in entry["nodes"]["nodes"]:
            yield NodeId(name), _states(entry["node"]["state"])


def slurm_preemptable(squeue: Any, partitions: Collection[str]) -> set[NodeId]:
    """Nodes held by jobs of ``partitions`` and by no other job, from ``squeue --json``."""
    ours: set[NodeId] = set()
    others: set[NodeId] = set()
    for job in squeue["jobs"]:
        if _states(job["job_state"]) & HOLDING_STATES:
            (ours if job["partition"] in partitions else others).update(expand(job.get("nodes") or ""))
    return ours - others


def pbs_idle(pbsnodes: Any, preemptable: Collection[str] = ()) -> set[NodeId]:
    """Idle nodes in the output of ``pbsnodes -a -F json``: used by no jobs, or only by those in ``preemptable`` (ids).

    A node lists a job once for each of its chunks there, as ``ID/CHUNK``.
    """
    usable = ((name, node) for name, node in pbsnodes["nodes"].items() if node.get("state") in PBS_USABLE)
    return {
        NodeId(name)
        for name, node in usable
        if {job.partition("/")[0] for job in node.get("jobs") or ()} <= set(preemptable)
    }


def _states(states: Any) -> set[str]:
    """One state or a list of them: versions differ."""
    return {states.upper()} if isinstance(states, str) else {state.upper() for state in states}


def _asked(read: Callable[[Any], set[NodeId]], *command: str) -> set[NodeId]:
    """What ``read`` makes of the JSON of ``command``; :class:`SubmitError` (transient) if it makes nothing of it."""
    answer = run_command(command, QUERY_LIMIT_S)
    try:
        return read(json.loads(answer))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise SubmitError(f"{' '.join(command)}: cannot read its answer: {why}", transient=True) from None


_ORIGIN = re.compile(r"# time_s 0 is (\S+)")


class Recorder:
    """Turns polls into changes, one poll late.

    A node counts as idle only if two polls in a row saw it idle: one seen only once is between one job's end and the
    next one's start.
    """

    def __init__(self, pool: Collection[NodeId] = ()) -> None:
        self.pool: set[NodeId] = set(pool)
        self._last: tuple[float, frozenset[NodeId]] | None = None

    def poll(self, time_s: float, idle: Collection[NodeId]) -> Change | None:
        """Take the nodes that are idle at ``time_s``; return the change at the previous poll, if there was one."""
        previous, self._last = self._last, (time_s, frozenset(idle))
        if previous is None:
            return None
        at_s, seen = previous
        joined = sorted((seen & self._last[1]) - self.pool, key=natural_key)
        left = sorted(self.pool - seen, key=natural_key)
        self.pool.update(joined)
        self.pool.difference_update(left)
        return Change(at_s, tuple(joined), tuple(left)) if joined or left else None


def record(
    path: Path,
    query: Callable[[], set[NodeId]],
    interval_s: float,
    stop: Event,
    *,
    warn: Callable[[str], None],
    clock: Callable[[], float] = time.time,
) -> int:
    """Poll until ``stop`` is set, appending to the trace at ``path`` (created if missing). Returns how many changes.

    A poll that fails is skipped and reported to ``warn``; a permanent failure (no such command) is raised.
    """
    query()
    origin_s, last_s, pool = resume(path) if path.exists() else (_begin(path, clock()), -1.0, set())
    recorder, written = Recorder(pool), 0
    with _append(path) as stream:
        while not stop.is_set():
            last_s = max(math.floor(clock() - origin_s), last_s + 1)
            change = _poll(recorder, query, last_s, warn)
            if change is not None:
                stream.write(format_change(change))
                stream.flush()
                written += 1
            stop.wait(interval_s)
    return written


def resume(path: Path) -> tuple[float, float, set[NodeId]]:
    """The Unix time of a recorded trace's second 0, the time of its last change, and the pool after it. A last row that
    was cut off (the disk was full, or the host stopped) is removed."""
    match = _ORIGIN.match(next(read_lines(path), ""))
    if match is None:
        raise UserError(f"{path}:1: not a recorded trace (no '# time_s 0 is ...'); give another file to record to")
    _remove_torn_row(path)
    last_s, pool = -1.0, set[NodeId]()
    if sum(1 for _ in read_lines(path)) > len(("origin", "header")):
        for change in stream_changes(path):
            pool.difference_update(change.left)
            pool.update(change.joined)
            last_s = change.time_s
    return datetime.fromisoformat(match[1]).timestamp(), last_s, pool


def _remove_torn_row(path: Path) -> None:
    try:
        with reached(path) as place, place.open("rb+") as file:
            content = file.read()
            if content.count(b"\n") > 1:  # the origin and the header are whole
                file.truncate(content.rfind(b"\n") + 1)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _begin(path: Path, now_s: float) -> float:
    origin = datetime.fromtimestamp(math.floor(now_s), UTC)
    with _append(path) as stream:
        stream.write(f"# time_s 0 is {origin.isoformat()}\n{','.join(HEADER)}\n")
    return origin.timestamp()


def _append(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        raise UserError(f"{path}: traces are recorded as plain text; compress the file when it is complete")
    try:
        with reached(path) as place:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            return os.fdopen(descriptor, "a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def _poll(
    recorder: Recorder, query: Callable[[], set[NodeId]], time_s: float, warn: Callable[[str], None]
) -> Change | None:
    try:
        idle = query()
    except PilotError as error:
        if not error.transient:
            raise
        warn(f"skipped this poll: {error}")
        return None
    return recorder.poll(time_s, idle)
