"""The logs of a trainer's processes merged in chronological order, in pieces, so that their size does not matter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from pilot.core.errors import UserError
from pilot.host.files import open_regular
from pilot.host.private_folder import shown
from pilot.rundir.log_marks import BEGINS, NO_RANK, PERIOD_S, LogMark, marks, rotated

PIECE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 16


@dataclass(slots=True)
class LineStarts:
    """Finds where lines begin in a log, and remembers the last line it saw: a line that a progress bar extends for
    hours is cut into thousands of pieces, and must not be searched to its end for each of them.
    """

    _begin: int = 0
    _end: int = 0
    """No line ends at or after ``_begin`` and before ``_end``."""
    _ended: bool = False
    """Whether a line ends at ``_end``."""

    def first_from(self, file: BinaryIO, offset: int) -> int:
        """Where the first line at or after ``offset`` begins; the file's end if there is none."""
        if offset == 0:
            return 0
        begin = offset - 1
        if begin > self._end:
            self._begin, self._end, self._ended = begin, begin, False
        elif begin < self._begin:
            end, found = _line_end(file, begin, self._begin)
            self._begin, self._end, self._ended = begin, end if found else self._end, found or self._ended
        if not self._ended:
            self._end, self._ended = _line_end(file, self._end)
        return self._end + self._ended


def _line_end(file: BinaryIO, begin: int, end: int | None = None) -> tuple[int, bool]:
    """The next line end from ``begin`` on, and True; if there is none, where the search ended, and False."""
    file.seek(begin)
    while block := file.read(BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - begin)):
        if (at := block.find(b"\n")) >= 0:
            return begin + at, True
        begin += len(block)
    return begin, False


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes ``begin`` to ``end`` of a log, written at ``unix_s`` or soon after by ``rank``; ``name`` is the process's.

    ``rank`` is :data:`~pilot.rundir.log_marks.NO_RANK` for a process that was in no group.
    """

    unix_s: float
    name: str
    path: Path
    begin: int
    end: int
    rank: int
    lines: LineStarts


@dataclass(slots=True)
class ProcessLog:
    """The output of one process, and how much of it has been seen.

    ``whole_lines``: a line counts as new once it has ended.
    """

    path: Path
    whole_lines: bool = False
    _size: int = -1
    _marks_end: int = 0
    _last: LogMark = field(default=LogMark(0.0, 0, NO_RANK))

    def grown(self) -> list[LogPiece]:
        """The new output; on the first call all of it, with the part that was rotated out."""
        size = self._length()
        pieces: list[LogPiece] = []
        if size < self._size or self._size < 0:
            pieces = self._rotated_out()
            self._size, self._marks_end = 0, 0
        new, self._marks_end = marks(self.path, self._marks_end)
        pieces += self._pieces(self.path, new, self._size, size)
        self._size = size
        return pieces

    def _length(self) -> int:
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(begin := max(0, size - BLOCK_BYTES))
                end = file.read().rfind(b"\n") + 1 if self.whole_lines else 0
        except OSError as error:
            raise UserError(f"cannot read the log {shown(self.path)}: {error.strerror}") from None
        return begin + end if end else size

    def _rotated_out(self) -> list[LogPiece]:
        old = rotated(self.path)
        try:
            size = old.stat().st_size
        except OSError:
            return []
        new, _ = marks(old, self._marks_end)
        return self._pieces(old, new, min(max(0, self._size), size), size)

    def _pieces(self, path: Path, new: Sequence[LogMark], begin: int, end: int) -> list[LogPiece]:
        """[begin, end) cut at the marks. Bytes before the first new mark belong to the last one seen."""
        first = self._last if self._last.unix_s else LogMark(new[0].unix_s if new else path.stat().st_mtime, 0, NO_RANK)
        known = [first, *_with_ranks(new)]
        pieces, lines = [], LineStarts()
        for mark, following in zip(known, [*known[1:], LogMark(0.0, end, NO_RANK)], strict=True):
            start, stop = max(begin, 0 if mark is first else mark.offset), min(end, following.offset)
            for cut in range(start, stop, PIECE_BYTES):
                upto = min(stop, cut + PIECE_BYTES)
                pieces.append(LogPiece(mark.unix_s, self.path.stem, path, cut, upto, mark.rank, lines))
        self._last = known[-1]._replace(offset=0)
        return pieces


def _with_ranks(found: Sequence[LogMark]) -> list[LogMark]:
    """Attribute a process's output before its first group to the rank that it gets there."""
    ranked: list[LogMark] = []
    coming = NO_RANK
    for mark in reversed(found):
        coming = mark.rank if mark.rank >= 0 else coming
        ranked.append(mark._replace(rank=coming))
        coming = NO_RANK if mark.rank == BEGINS else coming  # anything earlier was written by another process
    return ranked[::-1]


@dataclass(slots=True)
class MergedLogs:
    """All logs in ``folder``."""

    folder: Path
    every_rank: bool = False  #: all output; otherwise only that from rank 0 and from processes that were in no group
    since_s: float = 0.0  #: only output written since then (Unix time)
    whole_lines: bool = False  #: see :class:`ProcessLog`
    left_out: set[str] = field(default_factory=set)  #: processes with output that was not shown because of its rank
    _logs: dict[Path, ProcessLog] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The processes that have a log."""
        return [path.stem for path in self._logs]

    def grown(self) -> list[LogPiece]:
        """The new output to show, in chronological order."""
        for path in sorted(self.folder.glob("*.log")):
            self._logs.setdefault(path, ProcessLog(path, self.whole_lines))
        pieces = [piece for log in self._logs.values() for piece in _rising(log.grown())]
        self.left_out |= {piece.name for piece in pieces if not self._of_interest(piece)}
        new = [p for p in pieces if p.unix_s >= self.since_s - PERIOD_S and self._of_interest(p)]
        return sorted(new, key=lambda piece: piece.unix_s)

    def _of_interest(self, piece: LogPiece) -> bool:
        return self.every_rank or piece.rank in (0, NO_RANK)


def _rising(pieces: list[LogPiece]) -> Iterator[LogPiece]:
    """Keep a log's own order, even if the clock was set back."""
    latest_s = 0.0
    for piece in pieces:
        latest_s = max(latest_s, piece.unix_s)
        yield replace(piece, unix_s=latest_s)


def text_of(piece: LogPiece) -> bytes:
    """The lines that begin in ``piece``."""
    try:
        with open_regular(piece.path) as file:
            begin = piece.lines.first_from(file, piece.begin)
            end = piece.lines.first_from(file, piece.end)
            file.seek(begin)
            return file.read(max(0, end - begin))
    except OSError as error:
        raise UserError(f"cannot read the log {shown(piece.path)}: {error.strerror}") from None


def newest(pieces: Sequence[LogPiece], count: int) -> list[tuple[LogPiece, bytes]]:
    """The last ``count`` lines, without reading more than necessary."""
    found: list[tuple[LogPiece, bytes]] = []
    for piece in reversed(pieces):
        if count <= 0:
            break
        lines = text_of(piece).splitlines(keepends=True)[-count:]
        count -= len(lines)
        found.append((piece, b"".join(lines)))
    return found[::-1]
