"""The trace format: which node joined or left the pool when (docs/research/traces.md), and traces in which some
nodes' ends are known in advance, as from a scheduler's plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from random import Random

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.core.pool.node_type import NodeType
from pilot.research.traces.text_files import bad_input, number, read_lines, read_records, write_text

HEADER = ("time_s", "node", "event")
TYPE = "type"
"""An optional fourth column: the type of a node that joins."""


@dataclass(frozen=True, slots=True)
class Change:
    """Nodes that joined and left the pool at the same time, in the file's order: one event (FreeTrain §2.1).

    ``ends``: when nodes that joined will leave, if that is known (:func:`with_ends`). ``types``: those of nodes that
    joined, if they are known.
    """

    time_s: float
    joined: tuple[NodeId, ...] = ()
    left: tuple[NodeId, ...] = ()
    ends: tuple[tuple[NodeId, float], ...] = ()
    types: tuple[tuple[NodeId, NodeType], ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    time_s: float
    node: NodeId
    joins: bool
    type: NodeType | None


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
    changes = list(changes)
    header = (*HEADER, TYPE) if any(change.types for change in changes) else HEADER
    write_text(path, ",".join(header) + "\n" + "".join(map(format_change, changes)))


def format_change(change: Change) -> str:
    """The rows of one change, leaves first."""
    time, types = seconds_text(change.time_s), {node: f",{of.name}" for node, of in change.types}
    rows = [f"{time},{node},leave\n" for node in change.left]
    return "".join(rows + [f"{time},{node},join{types.get(node, '')}\n" for node in change.joined])


def types_of(changes: Iterable[Change]) -> dict[NodeId, NodeType]:
    """The types of all nodes that have one."""
    return {node: of for change in changes for node, of in change.types}


def with_types(changes: Iterable[Change], types: Mapping[NodeId, NodeType]) -> list[Change]:
    """``changes`` in which the nodes that join have these types."""
    return [replace(c, types=tuple((node, types[node]) for node in c.joined if node in types)) for c in changes]


def seconds_text(seconds: float) -> str:
    """Seconds to the millisecond, without trailing zeros: ``12`` and ``0.25``."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def _rows(path: Path) -> Iterator[_Row]:
    header: Sequence[str] = ()
    last_s = 0.0
    for line, fields in read_records(path, _with_blank_comments(path)):
        if not fields:
            continue
        if not header:
            _check_header(path, line, fields)
            header = fields
            continue
        row = _row(path, line, header, fields)
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
    if tuple(fields) not in (HEADER, (*HEADER, TYPE)):
        raise bad_input(path, line, f"expected the header {','.join(HEADER)}, found {','.join(fields)}")


def _row(path: Path, line: int, header: Sequence[str], fields: Sequence[str]) -> _Row:
    if not len(HEADER) <= len(fields) <= len(header):
        raise bad_input(path, line, f"expected {len(header)} columns ({','.join(header)}), found {len(fields)}")
    time, node, event, *types = fields
    if not node:
        raise bad_input(path, line, "the node has no name")
    if event not in ("join", "leave"):
        raise bad_input(path, line, f"the event must be join or leave, found {event!r}")
    if any(set(name) & set("/= ") for name in types):  # names of slow types have a slash, and workloads the others
        raise bad_input(path, line, f"a type's name has no /, = or space, found {types[0]!r}")
    of_type = next((NodeType(name) for name in types if name), None)
    return _Row(line, number(path, line, "time_s", time), NodeId(node), event == "join", of_type)


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
    types = tuple((row.node, row.type) for row in rows if row.joins and row.type is not None)
    return Change(time_s, joined, left, types=types)


def with_ends(changes: Sequence[Change], share: float, seed: int) -> list[Change]:
    """``changes`` in which the ends of a ``share`` of the leaving nodes are known from when they join."""
    draw, leaves = Random(seed), dict[NodeId, float]()
    known: list[Change] = []
    for change in reversed(changes):
        ends = [(node, leaves.pop(node)) for node in change.joined if node in leaves]
        leaves.update(dict.fromkeys(change.left, change.time_s))
        known.append(replace(change, ends=tuple(end for end in ends if draw.random() < share)))
    return known[::-1]
