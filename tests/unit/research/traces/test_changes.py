"""The trace format: it round-trips, and errors name the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.core.pool.node_type import NodeType
from pilot.research.traces.changes import (
    Change,
    read_changes,
    stream_changes,
    types_of,
    with_ends,
    with_types,
    write_changes,
)

HEADER = "time_s,node,event\n"


def n(*names: str) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in names)


CHANGES = [
    Change(0.0, joined=n("a1", "a2")),
    Change(10.5, joined=n("b1"), left=n("a2")),
    Change(20.0, left=n("a1", "b1")),
]


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_a_written_trace_is_read_and_the_same_changes_give_the_same_bytes(tmp_path: Path, name: str) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        write_changes(folder / name, CHANGES)
        assert read_changes(folder / name) == CHANGES
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    for name, encode in (("plain.csv", bytes), ("packed.csv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(encode((HEADER + "0,a,join\n").encode("utf-8-sig")))
        assert read_changes(tmp_path / name) == [Change(0.0, joined=n("a"))]


def test_a_trace_streams_before_its_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,a,join\n5,a,leave\nnonsense\n")
    assert next(stream_changes(path)) == Change(0.0, joined=n("a"))


def test_comments_and_blank_lines_do_not_shift_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("# a comment\n" + HEADER + "\n0,a,join\n1,b,leave\n")
    with pytest.raises(UserError, match=r"trace\.csv:5: node b leaves, but it is not in the pool"):
        read_changes(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("5,a,join\n4,b,join\n", r":3: times must not go back"),
        ("0,a,leave\n", r":2: node a leaves, but it is not in the pool"),
        ("0,a,join\n1,a,join\n", r":3: node a joins, but it is in the pool already"),
        ("0,a,join\n1,a,leave\n1,a,join\n", r":4: node a changes twice at 1 s"),
        ("nan,a,join\n", r":2: time_s is not a finite number: 'nan'"),
        ("x,a,join\n", r":2: time_s is not a number: 'x'"),
        ("-1,a,join\n", r":2: time_s must be at least 0"),
        ("0,a,join\n1,a\n", r":3: expected 3 columns .* found 2"),
        ("0,,join\n", r":2: the node has no name"),
        ('0,a,join\n0,"b,join\n0,c,join\n', r":3: the quotes .* in this line do not match"),
        ('0,a,join\n0,"b,join\n' + "0,c,join\n" * 20_000, r":3: the quotes .* in this line do not match"),
        ("0,a,come\n", r":2: the event must be join or leave, found 'come'"),
        ("", r"the trace is empty"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, rows: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + rows)
    with pytest.raises(UserError, match=message) as caught:
        read_changes(path)
    assert str(path) in str(caught.value)


LONG = HEADER + "".join(f"{time},n{time * 7919 % 10007},join\n" for time in range(10000))
PACKED = gzip.compress((HEADER + "0,a,join\n").encode(), mtime=0)
CUT_OFF = gzip.compress(LONG.encode(), mtime=0)[:20000]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("trace.csv", b"node,time\n", r"trace\.csv:1: expected the header time_s,node,event"),
        ("trace.csv", b"\xff\xfe\x00", "this is not a text file"),
        ("trace.csv", None, r"cannot read .*trace\.csv: No such file"),
        ("trace.csv.gz", CUT_OFF, r"trace\.csv\.gz:\d{3,}: the gzip file is truncated"),
        ("trace.csv.gz", PACKED[:-6] + bytes([PACKED[-6] ^ 0xFF]) + PACKED[-5:], "the gzip file is damaged"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_changes(tmp_path / name)


A, B, C = map(NodeId, "abc")
ENDING = [Change(0.0, (A, B)), Change(5.0, (C,), (A,)), Change(9.0, (A,), (B, C))]


def test_the_ends_of_nodes_are_known_when_they_join() -> None:
    known = with_ends(ENDING, 1.0, seed=1)
    assert [change.ends for change in known] == [((A, 5.0), (B, 9.0)), ((C, 9.0),), ()], "A stays to the end"
    assert [Change(c.time_s, c.joined, c.left) for c in known] == ENDING


def test_a_share_of_the_ends_is_known_drawn_by_the_seed() -> None:
    many = [Change(0.0, tuple(NodeId(f"n{i}") for i in range(2000)))]
    many.append(Change(1.0, left=many[0].joined))
    half = with_ends(many, 0.5, seed=1)
    assert 900 < len(half[0].ends) < 1100
    assert with_ends(many, 0.5, seed=1) == half != with_ends(many, 0.5, seed=2)
    assert with_ends(many, 0.0, seed=1) == many


def test_a_trace_with_types_is_read_as_it_was_written(tmp_path: Path) -> None:
    types = {NodeId("a1"): NodeType("a100"), NodeId("b1"): NodeType("v100")}
    typed = with_types(CHANGES, types)
    write_changes(tmp_path / "trace.csv", typed)
    assert read_changes(tmp_path / "trace.csv") == typed
    assert types_of(typed) == types


def test_the_type_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,node,event,type\n0,a,join,v100\n0,b,join\n5,a,leave\n")
    (joins, leaves) = read_changes(path)
    assert joins == Change(0.0, joined=n("a", "b"), types=((NodeId("a"), NodeType("v100")),))
    assert leaves == Change(5.0, left=n("a"))
    for header, rows, message in (
        ("time_s,node,event,kind", "0,a,join,x", ":1: expected the header time_s,node,event, found"),
        ("time_s,node,event,type", "0,a,join,a4/0", ":2: a type's name has no /, = or space, found 'a4/0'"),
        ("time_s,node,event,type", "0,a,join,x,y", r":2: expected 4 columns \(time_s,node,event,type\), found 5"),
    ):
        path.write_text(f"{header}\n{rows}\n")
        with pytest.raises(UserError, match=rf"trace\.csv{message}"):
            read_changes(path)
