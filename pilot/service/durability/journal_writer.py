"""Appends to the journal in a separate thread, so that a slow disk never blocks the event loop.

It is home-made: SQLite's locks and write-ahead log are unsafe on network file systems, where run directories are, and
one damaged page can cost a whole database; here, damage costs the lines that it hits, which people can read.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from pilot.core.commands import Command
from pilot.core.errors import JournalError
from pilot.core.events import Event, Progress
from pilot.core.version import __version__
from pilot.host.files import NO_ROOM, publish
from pilot.rundir import segments
from pilot.rundir.entries import Decision, JournalNote
from pilot.rundir.journal import Contents, Header, header_line

log = logging.getLogger(__name__)

SEGMENT_BYTES = 4 << 20
"""A longer segment is closed. Replaying this much takes a restart a second or two."""

UNSYNCED_BYTES = 1 << 20
"""Limit of non-durable data in the system's cache; a copy stays in memory in case it must be written again."""

RETRY_S = 1.0
"""Pause between two checks whether there is space again."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line to write, and to sync if it is ``durable``; then ``future`` is done."""

    text: bytes
    durable: bool
    future: Future[None]


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the segment, with what the next one needs; ``core`` is the digest of the core's state.

    ``header``: the next segment's header, if it differs from this one's.
    """

    after: int
    now_s: float
    core: str
    snapshot: bytes
    header: Header | None


class JournalWriter:
    """The only writer of a journal. Appends are in order; those that wait together share one fsync.

    If there is no space (a full disk, a quota), they wait until there is, and ``trouble`` names the reason. After any
    other error nothing more is written: the file ends with the last complete line that was acknowledged, and every
    later append fails with the same :class:`JournalError`.
    """

    def __init__(self, path: Path, descriptor: int, header: Header, size: int, seq: int) -> None:
        self.trouble = ""
        self._path = path
        self._descriptor = descriptor
        self._header = header
        self._seq = seq
        self._segment_bytes = size
        self._put_bytes = self._done_bytes = 0
        self._synced = size
        self._unsynced = b""
        self._torn = False
        self._cut = False
        self._queue: SimpleQueue[_Line | _End | None] = SimpleQueue()
        self._closing = threading.Event()
        self._error: JournalError | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @classmethod
    def create(cls, path: Path, header: Header) -> JournalWriter:
        """Create a journal (mode 0600); :class:`JournalError` if there is one already or it cannot be written."""
        line = header_line(header)

        def start() -> int:
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            publish(path, line)  # nothing could be restored from half a header
            segments.write_header(path, line)
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)

        return cls(path, _open(path, start), header, len(line), header.after)

    @classmethod
    def resume(cls, path: Path, contents: Contents) -> JournalWriter:
        """Continue a journal that was read; an incomplete last line is removed."""
        last = contents.last

        def start() -> int:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(descriptor, last.good_bytes)
            os.fsync(descriptor)
            return descriptor

        return cls(path, _open(path, start), last.header, last.good_bytes, last.last_seq)

    def decided(self, now_s: float, event: Event, commands: list[Command]) -> Future[None]:
        """Append a decision. The future is done when it is on disk; for progress without commands, at once."""
        self._seq += 1
        durable = bool(commands) or not isinstance(event, Progress)
        return self._put(Decision(self._seq, now_s, event, tuple(commands)).line(), durable)

    def note(self, now_s: float, note: dict[str, Any]) -> Future[None]:
        """Append a note for people."""
        self._seq += 1
        return self._put(JournalNote(self._seq, now_s, note).line(), False)

    @property
    def segment_is_long(self) -> bool:
        """Whether the segment should end with what was appended last."""
        return self._segment_bytes >= SEGMENT_BYTES

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were appended but not written yet."""
        return self._put_bytes - self._done_bytes

    @property
    def last_seq(self) -> int:
        """The number of the last appended entry."""
        return self._seq

    def is_complete(self) -> bool:
        """Whether the file with the journal's name is the one that is written, with all of it. May have to wait for the
        disk; False also for a moment while a new segment begins."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        ours = os.path.samestat(found, os.fstat(self._descriptor))
        return ours and not self._cut and found.st_size >= self._synced

    def end_segment(self, now_s: float, core: str, snapshot: bytes, header: Header | None = None) -> None:
        """Begin a new segment. ``snapshot`` is the present state, ``core`` the digest of the core's state in it. If a
        ``header`` is given and the segment cannot be begun, the journal fails."""
        self._segment_bytes = 0
        self._queue.put(_End(self._seq, now_s, core, snapshot, header))

    def close(self) -> None:
        """Write what is waiting (trying once more if there was no space), then close the file. Idempotent."""
        if self._thread.is_alive():
            self._closing.set()
            self._queue.put(None)
            self._thread.join()
            os.close(self._descriptor)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _put(self, text: bytes, durable: bool) -> Future[None]:
        line = _Line(text, durable, Future())
        self._segment_bytes += len(text)
        self._put_bytes += len(text)
        self._queue.put(line)
        return line.future

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            lines: list[_Line] = []
            while isinstance(item, _Line):
                lines.append(item)
                if self._queue.empty():
                    break
                item = self._queue.get()
            self._write(lines)
            if item is None:
                return
            if isinstance(item, _End):
                self._end(item)

    def _write(self, lines: list[_Line]) -> None:
        data, durable = b"".join(line.text for line in lines), any(line.durable for line in lines)
        while self._error is None:
            try:
                self._append(data, durable)
                break
            except OSError as error:
                self.trouble = f"cannot write the journal {self._path}: {error.strerror}"
                if error.errno not in NO_ROOM or self._closing.wait(RETRY_S):
                    self._error = JournalError(self.trouble, transient=True)
        if self._error is None:
            self.trouble = ""
        self._done_bytes += len(data)
        for line in lines:
            _settle(line.future, self._error)

    def _append(self, data: bytes, durable: bool) -> None:
        """Write data; after an error, everything unsynced is written again, because the system may have dropped it."""
        pending = self._unsynced + data
        done = 0 if self._torn else len(self._unsynced)
        self._cut = self._cut or os.fstat(self._descriptor).st_size < self._synced
        try:
            while done < len(pending):
                done += os.pwrite(self._descriptor, pending[done:], self._synced + done)
            if durable or len(pending) > UNSYNCED_BYTES:
                os.fdatasync(self._descriptor)
                self._synced, pending = self._synced + len(pending), b""
        except OSError:
            self._torn = True
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._synced)
            raise
        self._torn, self._unsynced = False, pending

    def _end(self, end: _End) -> None:
        """Close the segment and begin the next; if that fails, this one just gets longer."""
        if self._error is not None:
            return
        line, header = b"", self._header
        try:
            self._append(b"", durable=True)
            text = self._written()
            header = msgspec.structs.replace(
                end.header or self._header, version=__version__, after=end.after, now_s=end.now_s, core=end.core,
                previous=segments.digest(text), snapshot=segments.digest(end.snapshot),
            )  # fmt: skip
            segments.write_snapshot(self._path, end.after, end.snapshot)
            segments.write_closed(self._path, self._header.after, text)
            line = header_line(header)
            segments.write_header(self._path, line)
            publish(self._path, line)
        except OSError as error:
            log.warning("the journal's segment was not closed properly: %s", error)
            if end.header is not None:
                self._error = JournalError(f"cannot start a new segment of the journal {self._path}: {error.strerror}")
            if end.header is not None or not self._has(line):
                return
        self._go_on(line, header)

    def _written(self) -> bytes:
        """The segment, even if somebody has removed its file."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def _has(self, line: bytes) -> bool:
        """Whether the new segment was published, though there was an error."""
        with suppress(OSError):
            return bool(line) and self._path.read_bytes() == line
        return False

    def _go_on(self, line: bytes, header: Header) -> None:
        """Continue in the file that has the journal's name now."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            self._error = JournalError(f"cannot continue the journal {self._path}: {error.strerror}", transient=True)
            return
        os.close(self._descriptor)
        self._descriptor, self._header, self._synced, self._cut = descriptor, header, len(line), False
        with suppress(OSError):
            segments.remove_other_snapshots(self._path, header.after)


def _open(path: Path, start: Callable[[], int]) -> int:
    try:
        return start()
    except OSError as error:
        raise JournalError(f"cannot write the journal {path}: {error.strerror}") from None


def _settle(future: Future[None], error: JournalError | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
