"""Slurm's accounting: ``sacct --allusers --parsable2 --allocations --format=JobID,Start,End,NodeList``."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pilot.core.ids import NodeId
from pilot.research.traces.jobs import HANDOVER_S, ImportedTrace, TraceJob, gathered, idle_trace
from pilot.research.traces.text_files import bad_input, read_lines
from pilot.site.hostlist import expand

COLUMNS = ("JobID", "Start", "End", "NodeList")
_NO_TIME = ("Unknown", "None", "")
_NO_NODES = ("None assigned", "")


def import_sacct(path: Path, nodes: Sequence[NodeId] | None = None, *, handover_s: float = HANDOVER_S) -> ImportedTrace:
    """The idle nodes of a ``sacct --parsable2`` file; job steps are skipped, and times are taken as they are. Raises
    UserError, with file and line, if a column is missing or a value is malformed."""
    reader = csv.DictReader(read_lines(path), delimiter="|", quoting=csv.QUOTE_NONE)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        call = f"sacct --parsable2 --format={','.join(COLUMNS)}"
        raise bad_input(path, 1, f"no column {', '.join(missing)}; create the file with {call}")
    return idle_trace(gathered(_jobs(path, reader), str(path)), nodes, handover_s=handover_s, log=str(path))


def _jobs(path: Path, reader: csv.DictReader[str]) -> Iterator[TraceJob]:
    for row in reader:
        if None in row.values():
            found = sum(value is not None for value in row.values())
            raise bad_input(path, reader.line_num, f"expected {len(row)} columns, found {found}; is the file cut off?")
        if "." in row["JobID"] or row["Start"] in _NO_TIME or row["NodeList"] in _NO_NODES:
            continue
        yield _job(path, reader.line_num, row)


def _job(path: Path, line: int, row: Mapping[str, str]) -> TraceJob:
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
