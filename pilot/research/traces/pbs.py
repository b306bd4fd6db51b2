"""PBS accounting logs: ``time;record type;job id;key=value ...``, one file a day (PBS Professional Reference Guide)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pilot.core.ids import NodeId
from pilot.research.traces.jobs import HANDOVER_S, ImportedTrace, TraceJob, idle_trace
from pilot.research.traces.text_files import Skipped, bad_input, number, read_lines

STARTED, ENDED, RERUN = "S", "E", "R"
_NODE = re.compile(r"([^/+]+)/[^+]*")


def import_pbs(
    paths: Sequence[Path],
    nodes: Sequence[NodeId] | None = None,
    *,
    preemptable: Collection[str] = (),
    handover_s: float = HANDOVER_S,
) -> ImportedTrace:
    """The idle nodes of accounting logs, given in date order.

    A job with a start but no end ran until the log ended. Jobs of ``preemptable`` queues (including pilots) hold no
    node, but show that their nodes exist. Raises UserError, with file and line, if most records are malformed.
    """
    running: dict[str, TraceJob] = {}
    jobs: list[TraceJob] = []
    seen: set[NodeId] = set()
    skipped = Skipped()
    for path in paths:
        for kind, job_id, queue, job in _records(path, skipped):
            running.pop(job_id, None)
            if job is None:
                continue
            seen.update(job.nodes)
            if queue in preemptable:
                continue
            if kind == STARTED:
                running[job_id] = job
            else:
                jobs.append(job)
    notes, log = skipped.notes(), ", ".join(map(str, paths))
    machine = sorted(seen) if nodes is None and preemptable else nodes
    return idle_trace([*jobs, *running.values()], machine, handover_s=handover_s, notes=notes, log=log)


def _records(path: Path, skipped: Skipped) -> Iterator[tuple[str, str, str, TraceJob | None]]:
    """Kind, job id and queue of the records of starts and ends, and the job; None: no node, or it is malformed."""
    for line, text in enumerate(read_lines(path, errors="replace"), start=1):
        if not text.strip():
            continue
        found: tuple[str, str, str, TraceJob | None] | None = None
        with skipped.record():
            kind, job_id, values = _parts(path, line, text)
            if kind in (STARTED, ENDED, RERUN):
                found = kind, job_id, values.get("queue", ""), None
            if found is not None and "exec_host" in values:
                found = *found[:3], _job(path, line, kind, values)
        if found is not None:
            yield found


def _parts(path: Path, line: int, text: str) -> tuple[str, str, dict[str, str]]:
    parts = text.rstrip("\n").split(";", 3)
    if len(parts) != 4:
        raise bad_input(path, line, "expected time;record type;job id;text, as in a PBS accounting log")
    _, kind, job_id, message = parts
    return kind, job_id, dict(item.split("=", 1) for item in message.split() if "=" in item)


def _job(path: Path, line: int, kind: str, values: dict[str, str]) -> TraceJob:
    for key in ("start",) if kind == STARTED else ("start", "end"):
        if key not in values:
            raise bad_input(path, line, f"a record of type {kind} has no {key}=")
    start_s = number(path, line, "start", values["start"])
    end_s = None if kind == STARTED else number(path, line, "end", values["end"], least=start_s)
    nodes = tuple(dict.fromkeys(NodeId(name) for name in _NODE.findall(values["exec_host"])))
    if not nodes:
        raise bad_input(path, line, f"exec_host names no node: {values['exec_host']!r}")
    return TraceJob(start_s, end_s, nodes)
