"""The journal is read back exactly, survives a truncated last line, and damage costs only the entries that it hits."""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import MeasuredRate
from pilot.core.errors import JournalError
from pilot.core.events import Event, PlanReady, PoolChanged, Progress, TrainerSubmitted, WorkerReady
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir.entries import JournalNote, command_of, dumps, event_of, loads, plain, same
from pilot.rundir.journal import FORMAT, Header, read, replay
from pilot.service.durability.journal_writer import JournalWriter
from tests.resealed import changed

HEADER = Header(FORMAT, "0.1.0", "pool-1", 1.7e9, {"t_fwd_s": 120.0}, {"name": "local"})
T = TrainerId("t1")
KNOWN = (MeasuredRate(2, 0.1 + 0.2, 1 / 3, visits=0),)
SCRIPT: list[Event] = [
    PoolChanged(joined=(NodeId("n1"), NodeId("n2")), cause="registered"),
    TrainerSubmitted(TrainerSpec(T, max_nodes=2, curve=Curve.of([(1, 0.1 + 0.2), (2, 1 / 3)]), known=KNOWN)),
    PlanReady(PlanId(2), Plan(PlanStatus.OPTIMAL, ((T, 2),), 1e-17, planner="dp")),
    WorkerReady(T, NodeId("n1")),
    WorkerReady(T, NodeId("n2")),
    Progress(T, Generation(1), 3, 0, 96, metrics=(("loss", math.nan),)),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The journal's path."""
    return tmp_path / "journal.jsonl"


def write(path: Path) -> None:
    writer, core = JournalWriter.create(path, HEADER), Coordinator()
    for number, event in enumerate(SCRIPT):
        writer.decided(number / 3, event, core.handle(number / 3, event)).result(10)
    writer.note(9.0, {"text": "a remark"}).result(10)
    writer.close()


def test_what_was_written_is_read_and_replays(path: Path) -> None:
    write(path)
    contents = read(path)
    assert contents.header == HEADER
    assert all(same(d.event, e) for d, e in zip(contents.decisions, SCRIPT, strict=True))
    assert [d.now_s for d in contents.decisions] == [n / 3 for n in range(len(SCRIPT))]
    assert replay(contents, Coordinator()) == ""
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_replay_tells_the_first_difference(path: Path) -> None:
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = changed(lines[3], b'"node":"n2","reason":"the plan', b'"node":"n1","reason":"the plan')
    path.write_bytes(b"".join(lines))
    assert replay(read(path), Coordinator()).startswith("entry 3 (PlanReady): command 2 was")


@pytest.mark.parametrize("cut", [1, 20])
def test_a_last_line_that_was_cut_off_is_left_out_and_overwritten(path: Path, cut: int) -> None:
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    contents = read(path)
    assert "cut off" in contents.last.odd[0]
    assert contents.last.missing == []
    assert len(contents.last.entries) == len(SCRIPT)
    writer = JournalWriter.resume(path, contents)
    writer.note(9.0, {"text": "a remark"}).result(10)
    writer.close()
    assert path.read_bytes() == whole


NOTES = 400


def many(path: Path) -> bytes:
    """A journal of some blocks of 4 KiB, with :data:`NOTES` notes numbered by their text; its content."""
    writer = JournalWriter.create(path, HEADER)
    for number in range(1, NOTES + 1):
        writer.note(number / 10, {"text": f"note {number}", "more": "x" * (number % 50)})
    writer.close()
    return path.read_bytes()


def noted(path: Path) -> list[int]:
    """The numbers of the notes that can be read; each is that of its entry."""
    entries = [e for e in read(path).last.entries if isinstance(e, JournalNote) and "more" in e.note]
    assert [f"note {entry.seq}" for entry in entries] == [entry.note["text"] for entry in entries]
    return [entry.seq for entry in entries]


def hit(data: bytes, start: int, end: int) -> range:
    """The numbers of the entries of which a byte is in ``data[start:end]``."""
    return range(data.count(b"\n", 0, start), data.count(b"\n", 0, end - 1) + 1)


BLOCK = 4096


@pytest.mark.parametrize("how", ["zeroed", "dropped", "overwritten"])
def test_a_damaged_block_costs_only_the_entries_in_it_and_they_are_named(path: Path, how: str) -> None:
    data = many(path)
    block = {"zeroed": bytes(BLOCK), "dropped": b"", "overwritten": data[5 * BLOCK : 6 * BLOCK]}[how]
    path.write_bytes(data[: 2 * BLOCK] + block + data[3 * BLOCK :])
    lost = hit(data, 2 * BLOCK, 3 * BLOCK)
    assert noted(path) == [number for number in range(1, NOTES + 1) if number not in lost]
    last = read(path).last
    (text,) = last.missing
    assert text.startswith(f"entries {lost[0]} to {lost[-1]} of the journal are missing: {path}:")
    assert [e.seq for e in last.entries if isinstance(e, JournalNote) and e.note == {"text": text}] == [lost[0] - 1]
    assert last.last_seq == NOTES


def test_moved_and_repeated_lines_cost_nothing(path: Path) -> None:
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[0], lines[4], *lines[2:], lines[1]]))
    last = read(path).last
    assert [entry.seq for entry in last.entries] == list(range(1, len(lines)))
    assert (last.missing, len(last.odd)) == ([], 2)
    assert "no entry is missing" in last.odd[0]
    assert replay(read(path), Coordinator()) == ""


def test_zeros_at_the_end_are_told_and_written_over(path: Path) -> None:
    data = many(path)
    path.write_bytes(data[:-BLOCK] + bytes(BLOCK))
    contents = read(path)
    last = hit(data, 0, len(data) - BLOCK)[-1] - 1
    assert contents.last.last_seq == last
    assert contents.last.missing[0].startswith(f"what follows entry {last} of the journal is missing")
    writer = JournalWriter.resume(path, contents)
    writer.note(99.0, {"text": f"note {last + 1}", "more": ""}).result(10)
    writer.close()
    assert noted(path) == list(range(1, last + 2))
    assert read(path).last.missing == []


@pytest.mark.parametrize("harm", [b"", bytes(BLOCK), b"damage\n"])
def test_where_the_header_is_damaged_its_copy_is_used(path: Path, harm: bytes) -> None:
    data = many(path)
    path.write_bytes(harm + data[BLOCK:])
    contents = read(path)
    assert contents.header == HEADER
    lost = hit(data, 0, BLOCK)
    assert noted(path) == list(range(lost[-1] + 1, NOTES + 1))
    assert f"{path}:1: " in contents.last.odd[0]
    assert contents.last.missing[0].startswith(f"entries 1 to {lost[-1]} of the journal are missing")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the journal has no header"),
        ("{}\n", rf"not a journal of format {FORMAT} \(its first line says None\)"),
        (
            '{"journal":2,"version":"0.1.0","coordinator":"p"}\n',
            rf"not a journal of format {FORMAT} \(its first line says 2\)",
        ),
    ],
)
def test_what_is_no_journal_is_refused_in_a_line(path: Path, content: str, message: str) -> None:
    path.write_text(content)
    with pytest.raises(JournalError, match=f"journal.jsonl:1: {message}"):
        read(path)


def test_the_generations_of_entries_that_cannot_be_read_are_known(path: Path) -> None:
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert b'"generation":1' in lines[6]
    lines[6] = changed(lines[6], b'"generation":1', b'"generation":7,"new":1')
    path.write_bytes(b"".join(lines))
    last = read(path).last
    assert last.generations == {T: 7}
    assert "Progress has no field new" in last.missing[0]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_journal_whose_header_does_not_fit_on_the_disk_is_none(path: Path, tmp_path: Path) -> None:
    with full_disk(10), pytest.raises(JournalError, match="cannot write the journal"):
        write(path)
    assert list(tmp_path.iterdir()) == []
    write(path)
    with pytest.raises(JournalError, match="File exists"):
        write(path)


def stuck(writer: JournalWriter) -> None:
    end_s = time.monotonic() + 10
    while not writer.trouble:
        assert time.monotonic() < end_s, "nothing is said of a disk that is full"
        time.sleep(0.001)


def test_on_a_full_disk_what_is_appended_waits_and_is_written_when_there_is_room(path: Path) -> None:
    write(path)
    size = path.stat().st_size
    writer = JournalWriter.resume(path, read(path))
    with full_disk(size + 10):
        futures = [writer.note(9.0, {"text": "does not fit"}), writer.decided(9.5, PoolChanged(), [])]
        stuck(writer)
        assert "File too large" in writer.trouble
        assert not any(future.done() for future in futures)
    for future in futures:
        future.result(10)
    assert writer.trouble == ""
    writer.close()
    assert [entry.now_s for entry in read(path).last.entries[-2:]] == [9.0, 9.5]


def test_a_writer_that_is_closed_on_a_full_disk_leaves_whole_lines(path: Path) -> None:
    write(path)
    before = path.read_bytes()
    writer = JournalWriter.resume(path, read(path))
    with full_disk(len(before) + 10):
        waits = writer.note(9.0, {"text": "does not fit"})
        stuck(writer)
        writer.close()
        assert isinstance(waits.exception(10), JournalError)
    assert path.read_bytes() == before


def test_after_any_other_error_every_later_append_fails(path: Path) -> None:
    write(path)
    writer = JournalWriter.resume(path, read(path))
    os.close(writer._descriptor)
    error = writer.decided(9.0, PoolChanged(), []).exception(10)
    assert isinstance(error, JournalError)
    assert writer.note(9.0, {}).exception(10) is error
    writer._descriptor = os.open(path, os.O_WRONLY)
    writer.close()


def test_what_is_not_synced_is_written_again_where_the_sync_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system accepts the bytes and reports only later that there is no space: by then they are lost."""
    write(path)
    writer = JournalWriter.resume(path, read(path))
    progress = Progress(T, Generation(1), 4, 0, 128)
    writer.decided(9.0, progress, []).result(10)
    sync, failed = os.fdatasync, threading.Event()

    def fails_once(descriptor: int) -> None:
        if failed.is_set():
            return sync(descriptor)
        os.pwrite(descriptor, bytes(40), os.fstat(descriptor).st_size - 40)
        failed.set()
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fdatasync", fails_once)
    writer.decided(9.5, PoolChanged(), []).result(10)
    writer.close()
    assert failed.is_set()
    assert [entry.now_s for entry in read(path).last.entries[-2:]] == [9.0, 9.5]


def test_every_event_and_command_comes_back() -> None:
    core = Coordinator()
    for number, event in enumerate(SCRIPT):
        assert same(event_of(loads(dumps(plain(event)))), event)
        for command in core.handle(float(number), event):
            assert command_of(loads(dumps(plain(command)))) == command


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "Solve"}, "not one of PoolChanged"),
        ({"type": "WorkerReady", "trainer": "t"}, "missing required field `node`"),
        ({"type": "WorkerReady", "trainer": "t", "node": "n", "more": 1}, "no field more"),
        ({"type": "TrainerSubmitted", "spec": {"trainer": "t", "min_nodes": 0}}, "min_nodes must be at least 1"),
        ([], "not one of"),
    ],
)
def test_what_is_no_event_is_refused(data: object, message: str) -> None:
    with pytest.raises(JournalError, match=message):
        event_of(data)
