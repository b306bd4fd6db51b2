"""Turns the jobs in a scheduler log into a trace of idle nodes: a node that no job holds is idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change
from pilot.research.traces.fragments import Fragment, changes_of
from pilot.site.hostlist import MOST_NODES

HANDOVER_S = 60.0
"""An idle time below this is only the gap between one job's end and the next one's start (FreeTrain §2.1)."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job that held ``nodes`` over [start_s, end_s); ``end_s`` None: it was still running when the log ended."""

    start_s: float
    end_s: float | None
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace made from a log, with what the user must know about it.

    ``origin_s`` is the log's time at the trace's second 0; ``notes`` are sentences.
    """

    changes: list[Change]
    origin_s: float
    notes: tuple[str, ...] = ()


MOST_HELD = 50_000_000
"""Most node names in all jobs of a log, ten years of the busiest machines; more would only fill our memory."""


def gathered(jobs: Iterable[TraceJob], log: str) -> list[TraceJob]:
    """All ``jobs``, with one string per node however often it is named. Raises UserError if the jobs name more nodes
    than any machine has, or hold more than we have room for."""
    names: dict[NodeId, NodeId] = {}
    found: list[TraceJob] = []
    held = 0
    for job in jobs:
        held += len(job.nodes)
        found.append(replace(job, nodes=tuple(names.setdefault(node, node) for node in job.nodes)))
        if len(names) > MOST_NODES or held > MOST_HELD:
            raise UserError(
                f"{log}: its first {len(found)} jobs use {held:,} nodes with {len(names):,} names: too many"
            )
    return found


def idle_trace(
    jobs: Sequence[TraceJob],
    nodes: Iterable[NodeId] | None = None,
    *,
    handover_s: float = HANDOVER_S,
    notes: Sequence[str] = (),
    log: str = "the log",
) -> ImportedTrace:
    """The trace of the nodes that ``jobs`` leave idle, from the first start to the last end.

    ``nodes`` are the machine's (default: those that a job held). A gap shorter than ``handover_s`` is not a fragment.
    ``log`` names the source of the jobs in error messages.
    """
    if not jobs:
        raise UserError(f"{log}: no job ran on a node, so there is no trace")
    origin_s = min(job.start_s for job in jobs)
    stop_s = max(job.start_s if job.end_s is None else job.end_s for job in jobs)
    busy = _busy(jobs, stop_s)
    named = list(dict.fromkeys([*(nodes or ()), *busy]))
    fragments = [f for node in named for f in _gaps(node, busy.get(node, []), origin_s, stop_s, handover_s)]
    if not fragments:
        raise UserError(f"{log}: no node was idle for longer than the handover time, so there is no trace")
    own_notes = (
        []
        if nodes
        else [
            f"assuming that the machine is the {len(named)} nodes that had a job; nodes that were always idle are"
            " missing"
        ]
    )
    return ImportedTrace(changes_of(fragments), origin_s, (*notes, *own_notes))


def _busy(jobs: Sequence[TraceJob], stop_s: float) -> dict[NodeId, list[tuple[float, float]]]:
    busy: dict[NodeId, list[tuple[float, float]]] = {}
    for job in sorted(jobs, key=lambda job: job.start_s):
        for node in job.nodes:
            busy.setdefault(node, []).append((job.start_s, stop_s if job.end_s is None else job.end_s))
    return busy


def _gaps(
    node: NodeId, busy: Sequence[tuple[float, float]], origin_s: float, stop_s: float, handover_s: float
) -> Iterable[Fragment]:
    """The gaps between ``busy`` intervals (by start; they may overlap) as fragments on the trace's clock."""
    free_s = origin_s
    for start_s, end_s in busy:
        if start_s - free_s >= handover_s:
            yield Fragment(node, free_s - origin_s, start_s - origin_s)
        free_s = max(free_s, end_s)
    if stop_s - free_s >= handover_s:
        yield Fragment(node, free_s - origin_s, stop_s - origin_s, censored=True)
