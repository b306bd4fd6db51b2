"""Standard Workload Format of the Parallel Workloads Archive (Feitelson et al.): jobs without node names. Placement is
simulated, first fit by node number.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.research.traces.jobs import HANDOVER_S, ImportedTrace, TraceJob, gathered, idle_trace
from pilot.research.traces.text_files import Skipped, bad_input, number, read_lines
from pilot.site.hostlist import MOST_NODES

FIELDS = 18
SUBMIT, WAIT, RUN, ALLOCATED, REQUESTED = 1, 2, 3, 4, 7
_HEADER = re.compile(r";\s*(MaxNodes|MaxProcs):\s*([0-9]{1,18})\b")


@dataclass(frozen=True, slots=True)
class _Run:
    line: int
    start_s: float
    end_s: float
    processors: int


def import_swf(path: Path, *, handover_s: float = HANDOVER_S) -> ImportedTrace:
    """The idle nodes of an SWF log, with simulated placement. Raises UserError, with file and line, if MaxNodes is
    missing or most records are malformed."""
    header: dict[str, int] = {}
    skipped = Skipped()
    runs = list(_runs(path, header, skipped))
    machine = header.get("MaxNodes", 0)
    if machine < 1:
        raise UserError(f"{path}:1: no '; MaxNodes: N' in the header; add the machine's number of nodes")
    if machine > MOST_NODES:
        raise UserError(f"{path}: MaxNodes is {machine}; no machine has more than {MOST_NODES:,} nodes")
    per_node = max(1.0, header.get("MaxProcs", machine) / machine)
    placed = _Placement(machine)
    jobs = (placed.start(run, math.ceil(run.processors / per_node)) for run in sorted(runs, key=lambda r: r.start_s))
    held = gathered((job for job in jobs if job.nodes), str(path))
    notes = [*skipped.notes(), "the log has no node names: placement is simulated, first fit by node number"]
    if placed.cut:
        notes.append(f"{placed.cut} jobs found fewer free nodes than they used and were given what was free")
    return idle_trace(held, placed.names, handover_s=handover_s, notes=notes, log=str(path))


def _runs(path: Path, header: dict[str, int], skipped: Skipped) -> Iterator[_Run]:
    for line, text in enumerate(read_lines(path, errors="replace"), start=1):
        if text.startswith(";"):
            if match := _HEADER.match(text):
                header[match[1]] = int(match[2])
        elif text.strip():
            run = None
            with skipped.record():
                run = _run(path, line, text.split())
            if run is not None and run.end_s > run.start_s and run.processors > 0:
                yield run


def _run(path: Path, line: int, fields: list[str]) -> _Run:
    """A line's job. -1 means unknown; a job that did not run has a run time of 0 or -1."""
    if len(fields) != FIELDS:
        raise bad_input(
            path, line, f"expected the {FIELDS} fields of the Standard Workload Format, found {len(fields)}"
        )

    def value(index: int, what: str) -> float:
        return number(path, line, what, fields[index], least=-1)

    start_s = value(SUBMIT, "submit time") + max(0.0, value(WAIT, "wait time"))
    allocated, requested = value(ALLOCATED, "allocated processors"), value(REQUESTED, "requested processors")
    return _Run(line, start_s, start_s + value(RUN, "run time"), int(allocated if allocated > 0 else requested))


class _Placement:
    """First fit by node number: a heap of the free nodes, and a heap of the jobs' nodes by end time."""

    def __init__(self, machine: int) -> None:
        width = len(str(machine))
        self.names = [NodeId(f"n{index:0{width}d}") for index in range(1, machine + 1)]
        self.cut = 0
        self._free = list(range(machine))
        self._ends: list[tuple[float, list[int]]] = []

    def start(self, run: _Run, nodes: int) -> TraceJob:
        self._release(run.start_s)
        chosen = [heapq.heappop(self._free) for _ in range(min(nodes, len(self._free)))]
        self.cut += len(chosen) < nodes
        heapq.heappush(self._ends, (run.end_s, chosen))
        return TraceJob(run.start_s, run.end_s, tuple(self.names[index] for index in chosen))

    def _release(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            self._give_back(heapq.heappop(self._ends)[1])

    def _give_back(self, nodes: Iterable[int]) -> None:
        for index in nodes:
            heapq.heappush(self._free, index)
