"""The trace format: it round-trips, and errors name the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change, read_changes, stream_changes, write_changes

HEADER = "time_s,node,event\n"


def n(*names: str) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in names)


CHANGES = [
    Change(0.0, joined=n("a1", "a2")),
    Change(10.5, joined=n("b1"), left=n("a2")),
    Change(20.0, left=n("a1", "b1")),
]


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    write_changes(tmp_path / name, CHANGES)
    assert read_changes(tmp_path / name) == CHANGES


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    for name, encode in (("plain.csv", bytes), ("packed.csv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(encode((HEADER + "0,a,join\n").encode("utf-8-sig")))
        assert read_changes(tmp_path / name) == [Change(0.0, joined=n("a"))]


def test_the_same_changes_give_the_same_bytes(tmp_path: Path) -> None:
    write_changes(tmp_path / "a.csv.gz", CHANGES)
    write_changes(tmp_path / "b.csv.gz", CHANGES)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


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


def test_another_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("node,time\n")
    with pytest.raises(UserError, match=r"trace\.csv:1: expected the header time_s,node,event"):
        read_changes(path)


def test_a_truncated_gzip_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    rows = "".join(f"{time},n{time * 7919 % 10007},join\n" for time in range(10000))
    data = gzip.compress((HEADER + rows).encode())
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"trace\.csv\.gz:\d{3,}: the gzip file is truncated"):
        read_changes(path)


def test_a_damaged_gzip_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    data = bytearray(gzip.compress((HEADER + "0,a,join\n").encode()))
    data[-6] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="the gzip file is damaged"):
        read_changes(path)


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="this is not a text file"):
        read_changes(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*nothing\.csv: No such file"):
        read_changes(tmp_path / "nothing.csv")
