"""The journal is read back exactly, survives a truncated last line, and refuses damage elsewhere."""

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
from pilot.core.curve import Curve
from pilot.core.errors import JournalError
from pilot.core.events import Event, PlanReady, PoolChanged, Progress, TrainerSubmitted, WorkerReady
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.problem import Plan, PlanStatus
from pilot.core.spec import TrainerSpec
from pilot.io.journal import FORMAT, Header, read, replay
from pilot.io.journal_writer import JournalWriter
from pilot.io.serialize import command_of, dumps, event_of, loads, plain, same

HEADER = Header(FORMAT, "0.1.0", "pool-1", 1.7e9, {"t_fwd_s": 120.0}, {"name": "local"})
T = TrainerId("t1")
SCRIPT: list[Event] = [
    PoolChanged(joined=(NodeId("n1"), NodeId("n2")), cause="registered"),
    TrainerSubmitted(TrainerSpec(T, max_nodes=2, curve=Curve.of([(1, 0.1 + 0.2), (2, 1 / 3)]))),
    PlanReady(PlanId(2), Plan(PlanStatus.OPTIMAL, ((T, 2),), 1e-17, planner="dp")),
    WorkerReady(T, NodeId("n1")),
    WorkerReady(T, NodeId("n2")),
    Progress(T, Generation(1), 3, 0, 96, metrics=(("loss", math.nan),)),
]


def write(path: Path) -> None:
    writer, core = JournalWriter.create(path, HEADER), Coordinator()
    for number, event in enumerate(SCRIPT):
        writer.decided(number / 3, event, core.handle(number / 3, event)).result(10)
    writer.note(9.0, {"text": "a remark"}).result(10)
    writer.close()


def test_what_was_written_is_read_and_replays(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    contents = read(path)
    assert contents.header == HEADER
    assert all(same(d.event, e) for d, e in zip(contents.decisions, SCRIPT, strict=True))
    assert [d.now_s for d in contents.decisions] == [n / 3 for n in range(len(SCRIPT))]
    assert replay(contents, Coordinator()) == ""
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_replay_tells_the_first_difference(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    path.write_bytes(path.read_bytes().replace(b'"node":"n2","reason":"the plan', b'"node":"n1","reason":"the plan'))
    assert replay(read(path), Coordinator()).startswith("entry 3 (PlanReady): command 2 was")


@pytest.mark.parametrize("cut", [1, 20])
def test_a_last_line_that_was_cut_off_is_left_out_and_overwritten(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    contents = read(path)
    assert "cut off" in contents.last.warning
    assert len(contents.last.entries) == len(SCRIPT)
    writer = JournalWriter.resume(path, contents)
    writer.note(9.0, {"text": "a remark"}).result(10)
    writer.close()
    assert path.read_bytes() == whole


def test_damage_elsewhere_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for number, damaged in (
        (3, lines[2].replace(b"{", b"(", 1)),
        (4, b""),
        (5, lines[4].replace(b"n1", b"\xff\xfe", 1)),
    ):
        path.write_bytes(b"".join([*lines[: number - 1], damaged, *lines[number:]]))
        with pytest.raises(JournalError, match=rf"journal.jsonl:{number}: "):
            read(path)


def test_an_empty_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"")
    with pytest.raises(JournalError, match="no header"):
        read(path)


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


def test_a_journal_whose_header_does_not_fit_on_the_disk_is_none(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
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


def test_on_a_full_disk_what_is_appended_waits_and_is_written_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
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


def test_a_writer_that_is_closed_on_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    before = path.read_bytes()
    writer = JournalWriter.resume(path, read(path))
    with full_disk(len(before) + 10):
        waits = writer.note(9.0, {"text": "does not fit"})
        stuck(writer)
        writer.close()
        assert isinstance(waits.exception(10), JournalError)
    assert path.read_bytes() == before


def test_after_any_other_error_every_later_append_fails(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    writer = JournalWriter.resume(path, read(path))
    os.close(writer._descriptor)
    error = writer.decided(9.0, PoolChanged(), []).exception(10)
    assert isinstance(error, JournalError)
    assert writer.note(9.0, {}).exception(10) is error
    writer._descriptor = os.open(path, os.O_WRONLY)
    writer.close()


def test_what_is_not_synced_is_written_again_where_the_sync_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system accepts the bytes and reports only later that there is no space: by then they are lost."""
    path = tmp_path / "journal.jsonl"
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
