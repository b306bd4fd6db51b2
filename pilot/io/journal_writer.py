"""Appends to the journal from a thread of its own, so that a slow disk never blocks the event loop."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pilot.core.commands import Command
from pilot.core.errors import JournalError
from pilot.core.events import Event, Progress
from pilot.io.files import publish
from pilot.io.journal import Contents, Decision, Header, JournalNote, header_line

_Item = tuple[bytes, bool, "Future[None]"]


class JournalWriter:
    """The one writer of a journal. Appends are in order; those that wait together share one fsync.

    After an error nothing more is written: the file ends with the last whole line that was promised, and every later
    append fails with the same :class:`JournalError`.
    """

    def __init__(self, path: Path, descriptor: int, size: int, seq: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = size
        self._seq = seq
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
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

        return cls(path, _open(path, start), len(line), 0)

    @classmethod
    def resume(cls, path: Path, contents: Contents) -> JournalWriter:
        """Go on with a journal that was read; a last line that was cut off is removed."""

        def start() -> int:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            os.ftruncate(descriptor, contents.good_bytes)
            os.fsync(descriptor)
            return descriptor

        return cls(path, _open(path, start), contents.good_bytes, contents.last_seq)

    def decided(self, now_s: float, event: Event, commands: list[Command]) -> Future[None]:
        """Append a decision. The future is done when it is on the disk; progress without commands is not waited for."""
        self._seq += 1
        durable = bool(commands) or not isinstance(event, Progress)
        return self._put(Decision(self._seq, now_s, event, tuple(commands)).line(), durable)

    def note(self, now_s: float, note: dict[str, Any]) -> Future[None]:
        """Append a note for people."""
        self._seq += 1
        return self._put(JournalNote(self._seq, now_s, note).line(), False)

    def close(self) -> None:
        """Write what waits, then close the file. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
            os.close(self._descriptor)

    def _put(self, line: bytes, durable: bool) -> Future[None]:
        future: Future[None] = Future()
        self._queue.put((line, durable, future))
        return future

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            batch = [item]
            stop = self._gather(batch)
            self._write(batch)
            if stop:
                return

    def _gather(self, batch: list[_Item]) -> bool:
        """Take what else waits; True where the end was asked for."""
        while not self._queue.empty():
            item = self._queue.get()
            if item is None:
                return True
            batch.append(item)
        return False

    def _write(self, batch: list[_Item]) -> None:
        data = b"".join(line for line, _, _ in batch)
        try:
            if self._error is None:
                self._append(data, any(durable for _, durable, _ in batch))
        except OSError as error:
            self._error = JournalError(f"cannot write the journal {self._path}: {error.strerror}", transient=True)
        for _, _, future in batch:
            _settle(future, self._error)

    def _append(self, data: bytes, durable: bool) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self._size + written)
            if durable:
                os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)


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
