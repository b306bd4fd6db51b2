"""Slurm's accounting: ``sacct --allusers --parsable2 --allocations --format=JobID,Start,End,NodeList``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pilot.core.ids import NodeId
from pilot.research.traces.jobs import HANDOVER_S, ImportedTrace, TraceJob, gathered, idle_trace
from pilot.research.traces.text_files import Skipped, bad_input, read_lines
from pilot.site.hostlist import expand

COLUMNS = ("JobID", "Start", "End", "NodeList")
_NO_TIME = ("Unknown", "None", "")
_NO_NODES = ("None assigned", "")


def import_sacct(path: Path, nodes: Sequence[NodeId] | None = None, *, handover_s: float = HANDOVER_S) -> ImportedTrace:
    """The idle nodes of a ``sacct --parsable2`` file; job steps are skipped, and times are taken as they are. Raises
    UserError, with file and line, if a column is missing or most records are malformed."""
    lines, skipped = read_lines(path, errors="replace"), Skipped()
    names = _fields(next(lines, ""))
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        call = f"sacct --parsable2 --format={','.join(COLUMNS)}"
        raise bad_input(path, 1, f"no column {', '.join(missing)}; create the file with {call}")
    jobs = gathered(_jobs(path, names, lines, skipped), str(path))
    return idle_trace(jobs, nodes, handover_s=handover_s, notes=skipped.notes(), log=str(path))


def _jobs(path: Path, names: list[str], lines: Iterator[str], skipped: Skipped) -> Iterator[TraceJob]:
    for line, text in enumerate(lines, start=2):
        if not text.strip():
            continue
        job = None
        with skipped.record():
            job = _job(path, line, names, _fields(text))
        if job is not None:
            yield job


def _fields(text: str) -> list[str]:
    return text.rstrip("\r\n").split("|")


def _job(path: Path, line: int, names: list[str], fields: list[str]) -> TraceJob | None:
    """A line's job; None for a step, and for a job that has not run."""
    if len(fields) != len(names):
        raise bad_input(path, line, f"expected {len(names)} columns, found {len(fields)}; is the file cut off?")
    row = dict(zip(names, fields, strict=True))
    if "." in row["JobID"] or row["Start"] in _NO_TIME or row["NodeList"] in _NO_NODES:
        return None
    end = row["End"]
    start_s = _time(path, line, row["Start"])
    end_s = None if end in _NO_TIME else _time(path, line, end)
    if end_s is not None and end_s < start_s:
        raise bad_input(path, line, f"job {row['JobID']} ends before it starts")
    try:
        return TraceJob(start_s, end_s, tuple(expand(row["NodeList"])))
    except ValueError as error:
        raise bad_input(path, line, f"NodeList: {error}") from None


def _time(path: Path, line: int, text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise bad_input(path, line, f"not a time like 2026-02-10T10:00:00: {text!r}") from None
