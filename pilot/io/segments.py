"""The files of a journal. ``journal.jsonl`` is the segment being written; ``journal/`` beside it holds the closed
segments, compressed and named by their first entry, and the newest snapshot, named by its last entry.

A segment is closed in this order: publish the snapshot, then the closed segment, then a new ``journal.jsonl`` that
contains the digests of both. Until the last step is done, the old file counts, and newer files in ``journal/`` are
ignored.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

from pilot.core.errors import JournalError
from pilot.io.files import open_regular, publish, read_regular

TEXT_MAX, SNAPSHOT_MAX = 1 << 28, 1 << 28
"""Limits in bytes; what we write stays far below them."""

_SEGMENT, _SNAPSHOT = ".jsonl.gz", ".snapshot"


def digest(data: bytes) -> str:
    """The digest that identifies a segment, snapshot or state."""
    return hashlib.sha256(data).hexdigest()


def folder(journal: Path) -> Path:
    """The folder of the closed segments and the snapshot of ``journal``."""
    return journal.with_suffix("")


def closed(journal: Path, last_seq: int) -> list[Path]:
    """The closed segments with the entries up to ``last_seq``, in order."""
    found = {int(p.name.removesuffix(_SEGMENT)): p for p in folder(journal).glob(f"[0-9]*{_SEGMENT}") if _number(p)}
    return [found[first] for first in sorted(found) if first <= last_seq]


def read_closed(path: Path) -> bytes:
    """The text of a closed segment; :class:`JournalError` if it is damaged or unreadable."""
    try:
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as text:
            data = text.read(TEXT_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise JournalError(f"cannot read the segment {path} of the journal: {reason}") from None
    if len(data) > TEXT_MAX:
        raise JournalError(f"cannot read the segment {path} of the journal: it is too long to be one")
    return data


def write_closed(journal: Path, after: int, text: bytes) -> None:
    """Publish the segment that follows the first ``after`` entries."""
    publish(_made(journal) / f"{after + 1:012d}{_SEGMENT}", gzip.compress(text, 3, mtime=0))


def write_snapshot(journal: Path, after: int, data: bytes) -> None:
    """Publish the snapshot after the first ``after`` entries."""
    publish(_made(journal) / _snapshot_name(after), data)


def read_snapshot(journal: Path, after: int, expected: str) -> bytes:
    """The snapshot after the first ``after`` entries; :class:`JournalError` if its digest is not ``expected``."""
    path = folder(journal) / _snapshot_name(after)
    try:
        data = read_regular(path, SNAPSHOT_MAX)
    except OSError as error:
        raise JournalError(f"cannot read the snapshot {path}: {error.strerror}") from None
    if digest(data) != expected:
        raise JournalError(f"the snapshot {path} is damaged")
    return data


def remove_other_snapshots(journal: Path, after: int) -> None:
    """Remove the snapshots of other segments; they can be recomputed by replaying the journal."""
    for path in folder(journal).glob(f"*{_SNAPSHOT}"):
        if path.name != _snapshot_name(after):
            path.unlink(missing_ok=True)


def _made(journal: Path) -> Path:
    where = folder(journal)
    where.mkdir(mode=0o700, exist_ok=True)
    return where


def _snapshot_name(after: int) -> str:
    return f"{after:012d}{_SNAPSHOT}"


def _number(path: Path) -> bool:
    name = path.name.removesuffix(_SEGMENT)
    return len(name) == 12 and name.isascii() and name.isdigit()
