"""Appends to the journal from a thread of its own, so that a slow disk never blocks the event loop."""

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

from pilot import __version__
from pilot.core.commands import Command
from pilot.core.errors import JournalError
from pilot.core.events import Event, Progress
from pilot.io import segments
from pilot.io.files import NO_ROOM, publish
from pilot.io.journal import Contents, Decision, Header, JournalNote, header_line

log = logging.getLogger(__name__)

SEGMENT_BYTES = 4 << 20
"""A segment is closed when it is longer: a second or two of a restart."""

UNSYNCED_BYTES = 1 << 20
"""So much may lie in the system's cache, of what nobody waits for; a copy is kept to write it again."""

RETRY_S = 1.0
"""So often it is tried whether there is room again."""


@dataclass(frozen=True, slots=True)
class _Line:
    """To be written, and synced if it is ``durable``; then ``future`` is done."""

    text: bytes
    durable: bool
    future: Future[None]


@dataclass(frozen=True, slots=True)
class _End:
    """The segment ends here. What is needed to begin the next one; ``core`` is the digest of the core's state.

    ``header`` is what the next one must say where that is not what this one says."""

    after: int
    now_s: float
    core: str
    snapshot: bytes
    header: Header | None


class JournalWriter:
    """The one writer of a journal. Appends are in order; those that wait together share one fsync.

    Where there is no room (a full disk, a quota) they wait until there is; ``trouble`` says so meanwhile. After any
    other error nothing more is written: the file ends with the last whole line that was promised, and every later
    append fails with the same :class:`JournalError`.
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
        self._queue: SimpleQueue[_Line | _End | None] = SimpleQueue()
        self._closing = threading.Event()
        self._error: JournalError | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @classmethod
    def create(cls, path: Path, header: Header) -> JournalWriter:
        """A new journal (0600); :class:`JournalError` where there is one already or it cannot be written."""
        line = header_line(header)

        def start() -> int:
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            publish(path, line)  # never a part of a header, from which nothing could be restored
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)

        return cls(path, _open(path, start), header, len(line), header.after)

    @classmethod
    def resume(cls, path: Path, contents: Contents) -> JournalWriter:
        """Go on with a journal that was read; a last line that was cut off is removed."""
        last = contents.last

        def start() -> int:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            os.ftruncate(descriptor, last.good_bytes)
            os.fsync(descriptor)
            return descriptor

        return cls(path, _open(path, start), last.header, last.good_bytes, last.last_seq)

    def decided(self, now_s: float, event: Event, commands: list[Command]) -> Future[None]:
        """Append a decision. The future is done when it is on the disk; progress without commands is not waited for."""
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
        """How much was appended and is not written yet."""
        return self._put_bytes - self._done_bytes

    @property
    def last_seq(self) -> int:
        """The number of the entry that was appended last."""
        return self._seq

    def end_segment(self, now_s: float, core: str, snapshot: bytes, header: Header | None = None) -> None:
        """Begin another segment. ``snapshot`` is of now; ``core`` is the digest of the core's state in it. Where the
        next one must have a ``header`` of its own, the journal fails if it cannot be begun."""
        self._segment_bytes = 0
        self._queue.put(_End(self._seq, now_s, core, snapshot, header))

    def close(self) -> None:
        """Write what waits, once more where there was no room, then close the file. Idempotent."""
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
        """After an error all that is not synced is written again: the system may have dropped it."""
        pending = self._unsynced + data
        done = 0 if self._torn else len(self._unsynced)
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
        """Close the segment and begin the next; where that fails, this one only gets longer."""
        if self._error is not None:
            return
        line, header = b"", self._header
        try:
            self._append(b"", durable=True)
            text = self._path.read_bytes()
            header = msgspec.structs.replace(
                end.header or self._header, version=__version__, after=end.after, now_s=end.now_s, core=end.core,
                previous=segments.digest(text), snapshot=segments.digest(end.snapshot),
            )  # fmt: skip
            segments.write_snapshot(self._path, end.after, end.snapshot)
            segments.write_closed(self._path, self._header.after, text)
            line = header_line(header)
            publish(self._path, line)
        except OSError as error:
            log.warning("the journal's segment was not closed properly: %s", error)
            if end.header is not None:
                self._error = JournalError(f"cannot start a new segment of the journal {self._path}: {error.strerror}")
                return
        self._go_on(line, header)

    def _go_on(self, line: bytes, header: Header) -> None:
        """Write to the file that the journal's name leads to: the new one, unless that could not be published."""
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._descriptor)):
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            self._error = JournalError(f"cannot continue the journal {self._path}: {error.strerror}", transient=True)
            return
        os.close(self._descriptor)
        self._descriptor, self._header, self._synced = descriptor, header, len(line)
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
