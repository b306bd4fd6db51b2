"""The trace format: which node joined or left the pool when (docs/traces.md), and traces in which some nodes' ends are
known in advance, as from a scheduler's plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from random import Random

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.research.traces.text_files import bad_input, number, read_lines, read_records, write_text

HEADER = ("time_s", "node", "event")


@dataclass(frozen=True, slots=True)
class Change:
    """Nodes that joined and left the pool at the same time, in the file's order: one event (FreeTrain §2.1).

    ``ends``: when nodes that joined will leave, if that is known (:func:`with_ends`).
    """

    time_s: float
    joined: tuple[NodeId, ...] = ()
    left: tuple[NodeId, ...] = ()
    ends: tuple[tuple[NodeId, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    time_s: float
    node: NodeId
    joins: bool


def stream_changes(path: Path) -> Iterator[Change]:
    """Read and check a trace, one change at a time. Raises UserError, with file and line, if the header is wrong, a row
    is malformed, times go back, a node joins that is in the pool or leaves that is not, or a node joins and leaves at
    the same time; also if there are no rows."""
    pool: set[NodeId] = set()
    empty = True
    for time_s, rows in groupby(_rows(path), key=lambda row: row.time_s):
        empty = False
        yield _change(path, time_s, list(rows), pool)
    if empty:
        raise UserError(f"{path}: the trace is empty; it needs at least one row after its header")


def read_changes(path: Path) -> list[Change]:
    """Read a trace; raises as :func:`stream_changes` does."""
    return list(stream_changes(path))


def still_pool(nodes: int) -> Change:
    """A pool that does not change: this many nodes from time 0 on, with numbered names that sort in order."""
    digits = len(str(nodes - 1))
    return Change(0.0, joined=tuple(NodeId(f"n{i:0{digits}}") for i in range(nodes)))


def write_changes(path: Path, changes: Iterable[Change]) -> None:
    """Write a trace, gzipped if the name ends in ``.gz``; the same changes give the same bytes."""
    write_text(path, ",".join(HEADER) + "\n" + "".join(format_change(change) for change in changes))


def format_change(change: Change) -> str:
    """The rows of one change, leaves first."""
    time = seconds_text(change.time_s)
    rows = [f"{time},{node},leave\n" for node in change.left]
    return "".join(rows + [f"{time},{node},join\n" for node in change.joined])


def seconds_text(seconds: float) -> str:
    """Seconds to the millisecond, without trailing zeros: ``12`` and ``0.25``."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def _rows(path: Path) -> Iterator[_Row]:
    header_seen, last_s = False, 0.0
    for line, fields in read_records(path, _with_blank_comments(path)):
        if not fields:
            continue
        if not header_seen:
            _check_header(path, line, fields)
            header_seen = True
            continue
        row = _row(path, line, fields)
        if row.time_s < last_s:
            raise bad_input(
                path, row.line, f"times must not go back: {row.time_s:g} s after {last_s:g} s; sort the file"
            )
        last_s = row.time_s
        yield row


def _with_blank_comments(path: Path) -> Iterator[str]:
    """Lines that start with ``#`` become empty, so that line numbers stay correct."""
    for line in read_lines(path):
        yield "\n" if line.startswith("#") else line


def _check_header(path: Path, line: int, fields: Sequence[str]) -> None:
    if tuple(fields) != HEADER:
        raise bad_input(path, line, f"expected the header {','.join(HEADER)}, found {','.join(fields)}")


def _row(path: Path, line: int, fields: Sequence[str]) -> _Row:
    if len(fields) != len(HEADER):
        raise bad_input(path, line, f"expected {len(HEADER)} columns ({','.join(HEADER)}), found {len(fields)}")
    time, node, event = fields
    if not node:
        raise bad_input(path, line, "the node has no name")
    if event not in ("join", "leave"):
        raise bad_input(path, line, f"the event must be join or leave, found {event!r}")
    return _Row(line, number(path, line, "time_s", time), NodeId(node), event == "join")


def _change(path: Path, time_s: float, rows: Sequence[_Row], pool: set[NodeId]) -> Change:
    """Apply ``rows`` to ``pool`` and return them as one change."""
    seen: set[NodeId] = set()
    for row in rows:
        if row.node in seen:
            raise bad_input(path, row.line, f"node {row.node} changes twice at {time_s:g} s; drop both rows or one")
        if row.joins and row.node in pool:
            raise bad_input(path, row.line, f"node {row.node} joins, but it is in the pool already")
        if not row.joins and row.node not in pool:
            raise bad_input(path, row.line, f"node {row.node} leaves, but it is not in the pool")
        seen.add(row.node)
    joined = tuple(row.node for row in rows if row.joins)
    left = tuple(row.node for row in rows if not row.joins)
    pool.difference_update(left)
    pool.update(joined)
    return Change(time_s, joined, left)


def with_ends(changes: Sequence[Change], share: float, seed: int) -> list[Change]:
    """``changes`` in which the ends of a ``share`` of the leaving nodes are known from when they join."""
    draw, leaves = Random(seed), dict[NodeId, float]()
    known: list[Change] = []
    for change in reversed(changes):
        ends = [(node, leaves.pop(node)) for node in change.joined if node in leaves]
        leaves.update(dict.fromkeys(change.left, change.time_s))
        known.append(replace(change, ends=tuple(end for end in ends if draw.random() < share)))
    return known[::-1]
