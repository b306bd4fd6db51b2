"""The files of a journal, and the core's state as bytes.

``journal.jsonl`` is the segment being written; ``journal/`` beside it holds the closed segments, compressed and named
by their first entry, the newest snapshot, named by its last entry, and a copy of the header of ``journal.jsonl``.

A segment is closed in this order: publish the snapshot, the closed segment, the copy of the next header, which contains
the digests of both, then the new ``journal.jsonl``. Until the last step is done, the old file counts, and newer files
in ``journal/`` are ignored.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import msgspec

from pilot.core.config import State
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, PilotError
from pilot.host.files import publish, read_regular

TEXT_MAX, SNAPSHOT_MAX = 1 << 28, 1 << 28
"""Limits in bytes; what we write stays far below them."""

_SEGMENT, _SNAPSHOT, _HEADER = ".jsonl.gz", ".snapshot", "header.json"


def digest(data: bytes) -> str:
    """Return the digest that identifies a segment, snapshot or state."""
    return hashlib.sha256(data).hexdigest()


def folder(journal: Path) -> Path:
    """Return the folder of the closed segments and the snapshot of ``journal``."""
    return journal.with_suffix("")


def closed(journal: Path, last_seq: int) -> list[Path]:
    """Return the closed segments with the entries up to ``last_seq``, in order."""
    return sorted(p for p in folder(journal).glob(f"[0-9]*{_SEGMENT}") if _number(p) and after(p) < last_seq)


def after(path: Path) -> int:
    """Return the number of entries before those of the closed segment ``path``."""
    return int(path.name.removesuffix(_SEGMENT)) - 1


def read_closed(path: Path) -> tuple[bytes, str]:
    """Return the text of a closed segment as far as it can be read, and the damage that ends it ("": none).

    Raises
    ------
    JournalError
        It cannot be read now; its content is not lost.
    """
    try:
        data = read_regular(path, TEXT_MAX)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return b"", f"{path}: {error.strerror}"
        away = "try again later, or move it away: then the pool continues without it"
        raise JournalError(
            f"cannot read the segment {path} of the journal: {error.strerror}; {away}", transient=True
        ) from None
    text, wrong = _unzipped(data, 1 << 16)
    if wrong:
        text, wrong = _unzipped(data, 1)  # up to the very byte
    return text, f"{path}: {wrong}" if wrong else ""


def _unzipped(data: bytes, piece: int) -> tuple[bytes, str]:
    """Return the text in gzip ``data``, read in pieces of ``piece`` bytes up to the first damaged one."""
    stream, text = zlib.decompressobj(wbits=31), bytearray()
    for at in range(0, len(data), piece):
        try:
            text += stream.decompress(data[at : at + piece], TEXT_MAX + 1 - len(text))
        except zlib.error as error:
            return bytes(text), str(error)
        if len(text) > TEXT_MAX:
            return b"", "it is too long to be a segment"
    return bytes(text), "" if stream.eof else "it was cut off"


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
        later = not isinstance(error, FileNotFoundError)
        raise JournalError(f"cannot read the snapshot {path}: {error.strerror}", transient=later) from None
    if digest(data) != expected:
        raise JournalError(f"the snapshot {path} is damaged")
    return data


def write_header(journal: Path, line: bytes) -> None:
    """Publish a copy of the first line of the segment being written: without it, nothing after it can be used."""
    publish(_made(journal) / _HEADER, line)


def read_header(journal: Path) -> bytes:
    """Return the copy, without the line's end; b"" if there is none."""
    try:
        return read_regular(folder(journal) / _HEADER, TEXT_MAX).removesuffix(b"\n")
    except OSError:
        return b""


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


def state_bytes(core: Coordinator) -> bytes:
    """Return the complete state of ``core``; the same events always give the same bytes."""
    return msgspec.msgpack.encode(core.snapshot())


def state_of(data: bytes) -> State:
    """Return the state encoded in ``data``; :class:`JournalError` if it is not valid."""
    try:
        return msgspec.msgpack.decode(data, type=State)
    except (msgspec.DecodeError, PilotError, ValueError, OverflowError, RecursionError) as error:
        raise JournalError(f"not a valid state of the core: {error}") from None


def state_digest(core: Coordinator) -> str:
    """Return a digest to compare two states by."""
    return digest(state_bytes(core))
